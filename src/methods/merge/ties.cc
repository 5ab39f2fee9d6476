#include "methods/task_vectors.h"

namespace mergepipe {
namespace {

Result<StatisticsRequest> Request(const TensorFacts& facts, const TensorParams& params) {
  return RequestSparsified(
      params, [&](size_t i) -> Result<KeepRule> { return KeepLargest(facts, params.Get(i, "density")); });
}

}  // namespace

const Method& Method_ties() {
  static const Method method = TaskVectorMethod(
      Mix::kElected,
      {
          .name = "ties",
          .summary =
              "trims each task vector to its largest elements, elects a sign per element, mixes what agrees",
          .paper = "Yadav et al. 2023, TIES-Merging, arXiv:2306.01708",
          .formula = "θ = θ_0 + λ Σ w_i Δ'_i [sign agrees] / Σ w_i [sign agrees], Δ'_i = the density·n "
                     "largest |Δ_i|",
          .params = TaskVectorParams(/*normalize=*/true, /*rescale=*/false),
          .request = Request,
      });
  return method;
}

}  // namespace mergepipe
