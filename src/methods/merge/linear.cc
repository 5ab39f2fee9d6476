#include "methods/combine.h"

namespace mergepipe {
namespace {

Constants Prepare(const TensorFacts&, const TensorParams& params, const TensorStatistics&) {
  Constants constants;
  double sum = 0;
  for (size_t i = 0; i < params.inputs.size(); ++i) {
    constants.weights.push_back(params.Get(i, "weight"));
    sum += static_cast<float>(constants.weights.back());
  }
  constants.normalize = params.Get("normalize") != 0;
  constants.divisor = sum;
  return constants;
}

std::vector<double> Coefficients(const TensorFacts& facts, const TensorParams& params) {
  Constants constants = Prepare(facts, params, {});
  for (double& weight : constants.weights)
    weight = static_cast<float>(weight) / (constants.normalize ? constants.divisor : 1);
  return constants.weights;
}

template <typename T>
void Apply(const Constants& constants, Tile<T>& tile) {
  CombineValues(constants.weights, tile, tile.loops->add_fused);
  if (constants.normalize) tile.loops->divide(tile.out, static_cast<T>(constants.divisor), tile.n);
}

}  // namespace

const Method& Method_linear() {
  static const Method method = {
      .name = "linear",
      .summary = "weighted average of the models",
      .paper = "Wortsman et al. 2022, Model Soups, arXiv:2203.05482",
      .formula = "θ = Σ w_i θ_i / Σ w_i",
      .domain = Domain::kValues,
      .needs_base = false,
      .base_is_special = false,
      .additive = true,
      .min_inputs = 1,
      .params = {{.name = "weight", .per_model = true, .required = true, .doc = "factor on this model"},
                 {.name = "normalize",
                  .type = ParamType::kBool,
                  .default_value = 1.0,
                  .doc = "divide by the sum of the weights"}},
      .prepare = Prepare,
      .apply32 = Apply<float>,
      .apply64 = Apply<double>,
      .coefficients = Coefficients,
  };
  return method;
}

}  // namespace mergepipe
