#include "methods/task_vectors.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace mergepipe {
namespace {

// Below this an L1 norm is noise and nothing is rescaled.
constexpr double kTinyL1 = 1e-7;
// Below this a sum of weights counts as 0 and nothing is divided.
constexpr double kTinyWeight = 1e-8;

double RescaleFactor(double whole, double kept) {
  if (whole < kTinyL1 || kept < kTinyL1) return 1;
  return static_cast<float>(whole / kept);
}

}  // namespace

std::vector<ParamSpec> TaskVectorParams(bool normalize, bool rescale) {
  return {
      {.name = "weight", .per_model = true, .required = true, .doc = "factor on this model's task vector"},
      {.name = "density",
       .per_model = true,
       .default_value = 1.0,
       .doc = "share of the task vector's elements that is kept"},
      {.name = "normalize",
       .type = ParamType::kBool,
       .default_value = normalize,
       .doc = "divide by the sum of the weights"},
      {.name = "rescale",
       .type = ParamType::kBool,
       .default_value = rescale,
       .doc = "scale what is kept so that the task vector's L1 norm stays"},
      {.name = "lambda", .default_value = 1.0, .doc = "factor on the mixed task vector"},
      MaskTypeParam(),
  };
}

ParamSpec MaskTypeParam() {
  return {.name = "int8_mask",
          .type = ParamType::kBool,
          .default_value = 0.0,
          .doc = "accepted for mergekit's sake; changes no number"};
}

Method TaskVectorMethod(Mix mix, Method record) {
  const bool elects = mix == Mix::kElected;
  record.min_inputs = 1;
  record.prepare = PrepareTaskVectors;
  record.apply32 = elects ? ApplyElected<float> : ApplySum<float>;
  record.apply64 = elects ? ApplyElected<double> : ApplySum<double>;
  record.coefficients = TaskVectorCoefficients;
  record.elects_signs = elects;
  return record;
}

KeepRule KeepLargest(const TensorFacts& facts, double density) {
  if (density >= 1) return {.kind = KeepRule::Kind::kAll};
  if (density <= 0) return {.kind = KeepRule::Kind::kNone};
  const auto wanted = static_cast<uint64_t>(density * static_cast<double>(facts.elements));
  return {.kind = KeepRule::Kind::kLargest, .count = std::max<uint64_t>(1, wanted)};
}

Result<KeepRule> KeepRandom(const TensorFacts& facts, size_t input, double density) {
  if (density < 0)
    return Fail(Code::kUsage, Format("density is {}; a probability lies between 0 and 1", density));
  if (density >= 1) return KeepRule{.kind = KeepRule::Kind::kAll};
  return KeepRule{.kind = KeepRule::Kind::kRandom,
                  .probability = static_cast<float>(density),
                  .stream = facts.random_streams[input]};
}

Constants PrepareTaskVectors(const TensorFacts&, const TensorParams& params,
                             const TensorStatistics& statistics) {
  Constants constants;
  float weight_sum = 0;  // float32, in the order of the recipe, as the mixture itself
  for (size_t i = 0; i < params.inputs.size(); ++i) {
    constants.weights.push_back(params.Get(i, "weight"));
    weight_sum += static_cast<float>(constants.weights.back());
    if (!statistics.l1_whole.empty())
      constants.rescale.push_back(RescaleFactor(statistics.l1_whole[i], statistics.l1_kept[i]));
  }
  constants.divisor = std::fabs(weight_sum) < kTinyWeight ? 1.0 : static_cast<double>(weight_sum);
  constants.normalize = params.Get("normalize") != 0;
  constants.factor = params.Get("lambda");
  return constants;
}

std::vector<double> TaskVectorCoefficients(const TensorFacts& facts, const TensorParams& params) {
  const Constants constants = PrepareTaskVectors(facts, params, {});
  std::vector<double> coefficients;
  for (const double weight : constants.weights) {
    const double mixed = static_cast<float>(weight) * constants.factor;
    coefficients.push_back(constants.normalize ? mixed / constants.divisor : mixed);
  }
  return coefficients;
}

}  // namespace mergepipe
