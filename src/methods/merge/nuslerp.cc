#include "methods/vector_gram.h"

namespace mergepipe {
namespace {

constexpr double kTinyWeight = 1e-6;
constexpr double kTinyNorm = 1e-7;
// Nearer than this to parallel or opposite, sin Ω would be noise, and the sphere is flat to the last bit.
constexpr double kColinear = 1e-14;

bool IsFlat(const TensorParams& params) {
  return params.Get("nuslerp_flatten") != 0;
}

VectorSet Vectors(const TensorFacts& facts, const TensorParams& params) {
  return VectorSet::Of(facts, /*columns=*/params.Get("nuslerp_row_wise") != 0);
}

double Share(const TensorParams& params) {
  const double first = params.Get(0, "weight"), second = params.Get(1, "weight");
  return std::fabs(first + second) < kTinyWeight ? 0.5 : second / (first + second);
}

Result<StatisticsRequest> Request(const TensorFacts& facts, const TensorParams& params) {
  if (IsFlat(params)) return StatisticsRequest{.gram = true};
  return RequestVectorGram(Vectors(facts, params), params.inputs.size());
}

// Of one vector: sin((1-t)Ω)/sin Ω and sin(tΩ)/sin Ω, or (1-t) and t where the two are colinear.
std::vector<double> OnTheArc(const Gram& gram, double t) {
  const double lengths = std::max(gram.Norm(0), kTinyNorm) * std::max(gram.Norm(1), kTinyNorm);
  const double cosine = std::clamp(gram.Of(0, 1) / lengths, -1.0, 1.0);
  if (1 - cosine * cosine <= kColinear) return {1 - t, t};
  return ArcShares(cosine, t);
}

Constants Prepare(const TensorFacts& facts, const TensorParams& params, const TensorStatistics& statistics) {
  const double t = Share(params);
  return PrepareVectors(Vectors(facts, params), facts, params.inputs.size(), statistics,
                        [&](const Gram& gram) { return OnTheArc(gram, t); });
}

// As if on the straight line between the two.
std::vector<double> Coefficients(const TensorFacts&, const TensorParams& params) {
  return {1 - Share(params), Share(params)};
}

}  // namespace

const Method& Method_nuslerp() {
  static const Method method = {
      .name = "nuslerp",
      .summary =
          "spherical interpolation between two models, or between their task vectors where there is a base",
      .paper = "Shoemake 1985, Animating Rotation with Quaternion Curves",
      .formula =
          "θ = sin((1-t)Ω)/sin Ω · x_1 + sin(tΩ)/sin Ω · x_2, t = w_2/(w_1+w_2), cos Ω = <x_1, "
          "x_2>/(‖x_1‖‖x_2‖); "
          "x_i = θ_i, or Δ_i added to θ_0 where there is a base",
      .needs_base = false,
      .min_inputs = 2,
      .max_inputs = 2,
      .params = {{.name = "weight", .per_model = true, .required = true, .doc = "share of this model"},
                 {.name = "nuslerp_flatten",
                  .type = ParamType::kBool,
                  .default_value = 1.0,
                  .doc =
                      "the whole tensor is one vector; else each vector along an axis is turned on its own"},
                 {.name = "nuslerp_row_wise",
                  .type = ParamType::kBool,
                  .default_value = 0.0,
                  .doc = "without flatten: vectors along the first axis (columns of a matrix) instead of the "
                         "last (its "
                         "rows)"}},
      .request = Request,
      .prepare = Prepare,
      .apply32 = ApplyVectors<float>,
      .apply64 = ApplyVectors<double>,
      .coefficients = Coefficients,
  };
  return method;
}

}  // namespace mergepipe
