#pragma once

#include <algorithm>

#include "base/try.h"
#include "methods/method.h"

namespace mergepipe {

// What the family of generalised task arithmetic shares: sparsify each delta, weigh it, mix, add to the base.

/// The per-model parameters weight and density, and the global ones normalize, rescale, lambda and int8_mask,
/// with the defaults that differ between the methods.
std::vector<ParamSpec> TaskVectorParams(bool normalize, bool rescale);

/// How the weighted task vectors are mixed: added up, or with a sign election per element.
enum class Mix { kSum, kElected };

/// Completes the record of a method of this family: how it prepares, mixes and applies.
Method TaskVectorMethod(Mix mix, Method record);

/// int8_mask, which changes nothing.
ParamSpec MaskTypeParam();

/// What survives of each delta under magnitude trimming: max(1, trunc(density · n)) largest, none at density
/// 0, all from 1 on.
KeepRule KeepLargest(const TensorFacts& facts, double density);
/// What survives under random dropping: each element with probability `density` (as float32), all from 1 on.
/// Fails with kUsage below 0.
Result<KeepRule> KeepRandom(const TensorFacts& facts, size_t input, double density);

/// Weights, the L1 rescaling factors (‖Δ‖₁ before over after keeping; 1 where either is under 1e-7), divisor,
/// factor.
Constants PrepareTaskVectors(const TensorFacts& facts, const TensorParams& params,
                             const TensorStatistics& statistics);

/// λ w_i, over Σ w_j with `normalize`.
std::vector<double> TaskVectorCoefficients(const TensorFacts& facts, const TensorParams& params);

/// What a method that sparsifies asks for: the rule keep(input) of each input, and with `rescale` the L1
/// norms.
template <typename Keep>
Result<StatisticsRequest> RequestSparsified(const TensorParams& params, const Keep& keep) {
  StatisticsRequest request{.l1 = params.Get("rescale") != 0};
  for (size_t i = 0; i < params.inputs.size(); ++i)
    request.keep.push_back(MP_TRY(keep(i)));
  return request;
}
/// The same for rules of chance: without the norms where nothing is dropped.
template <typename Keep>
Result<StatisticsRequest> RequestDropped(const TensorParams& params, const Keep& keep) {
  StatisticsRequest request = MP_TRY(RequestSparsified(params, keep));
  const bool drops = std::any_of(request.keep.begin(), request.keep.end(), [](const KeepRule& rule) {
    return rule.kind == KeepRule::Kind::kRandom || rule.kind == KeepRule::Kind::kRanked;
  });
  request.l1 = request.l1 && drops;
  return request;
}

/// mix = λ · (Σ w_i Δ_i / Σ w_i), out = base + mix; the division only with `normalize`.
template <typename T>
void ApplySum(const Constants& constants, Tile<T>& tile) {
  const auto& loops = *tile.loops;
  T* mix = tile.scratch[0];
  for (size_t k = 0; k < tile.n; ++k)
    mix[k] = T{0};
  for (size_t i = 0; i < tile.inputs.size(); ++i) {
    loops.add_scaled(mix, tile.inputs[i], static_cast<T>(constants.weights[i]), tile.n);
  }
  if (constants.normalize) loops.divide(mix, static_cast<T>(constants.divisor), tile.n);
  if (constants.factor != 1) loops.scale(mix, static_cast<T>(constants.factor), tile.n);
  loops.add_to_base(tile.base, mix, tile.out, tile.n);
}

/// Sign election (Yadav et al. 2023, arXiv:2306.01708, section 3): per element the sign of Σ votes(i) Δ_i, 0
/// counting as +, is elected; scratch[0] = Σ w_i Δ_i over those of that sign, scratch[1] the sum of their
/// weights.
template <typename T, typename Votes>
void Elect(const Constants& constants, const Votes& votes, Tile<T>& tile) {
  const auto& loops = *tile.loops;
  T* vote = tile.out;
  T* mix = tile.scratch[0];
  T* weight = tile.scratch[1];
  for (size_t k = 0; k < tile.n; ++k)
    vote[k] = mix[k] = weight[k] = T{0};
  for (size_t i = 0; i < tile.inputs.size(); ++i)
    loops.add_scaled(vote, tile.inputs[i], static_cast<T>(votes(i)), tile.n);
  for (size_t i = 0; i < tile.inputs.size(); ++i)
    loops.add_agreeing(vote, tile.inputs[i], static_cast<T>(constants.weights[i]), mix, weight, tile.n);
}

/// Weights vote as they mix; with `normalize` the sum is divided by the sum of the weights that agreed, where
/// that is not 0.
template <typename T>
void ApplyElected(const Constants& constants, Tile<T>& tile) {
  const auto& loops = *tile.loops;
  T* mix = tile.scratch[0];
  T* weight = tile.scratch[1];
  Elect(
      constants, [&](size_t i) { return constants.weights[i]; }, tile);
  if (constants.normalize) loops.divide_by(mix, weight, tile.n);
  if (constants.factor != 1) loops.scale(mix, static_cast<T>(constants.factor), tile.n);
  loops.add_to_base(tile.base, mix, tile.out, tile.n);
}

}  // namespace mergepipe
