#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "catalog/sketch.h"

namespace mergepipe {

/// Cosines between the deltas of a tensor's sources, block by block, as their sketches tell. A block's sketch
/// is noisy: what lies below its noise counts as the cosine over all blocks, where the noise averages out, so
/// that experts which agree a little everywhere are seen to; and what lies below the noise there as 0.
class SketchCosines {
 public:
  SketchCosines() = default;
  /// `sources`: null where there is no sketch; the cosines of those are not asked for.
  SketchCosines(std::span<const BlockColumns* const> sources, size_t blocks);

  double Of(size_t a, size_t b, size_t block) const {
    const size_t pair = a > b ? PairOf(a, b) : PairOf(b, a);
    const auto cosine = static_cast<double>(of_block_[block * of_tensor_.size() + pair]);
    return std::fabs(cosine) >= kBlockNoise ? cosine : of_tensor_[pair];
  }

 private:
  // Cosines below 3.5 standard errors of the sketch count as nothing.
  static constexpr double kErrors = 3.5;
  static inline const double kBlockNoise = kErrors / std::sqrt(static_cast<double>(kSketchBuckets));

  static size_t PairOf(size_t larger, size_t smaller) { return larger * (larger - 1) / 2 + smaller; }
  struct Sums;
  void AddBlock(size_t block, Sums& sums);

  std::vector<float> of_block_;    // [blocks, pairs]
  std::vector<double> of_tensor_;  // by pair
};

}  // namespace mergepipe
