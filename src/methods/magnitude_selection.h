#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "methods/method.h"

namespace mergepipe {

/// Finds the k-th largest magnitude of one delta exactly, in streaming rounds whose memory does not grow with
/// the tensor. Counts are integers and sums are exact, so the order of additions changes nothing.
///
/// Small deltas: one round, which gathers all magnitudes. Others: round 0 counts magnitudes by their upper 16
/// bits, round 1 counts the lower 15 bits inside the bucket of the k-th.
class MagnitudeSelection {
 public:
  /// What one worker gathers between two calls of Merge.
  struct Scratch {
    std::vector<uint32_t> keys;      // small deltas
    std::vector<uint32_t> counts;    // else, by upper or lower bits
    std::vector<uint64_t> low_sums;  // by upper bits, where L1 norms are asked for
  };

  /// Keeps `count` of `elements` (count < elements); `l1`: also the sums of magnitudes before and after.
  MagnitudeSelection(uint64_t elements, uint64_t count, bool l1);

  static size_t Rounds(uint64_t elements) { return IsSmall(elements) ? 1 : 2; }
  static uint64_t MemoryBytes(uint64_t elements, bool l1);
  /// Of one worker's scratch, at most.
  static constexpr uint64_t kScratchBytes = kernels::kHighBuckets * (sizeof(uint32_t) + sizeof(uint64_t));

  /// Counts a run of the delta into the scratch.
  template <typename T>
  void Count(Scratch& scratch, const T* delta, size_t n, const kernels::Loops<T>& loops) const;
  /// The same for n zeros.
  void CountZeros(Scratch& scratch, uint64_t n) const;
  /// What round 0 counts of a delta that is not small, when somebody has it already.
  void TakeHigh(const std::vector<uint64_t>& counts, const std::vector<uint64_t>& low_sums);
  /// Takes what Count gathered and clears the scratch. Not safe for concurrent use.
  void Merge(Scratch& scratch);
  /// Changes how many are kept; before the first round ends.
  void Keep(uint64_t count) { count_ = count; }
  /// Ends a round.
  void FinishRound();

  /// After the last round.
  const Threshold& threshold() const { return threshold_; }
  double l1_whole() const { return whole_; }
  double l1_kept() const { return kept_; }

 private:
  static constexpr uint64_t kSmallElements = 32768;
  static bool IsSmall(uint64_t elements) { return elements <= kSmallElements; }
  void FinishSmall();
  void FinishHigh();
  void FinishLow();

  uint64_t elements_;
  uint64_t count_;
  bool l1_;
  size_t round_ = 0;
  std::vector<uint32_t> keys_;
  std::vector<uint64_t> counts_;    // by upper bits in round 0, by lower bits in round 1
  std::vector<uint64_t> low_sums_;  // by upper bits
  uint64_t above_ = 0;              // elements in buckets above high_
  uint32_t high_ = 0;
  Threshold threshold_;
  double whole_ = 0;
  double kept_ = 0;
};

}  // namespace mergepipe
