#include <cmath>
#include <optional>

#include "base/text.h"
#include "methods/gram_combination.h"

namespace mergepipe {
namespace {

// A sum of unit vectors that is shorter than this for each unit of weight is what rounding leaves of
// directions that cancel.
constexpr double kCancelled = 1e-7;

// The weights as float32, over their sum with normalize_weights.
std::vector<double> Weights(const TensorParams& params) {
  std::vector<double> weights;
  double sum = 0;
  for (size_t i = 0; i < params.inputs.size(); ++i) {
    weights.push_back(static_cast<float>(params.Get(i, "weight")));
    sum += weights.back();
  }
  for (double& weight : weights)
    weight /= params.Get("normalize_weights") != 0 ? sum : 1.0;
  return weights;
}

Result<StatisticsRequest> Request(const TensorFacts&, const TensorParams& params) {
  for (const double weight : Weights(params)) {
    if (!std::isfinite(weight))
      return Fail(
          Code::kUsage,
          "the weights add up to 0, so that normalize_weights would divide by it; set it to false or change "
          "the weights");
  }
  return StatisticsRequest{.gram = params.inputs.size() > 1};
}

// Nearer than this to 1 the cosine of two vectors is that of vectors on one line.
constexpr double kOnALine = 1e-15;

// What the formula gives for vectors on one line (tensors of one element are), where the sum of their
// directions nearly cancels and inner products would lose it in rounding. Nothing where the vectors are not
// on one line.
std::optional<std::vector<double>> OnALine(const Gram& gram, const std::vector<double>& weights, double eps) {
  const size_t inputs = weights.size();
  size_t first = 0;  // that has a direction
  while (first < inputs && gram.Norm(first) == 0)
    ++first;
  if (first == inputs) return weights;
  double along = 0, size = 0;
  for (size_t i = 0; i < inputs; ++i) {
    if (gram.Norm(i) == 0) continue;
    const double cosine = gram.Of(first, i) / (gram.Norm(first) * gram.Norm(i));
    if (std::fabs(std::fabs(cosine) - 1) > kOnALine) return std::nullopt;
    along += std::copysign(weights[i] * gram.Norm(i) / (gram.Norm(i) + eps), weights[i] * cosine);
    size += weights[i] * gram.Norm(i);
  }
  if (std::fabs(along) < eps) return weights;
  std::vector<double> coefficients(inputs, 0.0);
  coefficients[first] = std::copysign(size, size * along) / gram.Norm(first);
  return coefficients;
}

// Coefficients of r = Σ w_i n_i (m cos q + T sin q / q): m the mean direction, T the mean of the tangents at
// m towards the inputs, q its length.
std::vector<double> OnTheSphere(const Gram& gram, const std::vector<double>& weights, double eps) {
  const size_t inputs = weights.size();
  std::vector<double> mean(inputs);
  double weight = 0;
  for (size_t i = 0; i < inputs; ++i) {
    mean[i] = weights[i] / (gram.Norm(i) + eps);
    weight += std::fabs(weights[i]);
  }
  const double length = gram.Norm(mean);
  if (length < std::max(eps, kCancelled * weight))
    return weights;  // the directions cancel: there is no mean one to turn around
  for (double& c : mean)
    c /= length;
  std::vector<double> tangent(inputs, 0.0);
  double size = 0;
  double along = 0;  // Σ w_i <u_i, m>
  for (size_t i = 0; i < inputs; ++i) {
    const double inverse = 1 / (gram.Norm(i) + eps);
    tangent[i] += weights[i] * inverse;
    along += weights[i] * inverse * gram.Of(i, mean);
    size += weights[i] * gram.Norm(i);
  }
  for (size_t i = 0; i < inputs; ++i)
    tangent[i] -= along * mean[i];
  const double q = gram.Norm(tangent) + eps;
  for (size_t i = 0; i < inputs; ++i)
    mean[i] = size * (std::cos(q) * mean[i] + std::sin(q) / q * tangent[i]);
  return mean;
}

Constants Prepare(const TensorFacts& facts, const TensorParams& params, const TensorStatistics& statistics) {
  const size_t inputs = params.inputs.size();
  if (inputs == 1) return {.weights = {1.0}, .domain = facts.domain};
  const Gram gram(statistics.gram.data(), inputs);
  const std::vector<double> weights = Weights(params);
  const double eps = params.Get("eps");
  auto line = OnALine(gram, weights, eps);
  return {.weights = line ? *line : OnTheSphere(gram, weights, eps), .domain = facts.domain};
}

// As if on the plane through the inputs.
std::vector<double> Coefficients(const TensorFacts&, const TensorParams& params) {
  return params.inputs.size() == 1 ? std::vector<double>{1.0} : Weights(params);
}

}  // namespace

const Method& Method_multislerp() {
  static const Method method = {
      .name = "multislerp",
      .summary =
          "spherical interpolation of any number of models by one step on the sphere from their mean "
          "direction",
      .paper = "Goddard 2025, Multi-SLERP, https://goddard.blog/posts/multislerp-wow-what-a-cool-idea",
      .formula =
          "θ = Σ w_i ‖x_i‖ · (m cos q + T sin q / q), u_i = x_i/‖x_i‖, m = Σ w_i u_i / ‖Σ w_i u_i‖, "
          "T = Σ w_i (u_i − <u_i, m> m), q = ‖T‖; x_i = θ_i, or Δ_i added to θ_0 where there is a base",
      .needs_base = false,
      .min_inputs = 1,
      .params =
          {{.name = "weight", .per_model = true, .required = true, .doc = "share of this model"},
           {.name = "normalize_weights",
            .type = ParamType::kBool,
            .default_value = 1.0,
            .doc = "divide the weights by their sum"},
           {.name = "eps", .default_value = 1e-8, .minimum = 0.0, .doc = "added to lengths that divide"}},
      .request = Request,
      .prepare = Prepare,
      .apply32 = ApplyCombination<float>,
      .apply64 = ApplyCombination<double>,
      .coefficients = Coefficients,
  };
  return method;
}

}  // namespace mergepipe
