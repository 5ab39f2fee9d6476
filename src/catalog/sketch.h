#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "catalog/knowledge.h"
#include "kernels/kernels.h"

namespace mergepipe {

/// A random projection in 8 bits per bucket: bucket ≈ scale · quantised.
struct QuantisedSketch {
  float scale = 0;
  int8_t values[kSketchBuckets] = {};
};

/// Rounds sums to the nearest of 255 steps: scale = max |sum| / 127.
QuantisedSketch Quantise(std::span<const double> sums);

/// The estimate of Σ Δ_a Δ_b over one block: scale_a · scale_b · Σ q_a q_b, the sum in integers.
double SketchDot(const BlockColumns& a, const BlockColumns& b, size_t block);

/// SketchDot of all pairs of `experts` at one block, [experts, experts]: `gram` has room for them. `scratch`
/// is kept between calls.
void SketchGram(std::span<const BlockColumns* const> experts, size_t block, const kernels::Kernels& kernels,
                std::vector<int32_t>& scratch, double* gram);

}  // namespace mergepipe
