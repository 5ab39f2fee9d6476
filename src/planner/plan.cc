#include "planner/plan.h"

#include <algorithm>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "format/json.h"
#include "methods/statistics.h"
#include "planner/blocks.h"
#include "planner/decision.h"
#include "planner/fetched.h"
#include "planner/layout.h"
#include "planner/mask_rows.h"
#include "planner/memory.h"

namespace mergepipe {
namespace {

// A model is a reference where it is the first source of a tensor that is merged or copied; its bytes are
// base reads.
std::vector<bool> FindReferences(const ResolvedMerge& merge) {
  std::vector<bool> reference(merge.models.size(), false);
  reference[merge.donor] = true;
  for (const ResolvedTensor& tensor : merge.tensors) {
    if (tensor.facts.domain == Domain::kDeltas) reference[tensor.sources[0].model] = true;
  }
  return reference;
}

uint64_t PairCheckBytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (const EqualPair& pair : plan.merge->redundant_heads) {
    if (!plan.reference_model[pair.first.model])
      bytes += EntryOf(*plan.merge, pair.first).bytes() + EntryOf(*plan.merge, pair.second).bytes();
  }
  return bytes;
}

PlanCosts ReckonCosts(const Plan& plan) {
  PlanCosts costs;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    for (size_t s = 0; s < plan.merge->tensors[i].sources.size(); ++s) {
      const FetchedBytes bytes = BytesFetched(plan, i, s);
      costs.base_read_bytes += bytes.base * plan.tensors[i].passes();
      costs.expert_read_bytes += bytes.expert * plan.tensors[i].passes();
    }
  }
  for (const Unit& unit : plan.units)
    costs.write_bytes += unit.layout.file_size;
  costs.full_expert_bytes = costs.expert_read_bytes + plan.pair_check_bytes;
  costs.expert_read_bytes = costs.full_expert_bytes;
  return costs;
}

Json TensorLine(const Plan& plan, size_t number) {
  const ResolvedMerge& merge = *plan.merge;
  const ResolvedTensor& tensor = merge.tensors[number];
  Json sources = Json::array();
  for (const TensorSource& source : tensor.sources) {
    sources.push_back({source.model, EntryOf(merge, source).name});
    if (source.rows != nullptr) sources.back().push_back(source.rows->digest);
  }
  Json line = {{"name", tensor.name}, {"dtype", DTypeName(tensor.dtype)}, {"merged", tensor.merged},
               {"sources", sources},  {"inputs", tensor.inputs},          {"params", tensor.params}};
  if (plan.budget.bytes && plan.tensors[number].passes() > 1) line["passes"] = plan.tensors[number].passes();
  if (!plan.masks[number].reads_all()) line["mask"] = MaskRows(plan.masks[number]);
  if (plan.constants[number]) line["constants"] = ConstantsJson(*plan.constants[number]);
  return line;
}

// Everything that decides the output's bytes, paths left out: models are known by their position and the
// digest of their content, of their sampled pages, or of their headers. One line of JSON for the plan and one
// for each tensor, so that large merges need no large document.
std::string DigestPlan(const Plan& plan) {
  const ResolvedMerge& merge = *plan.merge;
  Json models = Json::array();
  for (size_t m = 0; m < merge.models.size(); ++m)
    models.push_back({merge.models[m].checkpoint->HeaderDigest(), plan.identities[m]});
  Json params = Json::array();
  for (const TensorParams& set : merge.params)
    params.push_back({{"global", set.global}, {"inputs", set.inputs}});
  Json units = Json::array();
  for (const Unit& unit : plan.units)
    units.push_back({unit.file_name, Sha256Hex(unit.layout.prefix)});
  Json heading = {{"schema", "mergepipe.plan/1"},
                  {"version", MERGEPIPE_VERSION},
                  {"method", merge.method->name},
                  {"models", models},
                  {"params", params},
                  {"units", units},
                  {"seed", merge.seed},
                  {"block_bytes", plan.options.block_bytes},
                  {"budget_bytes", plan.budget.bytes ? Json(*plan.budget.bytes) : Json()}};
  if (merge.tokenizer)
    heading["tokenizer"] = {merge.tokenizer->model, merge.tokenizer->rows, merge.tokenizer->edit.kept,
                            Sha256Hex(merge.tokenizer->edit.appended.dump())};
  if (const std::string& name = merge.models[merge.donor].architecture; !name.empty())
    heading["architecture"] = name;
  if (merge.chat_template) heading["chat_template"] = Sha256Hex(*merge.chat_template);
  Sha256 sha;
  sha.Update(heading.dump() + "\n");
  for (size_t t = 0; t < merge.tensors.size(); ++t)
    sha.Update(TensorLine(plan, t).dump() + "\n");
  return sha.FinishHex();
}

// A full read about which nothing is known needs no choice.
void ReadEverything(Plan& plan) {
  plan.budget.predicted = {0.0, 0.0};
  if (plan.merge->method->additive) plan.budget.certificate = Certificate{};
  plan.budget.sources.resize(plan.tensors.size());
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const auto& sources = plan.merge->tensors[t].sources;
    plan.budget.sources[t].resize(sources.size());
    for (size_t s = 1; s < sources.size(); ++s) {
      if (!MayOmit(plan, t, s)) continue;
      const uint64_t bytes = BytesFetched(plan, t, s).expert * plan.tensors[t].passes();
      plan.budget.sources[t][s] = {.available_bytes = bytes, .read_bytes = bytes};
    }
  }
}

}  // namespace

bool TakesConstants(const StatisticsRequest& request) {
  return !request.keep.empty() && !request.gram && request.joint == nullptr &&
         std::none_of(request.keep.begin(), request.keep.end(), [](const KeepRule& rule) {
           return rule.kind == KeepRule::Kind::kRandom || rule.kind == KeepRule::Kind::kRanked ||
                  rule.outliers > 0;
         });
}

std::optional<TensorStatistics> ConstantsOf(const ResolvedTensor& tensor, const TensorEvidence& evidence) {
  if (!TakesConstants(tensor.request)) return std::nullopt;
  TensorStatistics statistics;
  for (size_t i = 0; i < tensor.inputs.size(); ++i) {
    const KeepRule& rule = tensor.request.keep[i];
    const auto& source = evidence.sources[tensor.inputs[i]];
    if (!source || !source->exact) return std::nullopt;
    const auto& known = source->knowledge.thresholds;
    const auto exact = std::find_if(known.begin(), known.end(),
                                    [&](const ExactThreshold& t) { return t.kept == rule.count; });
    const bool trims = rule.kind == KeepRule::Kind::kLargest && rule.count < tensor.elements;
    if (trims && exact == known.end()) return std::nullopt;
    statistics.thresholds.push_back(trims ? exact->threshold : Threshold{});
    if (!tensor.request.l1) continue;
    const double l1 = source->knowledge.l1;
    statistics.l1_whole.push_back(trims ? exact->l1_whole : l1);
    statistics.l1_kept.push_back(trims ? exact->l1_kept : rule.kind == KeepRule::Kind::kNone ? 0.0 : l1);
  }
  return statistics;
}

Result<KnownConstants> FindConstants(const ResolvedMerge& merge, Evidence& evidence) {
  KnownConstants constants(merge.tensors.size());
  for (size_t t = 0; t < merge.tensors.size(); ++t) {
    const ResolvedTensor& tensor = merge.tensors[t];
    const bool asks = tensor.merged && tensor.elements > 0 &&
                      StatisticsCollector::Rounds(tensor.request, tensor.elements) > 0;
    if (asks && evidence.strength() == Strength::kFull)
      constants[t] = ConstantsOf(tensor, MP_TRY(evidence.ThresholdsOf(t)));
  }
  return constants;
}

Result<Plan> DraftPlan(std::shared_ptr<const ResolvedMerge> merge, const PlanOptions& options,
                       KnownConstants constants) {
  Plan plan;
  plan.merge = std::move(merge);
  plan.options = options;
  plan.reference_model = FindReferences(*plan.merge);
  plan.units = LayOutUnits(*plan.merge);
  plan.constants = std::move(constants);
  MP_TRY(PlanMemory(plan));
  plan.pair_check_bytes = PairCheckBytes(plan);
  plan.costs = ReckonCosts(plan);
  plan.masks.resize(plan.tensors.size());
  plan.expected.resize(plan.tensors.size());
  ReadEverything(plan);
  return plan;
}

void SealPlan(Plan& plan, std::vector<std::string> identities) {
  plan.identities = std::move(identities);
  plan.digest = DigestPlan(plan);
}

Result<Plan> MakePlan(std::shared_ptr<const ResolvedMerge> merge, const PlanOptions& options) {
  KnownConstants nothing(merge->tensors.size());
  Plan plan = MP_TRY(DraftPlan(std::move(merge), options, std::move(nothing)));
  std::vector<std::string> headers;
  for (const ResolvedModel& model : plan.merge->models)
    headers.push_back(model.checkpoint->HeaderDigest());
  SealPlan(plan, std::move(headers));
  return plan;
}

}  // namespace mergepipe
