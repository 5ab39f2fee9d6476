#pragma once

#include "methods/joint_statistics.h"
#include "methods/task_vectors.h"

namespace mergepipe {

/// DELLA (Deep et al. 2024, arXiv:2406.11617): each element of a task vector stays by chance, and the chance
/// grows with the rank of its magnitude in its row, from density − epsilon for the smallest to density +
/// epsilon for the largest. What stays is rescaled by the L1 norms before and after, unless `rescale` is
/// false.
std::vector<ParamSpec> RankedDropParams(bool normalize);
Result<StatisticsRequest> RequestRankedDrop(const TensorFacts& facts, const TensorParams& params);

/// Among which elements magnitudes are ranked: a tensor is cut into groups of adjacent elements, each of
/// which holds whole rows. Rows run along the second axis (those of a matrix); a tensor of one axis is one
/// row.
struct RankGroups {
  uint64_t row = 1;     ///< elements of a row
  uint64_t stride = 1;  ///< from one element of a row to the next
  uint64_t elements() const { return row * stride; }
  static RankGroups Of(const TensorFacts& facts);
};

/// Decides for whole groups of one input's deltas which elements stay under a kRanked rule. Equal magnitudes
/// rank by index. One worker's memory.
class RankedKeep {
 public:
  /// Bytes for `inputs` inputs of `item` elements each.
  static uint64_t MemoryBytes(const RankGroups& groups, uint64_t item, size_t inputs);

  /// Begins an item of `count` elements from `first` on, both at the borders of groups.
  void Begin(const RankGroups& groups, uint64_t first, uint64_t count, size_t inputs);
  /// Takes the magnitudes of n deltas that follow what was taken of this input before; decides groups that
  /// are complete.
  template <typename T>
  void Take(const KeepRule& rule, size_t input, const T* delta, size_t n);
  /// Zeroes what does not stay among n deltas of an input that begin at `first`, an index in the tensor.
  template <typename T>
  void Apply(size_t input, T* delta, size_t n, uint64_t first) const;

 private:
  void DecideGroup(const KeepRule& rule, size_t input, uint64_t group_start);
  void SortRow(uint64_t offset);

  RankGroups groups_;
  uint64_t first_ = 0, count_ = 0;
  uint64_t taken_ = 0;                                      // of the current input
  std::vector<uint32_t> keys_;                              // of the group that is being taken
  std::vector<std::pair<uint32_t, uint32_t>> row_, other_;  // key and position in the row
  std::vector<std::vector<uint64_t>> bits_;                 // by input: one bit for each element of the item
};

}  // namespace mergepipe
