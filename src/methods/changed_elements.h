#pragma once

#include <cmath>

#include "methods/combine.h"

namespace mergepipe {

// What ram and ramplus_tl share: an input counts at an element where it moves it by more than epsilon.

/// How many inputs change each element: counts[k] = #{i : |Δ_i[k]| > epsilon}.
template <typename T>
void CountChanges(std::span<T* const> inputs, T epsilon, T* counts, size_t n) {
  for (size_t k = 0; k < n; ++k)
    counts[k] = T{0};
  for (const T* delta : inputs) {
    for (size_t k = 0; k < n; ++k)
      counts[k] += std::fabs(delta[k]) > epsilon ? T{1} : T{0};
  }
}

/// out = base + Σ_i unique_i Δ_i where one input alone changes an element, + the mean of those that do where
/// there are several. `constants.factor` is epsilon, `constants.weights` the unique_i.
template <typename T>
void ApplyChanges(const Constants& constants, Tile<T>& tile) {
  const T epsilon = static_cast<T>(constants.factor);
  T* mix = tile.scratch[0];
  T* counts = tile.scratch[1];
  CountChanges(tile.inputs, epsilon, counts, tile.n);
  for (size_t k = 0; k < tile.n; ++k)
    mix[k] = T{0};
  for (size_t i = 0; i < tile.inputs.size(); ++i) {
    const T* delta = tile.inputs[i];
    const T unique = static_cast<T>(constants.weights[i]);
    for (size_t k = 0; k < tile.n; ++k) {
      const T part = counts[k] == T{1} ? delta[k] * unique : delta[k] / counts[k];
      mix[k] += std::fabs(delta[k]) > epsilon ? part : T{0};
    }
  }
  tile.loops->add_to_base(tile.base, mix, tile.out, tile.n);
}

/// epsilon.
inline ParamSpec LeastChangeParam() {
  return {.name = "epsilon",
          .default_value = 1e-5,
          .minimum = 0.0,
          .doc = "a model changes an element where it moves it by more than this"};
}

}  // namespace mergepipe
