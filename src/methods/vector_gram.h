#pragma once

#include "methods/gram_combination.h"
#include "methods/joint_statistics.h"

namespace mergepipe {

/// A tensor as a set of vectors that are combined each on their own.
struct VectorSet {
  uint64_t elements = 0;
  uint64_t length = 1;  ///< of a run of elements of which each belongs to one vector (columns), or of a row
  bool columns =
      false;  ///< vectors along the first axis, `length` of them; else along the last, of that length
  uint64_t count() const { return columns ? length : elements / length; }

  static VectorSet Of(const TensorFacts& facts, bool columns);
};

/// Asks for the inner products of the inputs for each vector: JointResult::values is [vectors, pairs], pairs
/// (i, j) with i <= j in the order (0,0), (0,1), …, (1,1), …. A lone vector is asked for as the Gram matrix
/// of the tensor. Sums are taken in float64, in the order of the tensor. Memory: 8 bytes for each vector,
/// pair and input.
StatisticsRequest RequestVectorGram(const VectorSet& vectors, size_t inputs);

/// Calls coefficients(gram) for each vector and keeps what it gives, one number for each input.
template <typename Coefficients>
Constants PrepareVectors(const VectorSet& vectors, const TensorFacts& facts, size_t inputs,
                         const TensorStatistics& statistics, const Coefficients& coefficients) {
  Constants constants{.domain = facts.domain};
  if (!statistics.gram.empty()) {
    constants.weights = coefficients(Gram(statistics.gram.data(), inputs));
    return constants;
  }
  constants.vector_length = vectors.length;
  constants.columns = vectors.columns;
  constants.joint.values.reserve(vectors.count() * inputs);
  std::vector<double> square(inputs * inputs);
  const double* pair = statistics.joint.values.data();
  for (uint64_t v = 0; v < vectors.count(); ++v) {
    for (size_t i = 0; i < inputs; ++i) {
      for (size_t j = i; j < inputs; ++j)
        square[i * inputs + j] = square[j * inputs + i] = *pair++;
    }
    for (const double c : coefficients(Gram(square.data(), inputs)))
      constants.joint.values.push_back(c);
  }
  return constants;
}

/// θ = Σ c_i x_i with each vector's own coefficients, added to the base where the inputs are deltas.
template <typename T>
void ApplyVectors(const Constants& constants, Tile<T>& tile) {
  if (constants.vector_length == 0) return ApplyCombination(constants, tile);
  const bool deltas = constants.domain == Domain::kDeltas;
  const size_t inputs = tile.inputs.size();
  const double* values = constants.joint.values.data();
  T* mix = deltas ? tile.scratch[0] : tile.out;
  for (size_t k = 0; k < tile.n; ++k)
    mix[k] = T{0};
  if (constants.columns) {
    for (size_t k = 0; k < tile.n; ++k) {
      const double* c = values + (tile.first + k) % constants.vector_length * inputs;
      for (size_t i = 0; i < inputs; ++i)
        mix[k] += static_cast<T>(c[i]) * tile.inputs[i][k];
    }
  } else {
    ForRows({.length = constants.vector_length}, tile.first, tile.n, [&](uint64_t row, size_t at, size_t n) {
      for (size_t i = 0; i < inputs; ++i)
        tile.loops->add_scaled(mix + at, tile.inputs[i] + at, static_cast<T>(values[row * inputs + i]), n);
    });
  }
  if (deltas) tile.loops->add_to_base(tile.base, mix, tile.out, tile.n);
}

}  // namespace mergepipe
