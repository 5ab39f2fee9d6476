#include <algorithm>
#include <cmath>

#include "methods/method.h"

namespace mergepipe {
namespace {

Constants Prepare(const TensorFacts&, const TensorParams& params, const TensorStatistics&) {
  return {.factor = params.Get("t")};
}

// Where the two are nearest the other model's value comes through whole.
std::vector<double> Coefficients(const TensorFacts&, const TensorParams&) {
  return {1.0};
}

template <typename T>
void Apply(const Constants& constants, Tile<T>& tile) {
  const T t = static_cast<T>(constants.factor);
  const T least = static_cast<T>(1e-6);
  T* mix = tile.scratch[0];
  for (size_t k = 0; k < tile.n; ++k) {
    const T delta = tile.inputs[0][k];
    const T reciprocal = T{1} / std::max(std::fabs(delta), least);
    mix[k] = delta * std::clamp(reciprocal * t, T{0}, T{1});
  }
  tile.loops->add_to_base(tile.base, mix, tile.out, tile.n);
}

}  // namespace

const Method& Method_nearswap() {
  static const Method method = {
      .name = "nearswap",
      .summary = "moves each element towards the other model by at most t: what is nearer than t is swapped",
      .paper = "Alchemonaut, QuartetAnemoi-70B-t0.0001 (model card)",
      .formula = "θ = θ_0 + min(1, t / |Δ|) Δ",
      .min_inputs = 2,
      .max_inputs = 2,
      .params = {{.name = "t", .required = true, .doc = "largest step of an element; 0 gives the base"}},
      .prepare = Prepare,
      .apply32 = Apply<float>,
      .apply64 = Apply<double>,
      .coefficients = Coefficients,
  };
  return method;
}

}  // namespace mergepipe
