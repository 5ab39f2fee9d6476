#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/exact_sum.h"
#include "methods/joint_statistics.h"
#include "methods/magnitude_selection.h"
#include "methods/method.h"
#include "methods/ranked_drop.h"

namespace mergepipe {

/// Gathers the statistics of one tensor in streaming rounds over its data: sums and inner products in round
/// 0, the k-th magnitudes in as many as MagnitudeSelection takes. Sums are exact and counts are integers, so
/// the order of items, and with it threads and block size, changes nothing. Memory: at most 512 KiB for each
/// trimmed input (1 MiB with L1 norms), independent of the tensor's size.
class StatisticsCollector {
 public:
  /// A worker's scratch between two merges into the shared state.
  struct Scratch {
    MagnitudeSelection::Scratch magnitudes, outliers;
    std::vector<ExactSum> sums;
    JointScratch joint;
  };

  StatisticsCollector(StatisticsRequest request, size_t inputs, uint64_t elements);

  size_t rounds() const { return rounds_; }
  size_t round() const { return round_; }
  const StatisticsRequest& request() const { return request_; }
  /// Bytes of shared state.
  static uint64_t MemoryBytes(const StatisticsRequest& request, size_t inputs, uint64_t elements);
  static size_t Rounds(const StatisticsRequest& request, uint64_t elements);
  /// Bytes of one worker's scratch.
  static uint64_t ScratchBytes(const StatisticsRequest& request, uint64_t elements);

  /// True when this round needs the deltas of this input on their own.
  bool WantsInput(size_t input) const;
  /// True when this round needs all inputs of a tile together (inner products).
  bool WantsTiles() const { return request_.gram && round_ == 0; }

  /// What this round gathers for the method's own statistics; null: nothing.
  JointStatistics* Joint() {
    return joint_ != nullptr && round_ < request_.joint->Rounds() ? joint_.get() : nullptr;
  }
  /// True when this round takes items one by one, in the order of the tensor.
  bool InOrder() { return Joint() != nullptr && Joint()->InOrder(); }

  /// Counts one tile of one input's deltas into the scratch. May change the deltas. `ranked` decides for
  /// inputs under a kRanked rule, and may be null where there are none.
  template <typename T>
  void AddInput(Scratch& scratch, size_t input, T* delta, size_t n, uint64_t first_index,
                const kernels::Loops<T>& loops, const RankedKeep* ranked = nullptr) const;
  /// The same for n zeros.
  void AddZeros(Scratch& scratch, size_t input, uint64_t n) const;
  /// Adds the inner products of one tile.
  template <typename T>
  void AddTile(Scratch& scratch, const std::vector<T*>& inputs, size_t n,
               const kernels::Loops<T>& loops) const;

  /// Merges what AddInput gathered for `input` and clears the scratch. Safe for concurrent use.
  void MergeInput(Scratch& scratch, size_t input);
  /// Merges what AddTile gathered and clears the scratch. Safe for concurrent use.
  void MergeTiles(Scratch& scratch);
  void MergeJoint(Scratch& scratch);

  /// Ends a round; no other call may run beside it.
  void FinishRound();
  /// The result after the last round; to be taken once.
  TensorStatistics Statistics();

 private:
  bool Trims(size_t input) const { return selections_[input] != nullptr || outliers_[input] != nullptr; }
  void NoteL1(size_t input, TensorStatistics& result) const;

  StatisticsRequest request_;
  size_t inputs_;
  size_t rounds_;
  size_t round_ = 0;
  mutable std::mutex mutex_;
  // By input; null where nothing is trimmed, and where nothing is too large.
  std::vector<std::unique_ptr<MagnitudeSelection>> selections_, outliers_;
  std::unique_ptr<JointStatistics> joint_;
  std::vector<ExactSum> whole_, kept_, gram_;
};

/// Applies a keep rule other than kRanked to a run of one input's deltas in place. `equals_left` counts how
/// many more elements with just the threshold's magnitude may stay (kLargest); it is decreased by those that
/// did.
template <typename T>
void KeepElements(const KeepRule& rule, const Threshold& threshold, uint64_t* equals_left, T* delta, size_t n,
                  uint64_t first_index, const kernels::Loops<T>& loops);

/// A selection that all inputs share: where an element's score is not kept by the threshold, it becomes 0 in
/// every input. `score` is used up.
template <typename T>
void SelectByScore(const Threshold& threshold, uint64_t* equals_left, T* score, std::span<T* const> inputs,
                   size_t n, uint64_t first_index, const kernels::Loops<T>& loops) {
  KeepElements({.kind = KeepRule::Kind::kLargest}, threshold, equals_left, score, n, first_index, loops);
  for (T* input : inputs) {
    for (size_t k = 0; k < n; ++k)
      input[k] = score[k] != 0 ? input[k] : T{0};
  }
}

/// The other end: elements above the threshold go, and so do the first `equals_left` of those that equal it.
template <typename T>
void DropOutliers(const Threshold& threshold, uint64_t* equals_left, T* delta, size_t n, uint64_t first_index,
                  const kernels::Loops<T>& loops);

}  // namespace mergepipe
