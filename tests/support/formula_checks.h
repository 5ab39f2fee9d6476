#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/array_merge.h"

namespace mergepipe::tests {

/// A method's formula element by element, in double.
using Formula = std::function<double(size_t element)>;

/// Every element within `tolerance` of the formula's largest value.
inline void ExpectNear(const std::vector<float>& merged, const Formula& formula, double tolerance = 2e-6) {
  double largest = 0;
  for (size_t k = 0; k < merged.size(); ++k)
    largest = std::max(largest, std::fabs(formula(k)));
  for (size_t k = 0; k < merged.size(); ++k)
    ASSERT_NEAR(merged[k], formula(k), tolerance * largest) << "element " << k;
}

/// A base and experts near it.
inline ArrayMerge Experts(const std::string& method, size_t experts, size_t count = 5000) {
  const std::vector<float> base = RandomFloats(count, 1);
  std::vector<std::vector<float>> inputs;
  for (uint32_t i = 0; i < experts; ++i)
    inputs.push_back(Moved(base, 10 + i, 0.1));
  return WithDefaults(method, base, inputs);
}

inline void SetWeights(ArrayMerge& merge, const std::vector<double>& weights) {
  for (size_t i = 0; i < weights.size(); ++i)
    merge.params.inputs[i]["weight"] = weights[i];
}

/// Δ of one element, as float32 gives it.
inline double Delta(const ArrayMerge& merge, size_t input, size_t k) {
  return static_cast<double>(merge.inputs[input][k] - merge.base[k]);
}

}  // namespace mergepipe::tests
