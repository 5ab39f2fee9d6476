#pragma once

#include <algorithm>
#include <cmath>

#include "methods/combine.h"
#include "methods/task_vectors.h"

namespace mergepipe {

// What methods share whose result lies in the span of their inputs: θ = Σ c_i x_i, or θ_0 + Σ c_i Δ_i where
// the inputs are deltas. All norms and angles come from the inner products of the inputs (the Gram matrix),
// so that the coefficients are known before the first element is computed.

/// The inner products <x_i, x_j> of one vector's inputs, and what follows from them.
class Gram {
 public:
  /// `products`: [inputs, inputs], row-major; not owned.
  Gram(const double* products, size_t inputs) : products_(products), inputs_(inputs) {}
  size_t inputs() const { return inputs_; }
  double Of(size_t i, size_t j) const { return products_[i * inputs_ + j]; }
  double Norm(size_t i) const { return std::sqrt(Of(i, i)); }
  /// <x_i, Σ c_j x_j>
  double Of(size_t i, const std::vector<double>& c) const {
    double sum = 0;
    for (size_t j = 0; j < inputs_; ++j)
      sum += c[j] * Of(i, j);
    return sum;
  }
  /// ‖Σ c_j x_j‖; what cancels to less than nothing is 0.
  double Norm(const std::vector<double>& c) const {
    double sum = 0;
    for (size_t i = 0; i < inputs_; ++i)
      sum += c[i] * Of(i, c);
    return std::sqrt(std::max(0.0, sum));
  }

 private:
  const double* products_;
  size_t inputs_;
};

/// The shares sin((1-t)Ω)/sin Ω and sin(tΩ)/sin Ω of two vectors on the arc between them, cos Ω given; it
/// must not be 1 or -1.
inline std::vector<double> ArcShares(double cosine, double t) {
  const double angle = std::acos(cosine);
  return {std::sin((1 - t) * angle) / std::sin(angle), std::sin(t * angle) / std::sin(angle)};
}

/// θ = Σ weights_i x_i, added to the base where the inputs are deltas.
template <typename T>
void ApplyCombination(const Constants& constants, Tile<T>& tile) {
  if (constants.domain == Domain::kDeltas) return ApplySum(constants, tile);
  CombineValues(constants.weights, tile, tile.loops->add_scaled);
}

}  // namespace mergepipe
