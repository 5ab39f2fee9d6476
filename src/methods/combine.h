#pragma once

#include "methods/method.h"

namespace mergepipe {

/// 1/N for each of N inputs: the coefficients of methods that come near the mean.
inline std::vector<double> EvenCoefficients(const TensorFacts&, const TensorParams& params) {
  const size_t inputs = params.inputs.size();
  return std::vector<double>(inputs, inputs == 0 ? 0.0 : 1.0 / static_cast<double>(inputs));
}

/// out = Σ c_i x_i in the order of the inputs; inputs with coefficient 0 are left out, so that they change no
/// bit. `add` is one of loops.add_scaled and loops.add_fused.
template <typename T>
void CombineValues(const std::vector<double>& coefficients, Tile<T>& tile,
                   void (*add)(T*, const T*, T, size_t)) {
  bool first = true;
  for (size_t i = 0; i < tile.inputs.size(); ++i) {
    const T c = static_cast<T>(coefficients[i]);
    if (c == T{0}) continue;
    if (!first) {
      add(tile.out, tile.inputs[i], c, tile.n);
      continue;
    }
    for (size_t k = 0; k < tile.n; ++k)
      tile.out[k] = tile.inputs[i][k];
    if (c != T{1}) tile.loops->scale(tile.out, c, tile.n);
    first = false;
  }
  if (first) {
    for (size_t k = 0; k < tile.n; ++k)
      tile.out[k] = T{0};
  }
}

}  // namespace mergepipe
