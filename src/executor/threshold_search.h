#pragma once

#include <cstdint>
#include <vector>

#include "catalog/knowledge.h"
#include "executor/block_sums.h"
#include "kernels/kernels.h"
#include "methods/magnitude_selection.h"

namespace mergepipe {

/// Finds the exact k-th magnitudes of one delta, and where ties with them are cut, when its magnitudes have
/// been counted by their upper bits: once more over the data to count (runs in any order), and once to
/// locate. Numbers are to the bit those that a merge finds.
class ThresholdSearch {
 public:
  using Scratch = std::vector<MagnitudeSelection::Scratch>;  ///< by threshold

  /// `kept`: the counts k, each below `elements`.
  ThresholdSearch(uint64_t elements, const std::vector<uint64_t>& kept,
                  const Magnitudes<uint64_t>& magnitudes);
  static uint64_t MemoryBytes(size_t thresholds);

  /// Counts a run. Safe for concurrent use with scratches of their own.
  void Count(const StoredRun& run, const kernels::Kernels& kernels, Scratch& scratch) const;
  /// Takes what was counted. Not safe for concurrent use.
  void Merge(Scratch& scratch);
  void FinishCounting();

  /// Elements of a run that have just the magnitude of each threshold.
  std::vector<uint64_t> CountEquals(const StoredRun& run, const kernels::Kernels& kernels) const;
  /// Looks for the cuts in a run when `before` such elements lie before it; counts on.
  void Locate(const StoredRun& run, const kernels::Kernels& kernels, std::vector<uint64_t>& before);
  /// True when a cut lies among `equals` elements after `before`.
  bool CutsWithin(const std::vector<uint64_t>& before, const std::vector<uint64_t>& equals) const;

  const std::vector<ExactThreshold>& thresholds() const { return thresholds_; }

 private:
  template <typename T>
  void LocateTile(const T* delta, size_t n, uint64_t first, const kernels::Loops<T>& loops,
                  std::vector<uint64_t>& before);

  std::vector<MagnitudeSelection> selections_;
  std::vector<ExactThreshold> thresholds_;
};

}  // namespace mergepipe
