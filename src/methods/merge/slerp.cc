#include <algorithm>
#include <cmath>

#include "methods/combine.h"

namespace mergepipe {
namespace {

// Closer than this to parallel the sphere is flat, and sin θ would be noise.
constexpr double kParallel = 0.9995;
constexpr double kTinyNorm = 1e-8;

Result<StatisticsRequest> Request(const TensorFacts&, const TensorParams&) {
  return StatisticsRequest{.gram = true};
}

// Coefficients of base and other: sin((1-t)θ)/sin θ and sin(tθ)/sin θ, or (1-t) and t where they are nearly
// parallel.
Constants Prepare(const TensorFacts& facts, const TensorParams& params, const TensorStatistics& statistics) {
  const size_t base = *facts.base_input;
  const size_t other = 1 - base;
  const double t = static_cast<float>(params.Get("t"));
  const auto norm = [&](size_t i) { return std::sqrt(statistics.gram[i * 2 + i]); };
  const auto unit = [&](size_t i) { return norm(i) > kTinyNorm ? norm(i) : 1.0; };
  const double cosine = std::clamp(statistics.gram[1] / (unit(0) * unit(1)), -1.0, 1.0);
  Constants constants;
  constants.weights = {0, 0};
  if (std::fabs(cosine) > kParallel) {
    constants.weights[base] = 1 - t;
    constants.weights[other] = t;
  } else {
    const double theta = std::acos(cosine);
    constants.weights[base] = std::sin((1 - t) * theta) / std::sin(theta);
    constants.weights[other] = std::sin(t * theta) / std::sin(theta);
  }
  return constants;
}

// As if on the straight line between the two.
std::vector<double> Coefficients(const TensorFacts& facts, const TensorParams& params) {
  std::vector<double> coefficients = {params.Get("t"), params.Get("t")};
  coefficients[*facts.base_input] = 1 - params.Get("t");
  return coefficients;
}

template <typename T>
void Apply(const Constants& constants, Tile<T>& tile) {
  CombineValues(constants.weights, tile, tile.loops->add_scaled);
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
      .apply32 = Apply<float>,
      .apply64 = Apply<double>,
      .coefficients = Coefficients,
  };
  return method;
}

}  // namespace mergepipe
