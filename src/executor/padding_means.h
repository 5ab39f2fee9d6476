#pragma once

#include <span>
#include <vector>

#include "executor/item_compute.h"
#include "executor/tensor_merge.h"
#include "kernels/kernels.h"
#include "planner/memory.h"

namespace mergepipe {

/// The rows beyond an output's tokens: in each source the mean of all its other rows. Items are added in
/// their order, so that the means are there for the last ones, and the sums are the same whoever adds.
class PaddingMeans {
 public:
  /// `mask` may be null; sources that it leaves out in part have no mean.
  PaddingMeans(const ResolvedTensor& tensor, const TensorMask* mask, const kernels::Kernels& kernels);

  /// True for tensors that have such rows.
  static bool Wanted(const ResolvedTensor& tensor) { return PaddingBytes(tensor) > 0; }

  /// Adds the rows of an item that are no padding, once those before it were added; waits for them unless
  /// `stopped` says so.
  template <typename Stopped>
  void Add(uint64_t number, const ItemData& item, Stopped stopped) {
    turns_.Wait(number, stopped);
    if (!stopped()) AddRows(item);
    turns_.Done(number);
  }
  void WakeAll() { turns_.WakeAll(); }

  /// By source: whether a mask reads all of it.
  static std::vector<bool> WholeSources(const TensorMask* mask, size_t sources);
  /// Writes the padding of an item that was added: the mean of sources that are read as a whole, what the
  /// reference has for all others.
  void Fill(const ItemData& item, const std::vector<bool>& whole, std::span<std::byte* const> sources) const;
  const std::vector<bool>& whole() const { return whole_; }

 private:
  void AddRows(const ItemData& item);
  template <typename T>
  void FillSource(size_t source, const ItemData& item, std::byte* out) const;

  const kernels::Kernels& kernels_;
  DType dtype_;
  uint64_t width_;
  uint64_t real_elements_;
  std::vector<bool> whole_;
  std::vector<std::vector<double>> sums_;  // by source and column
  ItemTurns turns_;
};

}  // namespace mergepipe
