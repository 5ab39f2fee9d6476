#include "methods/combine.h"

namespace mergepipe {
namespace {

bool IsCopy(const TensorParams& params) {
  return params.inputs[0].count("scale") == 0;
}

Constants Prepare(const TensorFacts&, const TensorParams& params, const TensorStatistics&) {
  Constants constants;
  constants.weights = {IsCopy(params) ? 1.0 : params.Get(0, "scale")};
  return constants;
}

std::vector<double> Coefficients(const TensorFacts& facts, const TensorParams& params) {
  return Prepare(facts, params, {}).weights;
}

template <typename T>
void Apply(const Constants& constants, Tile<T>& tile) {
  CombineValues(constants.weights, tile, tile.loops->add_scaled);
}

}  // namespace

const Method& Method_passthrough() {
  static const Method method = {
      .name = "passthrough",
      .summary = "takes each tensor from its one model, to stack layers of several models",
      .paper = "",
      .formula = "θ = scale · θ_1",
      .domain = Domain::kValues,
      .needs_base = false,
      .base_is_special = false,
      .additive = true,
      .min_inputs = 1,
      .max_inputs = 1,
      .params = {{.name = "scale",
                  .per_model = true,
                  .doc = "factor on the tensor; without it bytes are copied"}},
      .prepare = Prepare,
      .apply32 = Apply<float>,
      .apply64 = Apply<double>,
      .coefficients = Coefficients,
      .is_copy = IsCopy,
  };
  return method;
}

}  // namespace mergepipe
