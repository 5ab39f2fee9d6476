#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mergepipe {

/// What trimming used for one input of one tensor, exactly.
struct ThresholdRecord {
  size_t input = 0;          ///< position among the method's inputs
  float magnitude = 0;       ///< elements above it were kept
  uint64_t equals = 0;       ///< elements with just this magnitude
  uint64_t equals_kept = 0;  ///< the first so many of them were kept
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
