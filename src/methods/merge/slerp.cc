#include <algorithm>
#include <cmath>
#include <utility>

#include "methods/gram_combination.h"

namespace mergepipe {
namespace {

// Closer than this to parallel the sphere is flat, and sin θ would be noise.
constexpr double kParallel = 0.9995;
constexpr double kTinyNorm = 1e-8;

Result<StatisticsRequest> Request(const TensorFacts&, const TensorParams&) {
  return StatisticsRequest{.gram = true};
}

// The shares of base and other on the arc, or (1-t) and t where they are nearly parallel.
Constants Prepare(const TensorFacts& facts, const TensorParams& params, const TensorStatistics& statistics) {
  const double t = static_cast<float>(params.Get("t"));
  const Gram gram(statistics.gram.data(), 2);
  const auto unit = [&](size_t i) { return gram.Norm(i) > kTinyNorm ? gram.Norm(i) : 1.0; };
  const double cosine = std::clamp(gram.Of(0, 1) / (unit(0) * unit(1)), -1.0, 1.0);
  const std::vector<double> shares =
      std::fabs(cosine) > kParallel ? std::vector<double>{1 - t, t} : ArcShares(cosine, t);
  Constants constants{.weights = shares, .domain = facts.domain};
  if (*facts.base_input == 1) std::swap(constants.weights[0], constants.weights[1]);
  return constants;
}

// As if on the straight line between the two.
std::vector<double> Coefficients(const TensorFacts& facts, const TensorParams& params) {
  std::vector<double> coefficients = {params.Get("t"), params.Get("t")};
  coefficients[*facts.base_input] = 1 - params.Get("t");
  return coefficients;
}

}  // namespace

const Method& Method_slerp() {
  static const Method method = {
      .name = "slerp",
      .summary = "spherical interpolation between the base (t = 0) and one other model (t = 1)",
      .paper = "Shoemake 1985, Animating Rotation with Quaternion Curves",
      .formula = "θ = sin((1-t)Ω)/sin Ω · θ_0 + sin(tΩ)/sin Ω · θ_1, cos Ω = <θ_0, θ_1>/(‖θ_0‖‖θ_1‖)",
      .domain = Domain::kValues,
      .min_inputs = 2,
      .max_inputs = 2,
      .params = {{.name = "t",
                  .required = true,
                  .doc = "0 gives the base, 1 the other model; not limited to [0, 1]"}},
      .request = Request,
      .prepare = Prepare,
      .apply32 = ApplyCombination<float>,
      .apply64 = ApplyCombination<double>,
      .coefficients = Coefficients,
  };
  return method;
}

}  // namespace mergepipe
