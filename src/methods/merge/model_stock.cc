#include "methods/vector_gram.h"

namespace mergepipe {
namespace {

constexpr double kTinyLengths = 1e-6;
constexpr double kSingular = 1e-6;

VectorSet Vectors(const TensorFacts& facts) {
  return VectorSet::Of(facts, /*columns=*/false);
}

Result<StatisticsRequest> Request(const TensorFacts& facts, const TensorParams& params) {
  if (params.Get("filter_wise") == 0) return StatisticsRequest{.gram = true};
  return RequestVectorGram(Vectors(facts), params.inputs.size());
}

// t/N for each input, t = N c / (1 + (N-1) c), c the mean cosine of all pairs of task vectors.
std::vector<double> TowardsTheMean(const Gram& gram) {
  const size_t inputs = gram.inputs();
  const auto count = static_cast<double>(inputs);
  double cosine = 0;
  for (size_t i = 0; i < inputs; ++i) {
    for (size_t j = i + 1; j < inputs; ++j)
      cosine += std::clamp(gram.Of(i, j) / std::max(gram.Norm(i) * gram.Norm(j), kTinyLengths), -1.0, 1.0);
  }
  cosine /= count * (count - 1) / 2;
  const double denominator = 1 + (count - 1) * cosine;
  const double t = std::fabs(denominator) < kSingular ? 0 : count * cosine / denominator;
  return std::vector<double>(inputs, t / count);
}

Constants Prepare(const TensorFacts& facts, const TensorParams& params, const TensorStatistics& statistics) {
  return PrepareVectors(Vectors(facts), facts, params.inputs.size(), statistics, TowardsTheMean);
}

}  // namespace

const Method& Method_model_stock() {
  static const Method method = {
      .name = "model_stock",
      .summary = "moves from the base towards the models' mean as far as their task vectors agree",
      .paper = "Jang et al. 2024, Model Stock: All we need is just a few fine-tuned models, arXiv:2403.19522",
      .formula = "θ = t · mean θ_i + (1-t) θ_0, t = N c / (1 + (N-1) c), c = mean over i<j of cos(Δ_i, Δ_j)",
      .min_inputs = 3,
      .params = {{.name = "filter_wise",
                  .type = ParamType::kBool,
                  .default_value = 0.0,
                  .doc = "a ratio t for each row of a matrix instead of one for the whole tensor"}},
      .request = Request,
      .prepare = Prepare,
      .apply32 = ApplyVectors<float>,
      .apply64 = ApplyVectors<double>,
      .coefficients = EvenCoefficients,  // as if all task vectors were parallel
  };
  return method;
}

}  // namespace mergepipe
