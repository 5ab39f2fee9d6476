#include "planner/plan.h"

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "format/json.h"
#include "planner/layout.h"
#include "planner/memory.h"

namespace mergepipe {
namespace {

// A model is a reference where it is the first source of a tensor that is merged or copied; its bytes are
// base reads.
std::vector<bool> FindReferences(const ResolvedMerge& merge) {
  std::vector<bool> reference(merge.models.size(), false);
  const bool has_deltas = merge.method->domain == Domain::kDeltas;
  reference[merge.donor] = true;
  for (const ResolvedTensor& tensor : merge.tensors) {
    if (has_deltas) reference[tensor.sources[0].model] = true;
  }
  return reference;
}

PlanCosts ReckonCosts(const Plan& plan) {
  PlanCosts costs;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const ResolvedTensor& tensor = plan.merge->tensors[i];
    for (const TensorSource& source : tensor.sources) {
      const uint64_t bytes = EntryOf(*plan.merge, source).bytes() * plan.tensors[i].passes();
      (plan.reference_model[source.model] ? costs.base_read_bytes : costs.expert_read_bytes) += bytes;
    }
  }
  for (const Unit& unit : plan.units)
    costs.write_bytes += unit.layout.file_size;
  return costs;
}

Json TensorLine(const ResolvedMerge& merge, const ResolvedTensor& tensor) {
  Json sources = Json::array();
  for (const TensorSource& source : tensor.sources)
    sources.push_back({source.model, EntryOf(merge, source).name});
  return {{"name", tensor.name}, {"dtype", DTypeName(tensor.dtype)}, {"merged", tensor.merged},
          {"sources", sources},  {"inputs", tensor.inputs},          {"params", tensor.params}};
}

// Everything that decides the output's bytes, paths left out: models are known by the digest of their headers
// and their position. One line of JSON for the plan and one for each tensor, so that large merges need no
// large document.
std::string DigestPlan(const Plan& plan) {
  const ResolvedMerge& merge = *plan.merge;
  Json models = Json::array();
  for (const ResolvedModel& model : merge.models)
    models.push_back(model.checkpoint->HeaderDigest());
  Json params = Json::array();
  for (const TensorParams& set : merge.params)
    params.push_back({{"global", set.global}, {"inputs", set.inputs}});
  Json units = Json::array();
  for (const Unit& unit : plan.units)
    units.push_back({unit.file_name, Sha256Hex(unit.layout.prefix)});
  const Json heading = {{"schema", "mergepipe.plan/1"},
                        {"version", MERGEPIPE_VERSION},
                        {"method", merge.method->name},
                        {"models", models},
                        {"params", params},
                        {"units", units},
                        {"seed", merge.seed},
                        {"block_bytes", plan.options.block_bytes},
                        {"mask", "all"}};
  Sha256 sha;
  sha.Update(heading.dump() + "\n");
  for (const ResolvedTensor& tensor : merge.tensors)
    sha.Update(TensorLine(merge, tensor).dump() + "\n");
  return sha.FinishHex();
}

}  // namespace

Result<Plan> MakePlan(std::shared_ptr<const ResolvedMerge> merge, const PlanOptions& options) {
  Plan plan;
  plan.merge = std::move(merge);
  plan.options = options;
  plan.reference_model = FindReferences(*plan.merge);
  plan.units = LayOutUnits(*plan.merge);
  MP_TRY(PlanMemory(plan));
  plan.costs = ReckonCosts(plan);
  plan.digest = DigestPlan(plan);
  return plan;
}

}  // namespace mergepipe
