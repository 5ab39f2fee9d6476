#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mergepipe {

/// What a selection among the elements of one tensor used, exactly.
struct ThresholdRecord {
  size_t input = 0;          ///< position among the method's inputs; 0 where all share the selection
  float magnitude = 0;       ///< elements above it were kept
  uint64_t equals = 0;       ///< elements with just this magnitude
  uint64_t equals_kept = 0;  ///< the first so many of them were kept
  /// What is compared: "" for magnitudes of which the largest stay, "outliers" for magnitudes of which the
  /// largest go, "score" for the method's score over all inputs.
  std::string of = {};
};

/// What is known of an output tensor once it is written.
struct TensorRecord {
  std::string digest;               ///< of the stored bytes: tree of leaves
  std::vector<std::string> chunks;  ///< digest of each run of kLeavesPerChunk leaves, in order
  std::vector<std::string>
      sources;  ///< digest of each source's bytes, by position in ResolvedTensor::sources
  std::vector<ThresholdRecord> thresholds;
};

}  // namespace mergepipe
