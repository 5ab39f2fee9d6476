#include "methods/changed_elements.h"

namespace mergepipe {
namespace {

Constants Prepare(const TensorFacts&, const TensorParams& params, const TensorStatistics&) {
  return {.weights = std::vector<double>(params.inputs.size(), 1.0), .factor = params.Get("epsilon")};
}

}  // namespace

const Method& Method_ram() {
  static const Method method = {
      .name = "ram",
      .summary = "keeps what one model alone changes whole, and takes the mean of what several change",
      .paper = "Yuan et al. 2026, Behavior Knowledge Merge in Reinforced Agentic Models, arXiv:2601.13572",
      .formula = "θ = θ_0 + Σ_i a_i Δ_i / max(1, Σ_j a_j), a_i = [|Δ_i| > ε]",
      .min_inputs = 1,
      .params = {LeastChangeParam()},
      .prepare = Prepare,
      .apply32 = ApplyChanges<float>,
      .apply64 = ApplyChanges<double>,
      .coefficients = EvenCoefficients,  // where deltas are dense most elements are changed by all
  };
  return method;
}

}  // namespace mergepipe
