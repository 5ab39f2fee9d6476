#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "base/exact_sum.h"
#include "catalog/knowledge.h"
#include "kernels/kernels.h"

namespace mergepipe {

/// A run of elements of one block in memory, as base and expert store them. Begins at a leaf.
struct StoredRun {
  DType base_dtype = DType::kF32;
  DType dtype = DType::kF32;  ///< of the expert
  const std::byte* base = nullptr;
  const std::byte* data = nullptr;  ///< of the expert; null in a run of the base alone
  uint64_t first = 0;               ///< element of the tensor
  uint64_t elements = 0;
  uint64_t leaf_elements = 0;
};

/// Counts by the upper bits of magnitude keys, and sums of the lower ones where they are asked for.
template <typename Count>
struct Magnitudes {
  explicit Magnitudes(bool with_sums = false)
      : counts(kernels::kHighBuckets), low_sums(with_sums ? kernels::kHighBuckets : 0) {}
  std::vector<Count> counts;
  std::vector<uint64_t> low_sums;
};

/// What one worker needs beside buffers of bytes.
struct RunScratch {
  explicit RunScratch(bool with_sums) : magnitudes(with_sums) {}
  Magnitudes<uint32_t> magnitudes;  ///< all 0 between two runs
};

/// The statistics of one block, gathered run after run in the order of its elements.
class BlockSums {
 public:
  /// Begins a block.
  void Begin();
  /// Adds a run of an expert's deltas; its counts stay in the scratch until Fold.
  void AddDeltas(const StoredRun& run, const kernels::Kernels& kernels, RunScratch& scratch);
  /// Moves the counts of the last run to those of the tensor and clears the scratch.
  void Fold(RunScratch& scratch, Magnitudes<uint64_t>& tensor);
  /// Adds a run of the base's own values.
  void AddBase(const StoredRun& run, const kernels::Kernels& kernels);

  void FinishDeltas(size_t block, BlockColumns& columns) const;
  void FinishBase(size_t block, BaseColumns& columns) const;

  /// False when a value was NaN or infinite, or a delta does not fit into float32.
  bool finite() const;
  const std::vector<Digest128>& leaves() const { return leaves_; }
  /// Σ |Δ| of the block so far.
  const ExactSum& l1() const { return l1_; }

 private:
  template <typename T>
  void AddDeltaTiles(const StoredRun& run, const kernels::Kernels& kernels, RunScratch& scratch);
  template <typename T>
  void AddTile(const T* delta, size_t n, uint64_t first, const kernels::Loops<T>& loops, RunScratch& scratch);
  template <typename T>
  T* Sketch();
  template <typename T>
  void AddBaseTiles(const StoredRun& run, const kernels::Kernels& kernels);
  void HashLeaves(const std::byte* data, uint64_t element_bytes, const StoredRun& run);

  static constexpr size_t kExponents = 256;

  double energy_ = 0;
  uint32_t max_key_ = 0;
  uint64_t nonzeros_ = 0;
  uint64_t run_elements_ = 0;
  uint32_t run_max_key_ = 0;
  std::array<uint32_t, kExponents> exponents_{};  // [0] stays 0: what is not counted elsewhere and not 0
  alignas(64) std::array<float, kSketchBuckets> sketch32_{};
  alignas(64) std::array<double, kSketchBuckets> sketch64_{};
  ExactSum l1_;
  std::vector<Digest128> leaves_;
};

/// True where deltas and values are computed in double.
inline bool IsWide(DType a, DType b) {
  return a == DType::kF64 || b == DType::kF64;
}

/// Elements that are computed at once: they fit into the processor's cache.
inline constexpr uint64_t kTileElements = 4096;

}  // namespace mergepipe
