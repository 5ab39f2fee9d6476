#include "planner/decision.h"

#include "base/text.h"
#include "base/try.h"
#include "planner/blocks.h"
#include "planner/mask_rows.h"

namespace mergepipe {
namespace {

Json Number(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

std::optional<double> NumberFrom(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<double>(json.get<double>());
}

TensorStatistics StatisticsFrom(const Json& json) {
  TensorStatistics statistics{
      .thresholds = {}, .l1_whole = json.at("l1_whole"), .l1_kept = json.at("l1_kept"), .gram = {}};
  for (const Json& row : json.at("thresholds")) {
    Threshold threshold{.key = row.at(0), .equal_total = row.at(1), .equal_kept = row.at(2), .cut_index = {}};
    if (!row.at(3).is_null()) threshold.cut_index = row.at(3).get<uint64_t>();
    statistics.thresholds.push_back(threshold);
  }
  return statistics;
}

bool FitsInputs(const TensorStatistics& statistics, const ResolvedTensor& tensor) {
  const size_t sums = tensor.request.l1 ? tensor.inputs.size() : 0;
  return tensor.merged && TakesConstants(tensor.request) &&
         statistics.thresholds.size() == tensor.inputs.size() && statistics.l1_whole.size() == sums &&
         statistics.l1_kept.size() == sums;
}

Failure Misfit(const std::string& tensor) {
  return Fail(
      Code::kInvalidInput,
      Format("the plan's decision for tensor '{}' does not fit its inputs; was the plan changed?", tensor));
}

// Without a budget the memory limit, and so the number of passes, decides nothing: bytes are those of one
// pass then, and equal merges have equal decisions.
uint64_t CountedPasses(const Plan& plan, size_t t) {
  return plan.budget.bytes ? 1 : plan.tensors[t].passes();
}

uint64_t LosslessBytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (size_t t = 0; t < plan.budget.sources.size(); ++t) {
    for (const SourceOutcome& source : plan.budget.sources[t])
      bytes += source.lossless_bytes / CountedPasses(plan, t);
  }
  return bytes;
}

Failure Unknown(const char* field, const std::string& value) {
  return Fail(Code::kInvalidInput,
              Format("the plan's decision has the {} '{}', which nobody knows", field, value));
}

Result<Strength> StrengthFrom(const std::string& name) {
  for (const Strength s : {Strength::kNone, Strength::kSampled, Strength::kFull}) {
    if (name == StrengthName(s)) return s;
  }
  return Unknown("statistics", name);
}

Result<Policy> PolicyFrom(const std::string& name) {
  const auto policy = ParsePolicy(name);
  return policy ? Result<Policy>(*policy) : Unknown("policy", name);
}

Result<void> RestoreBudget(const Json& json, BudgetOutcome& budget) {
  if (!json.at("budget_bytes").is_null()) budget.bytes = json.at("budget_bytes").get<uint64_t>();
  budget.sample_bytes = json.at("sample_read_bytes");
  budget.complete = json.at("complete");
  budget.cut_rate = json.at("cut_rate");
  budget.strength = MP_TRY(StrengthFrom(json.at("statistics")));
  budget.request.policy = MP_TRY(PolicyFrom(json.at("policy")));
  const Json& predicted = json.at("predicted_deviation");
  budget.predicted = {NumberFrom(predicted.at("relative_to_weights")),
                      NumberFrom(predicted.at("relative_to_update"))};
  budget.certificate = {};
  const Json& certificate = json.at("certificate");
  if (!certificate.is_null())
    budget.certificate = Certificate{certificate.at("l2"), certificate.at("rounding_l2")};
  return {};
}

// Blocks are shared between sources of one type alone.
bool HoldersFit(const TensorMask& mask, const Plan& plan, size_t t) {
  const auto& sources = plan.merge->tensors[t].sources;
  for (size_t s = 1; s < mask.sources(); ++s) {
    for (size_t b = 0; b < mask.blocks(); ++b) {
      const size_t from = mask.From(s, b);
      if (from != TensorMask::kOmitted &&
          EntryOf(*plan.merge, sources[from]).dtype != EntryOf(*plan.merge, sources[s]).dtype)
        return false;
    }
  }
  return true;
}

Result<void> RestoreTensor(const Json& json, size_t t, Plan& plan) {
  const ResolvedTensor& tensor = plan.merge->tensors[t];
  plan.masks[t] = {};
  if (json.contains("mask")) {
    auto mask = MaskFromRows(json.at("mask"), tensor.sources.size(), plan.tensors[t].elements,
                             BlockElements(plan, t));
    if (!mask || !HoldersFit(*mask, plan, t)) return Misfit(tensor.name);
    plan.masks[t] = std::move(*mask);
  }
  plan.budget.sources[t].clear();
  if (!json.contains("reads")) return {};
  const uint64_t passes = CountedPasses(plan, t);
  for (const Json& row : json.at("reads")) {
    plan.budget.sources[t].push_back({.available_bytes = row.at(0).get<uint64_t>() * passes,
                                      .read_bytes = row.at(1).get<uint64_t>() * passes,
                                      .lossless_bytes = row.at(2).get<uint64_t>() * passes,
                                      .error = row.at(3),
                                      .energy = row.at(4)});
    plan.budget.lossless_bytes += plan.budget.sources[t].back().lossless_bytes;
  }
  if (plan.budget.sources[t].size() != tensor.sources.size()) return Misfit(tensor.name);
  return {};
}

// What the masks read, whatever the decision says about it.
uint64_t MaskedExpertBytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    for (size_t s = 0; s < plan.merge->tensors[t].sources.size(); ++s)
      bytes += ExpertBytes(plan, t, s);
  }
  return bytes;
}

}  // namespace

Json ConstantsJson(const TensorStatistics& statistics) {
  Json thresholds = Json::array();
  for (const Threshold& t : statistics.thresholds) {
    thresholds.push_back({t.key, t.equal_total, t.equal_kept, t.cut_index ? Json(*t.cut_index) : Json()});
  }
  return {{"thresholds", thresholds}, {"l1_whole", statistics.l1_whole}, {"l1_kept", statistics.l1_kept}};
}

Json DeviationJson(const Deviation& deviation) {
  return {{"relative_to_weights", Number(deviation.of_weights)},
          {"relative_to_update", Number(deviation.of_update)}};
}

Json CertificateJson(const std::optional<Certificate>& certificate) {
  if (!certificate) return {};
  return {{"l2", certificate->l2}, {"rounding_l2", certificate->rounding_l2}};
}

Json BudgetJson(const Plan& plan) {
  const BudgetOutcome& budget = plan.budget;
  return {{"budget_bytes", budget.bytes ? Json(*budget.bytes) : Json()},
          {"policy", PolicyName(budget.request.policy)},
          {"statistics", StrengthName(budget.strength)},
          {"sample_read_bytes", budget.sample_bytes},
          {"complete", budget.complete},
          {"lossless_skipped_bytes", LosslessBytes(plan)},
          {"predicted_deviation", DeviationJson(budget.predicted)},
          {"certificate", CertificateJson(budget.certificate)},
          {"checks_pairs", plan.checks_pairs},
          {"cut_rate", budget.cut_rate},
          {"identities", plan.identities}};
}

Json TensorDecision(const Plan& plan, size_t t) {
  Json json = Json::object();
  if (!plan.masks[t].reads_all()) json["mask"] = MaskRows(plan.masks[t]);
  if (plan.constants[t]) json["constants"] = ConstantsJson(*plan.constants[t]);
  if (plan.budget.sources[t].empty()) return json;
  Json reads = Json::array();
  const uint64_t passes = CountedPasses(plan, t);
  for (const SourceOutcome& s : plan.budget.sources[t])
    reads.push_back(
        {s.available_bytes / passes, s.read_bytes / passes, s.lossless_bytes / passes, s.error, s.energy});
  json["reads"] = reads;
  if (plan.merge->tensors[t].sources[0].rows != nullptr) json["gathered"] = true;
  json["elements"] = plan.tensors[t].elements;
  json["block_elements"] = BlockElements(plan, t);
  return json;
}

Result<KnownConstants> ConstantsFrom(const ResolvedMerge& merge, const std::vector<Json>& tensors) {
  KnownConstants constants(merge.tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].contains("constants")) continue;
    try {
      constants[t] = StatisticsFrom(tensors[t].at("constants"));
    } catch (const Json::exception&) {
      return Misfit(merge.tensors[t].name);
    }
    if (!FitsInputs(*constants[t], merge.tensors[t])) return Misfit(merge.tensors[t].name);
  }
  return constants;
}

Result<void> RestoreDecision(const Json& budget, const std::vector<Json>& tensors, Plan& plan) {
  try {
    MP_TRY(RestoreBudget(budget, plan.budget));
    plan.checks_pairs = budget.at("checks_pairs");
    plan.identities = budget.at("identities").get<std::vector<std::string>>();
    if (plan.identities.size() != plan.merge->models.size())
      return Fail(Code::kInvalidInput, Format("the plan's decision names {} models, the recipe has {}",
                                              plan.identities.size(), plan.merge->models.size()));
    plan.budget.lossless_bytes = 0;
    for (size_t t = 0; t < tensors.size(); ++t)
      MP_TRY(RestoreTensor(tensors[t], t, plan));
  } catch (const Json::exception& e) {
    return Fail(Code::kInvalidInput, Format("the plan's decision can not be read: {}", e.what()));
  }
  plan.costs.expert_read_bytes = MaskedExpertBytes(plan) + (plan.checks_pairs ? plan.pair_check_bytes : 0);
  if (plan.budget.bytes && plan.costs.expert_read_bytes > *plan.budget.bytes)
    return Fail(Code::kInvalidInput,
                Format("the plan's masks read {} of experts, more than its budget of {}; was it changed?",
                       plan.costs.expert_read_bytes, *plan.budget.bytes));
  return {};
}

}  // namespace mergepipe
