#include "methods/task_vectors.h"

namespace mergepipe {
namespace {

Result<StatisticsRequest> Request(const TensorFacts& facts, const TensorParams& params) {
  StatisticsRequest request;
  for (size_t i = 0; i < params.inputs.size(); ++i)
    request.keep.push_back(KeepLargest(facts, params.Get(i, "density")));
  request.l1 = params.Get("rescale") != 0;
  return request;
}

}  // namespace

const Method& Method_ties() {
  static const Method method = {
      .name = "ties",
      .summary =
          "trims each task vector to its largest elements, elects a sign per element, mixes what agrees",
      .paper = "Yadav et al. 2023, TIES-Merging, arXiv:2306.01708",
      .formula =
          "θ = θ_0 + λ Σ w_i Δ'_i [sign agrees] / Σ w_i [sign agrees], Δ'_i = the density·n largest |Δ_i|",
      .min_inputs = 1,
      .params = TaskVectorParams(/*normalize=*/true, /*rescale=*/false),
      .request = Request,
      .prepare = PrepareTaskVectors,
      .apply32 = ApplyElected<float>,
      .apply64 = ApplyElected<double>,
      .coefficients = TaskVectorCoefficients,
      .elects_signs = true,
  };
  return method;
}

}  // namespace mergepipe
