#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "methods/method.h"

namespace mergepipe {

/// Buckets of the random projection of one block's delta. Inner products of deltas are estimated from it with
/// a standard error of about ‖Δ_i‖‖Δ_j‖/√kSketchBuckets.
inline constexpr size_t kSketchBuckets = kernels::kSketchBuckets;
/// Buckets of the coarse histogram of one block: octaves of |Δ| below the block's largest, the last one holds
/// all that is smaller.
inline constexpr size_t kOctaves = 16;

/// Statistics of one stored tensor against the same tensor of the base, as columns by block. Exact where they
/// come from an analysis.
struct BlockColumns {
  uint64_t block_elements = 0;
  uint64_t elements = 0;          ///< of the tensor; its last block is shorter
  std::vector<double> energy;     ///< Σ Δ², float64
  std::vector<uint32_t> max_key;  ///< bits of the float32 max |Δ|; 0: the block equals the base in value
  std::vector<uint32_t> nonzeros;
  std::vector<uint32_t> octaves;  ///< [blocks, kOctaves]: elements whose |Δ| has the binary exponent of the
                                  ///< maximum less the bucket; zeros are in none
  std::vector<float> sketch_scale;  ///< value of one step of `sketch`
  std::vector<int8_t> sketch;       ///< [blocks, kSketchBuckets]
  std::vector<Digest128> digest;    ///< of the stored bytes: DigestOf the digests of their leaves
  size_t blocks() const { return energy.size(); }
};

/// The same for the base: what it stores, not a delta.
struct BaseColumns {
  std::vector<double> energy;  ///< Σ θ_0², float64
  std::vector<Digest128> digest;
};

/// The exact k-th magnitude of a whole delta, and where ties with it are cut.
struct ExactThreshold {
  uint64_t kept = 0;  ///< k
  Threshold threshold;
  double l1_whole = 0;  ///< Σ |Δ|, to the bit as a merge finds it that trims to this count
  double l1_kept = 0;   ///< Σ |Δ| over what is kept, likewise
};

/// All that is known of one tensor of an expert against a base.
struct TensorKnowledge {
  BlockColumns blocks;
  double l1 = 0;                                         ///< Σ |Δ|
  std::vector<std::pair<uint32_t, uint64_t>> histogram;  ///< key >> 15, count; ascending, no zero counts
  std::vector<ExactThreshold> thresholds;                ///< for the densities asked for so far
};

}  // namespace mergepipe
