#pragma once

#include "methods/method.h"

namespace mergepipe {

// What the family of generalised task arithmetic shares: sparsify each delta, weigh it, mix, add to the base.

/// The per-model parameters weight and density, and the global ones normalize, rescale, lambda and int8_mask,
/// with the defaults that differ between the methods.
std::vector<ParamSpec> TaskVectorParams(bool normalize, bool rescale);

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

/// Sign election (Yadav et al. 2023, arXiv:2306.01708, section 3): per element the sign of Σ w_i Δ_i, 0
/// counting as +, is elected; only the w_i Δ_i of that sign are mixed; with `normalize` the sum is divided by
/// the sum of their weights where that is not 0.
template <typename T>
void ApplyElected(const Constants& constants, Tile<T>& tile) {
  const auto& loops = *tile.loops;
  T* vote = tile.out;
  T* mix = tile.scratch[0];
  T* weight = tile.scratch[1];
  for (size_t k = 0; k < tile.n; ++k)
    vote[k] = mix[k] = weight[k] = T{0};
  for (size_t i = 0; i < tile.inputs.size(); ++i) {
    loops.add_scaled(vote, tile.inputs[i], static_cast<T>(constants.weights[i]), tile.n);
  }
  for (size_t i = 0; i < tile.inputs.size(); ++i) {
    loops.add_agreeing(vote, tile.inputs[i], static_cast<T>(constants.weights[i]), mix, weight, tile.n);
  }
  if (constants.normalize) loops.divide_by(mix, weight, tile.n);
  if (constants.factor != 1) loops.scale(mix, static_cast<T>(constants.factor), tile.n);
  loops.add_to_base(tile.base, mix, tile.out, tile.n);
}

}  // namespace mergepipe
