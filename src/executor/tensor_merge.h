#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <semaphore>
#include <vector>

#include "executor/compute_turn.h"
#include "executor/item_compute.h"
#include "methods/statistics.h"
#include "planner/plan.h"

namespace mergepipe {

/// Lets the items of a tensor pass one by one, in order. Items are started in order, so whoever waits here
/// waits for work that is under way.
class ItemTurns {
 public:
  /// Waits for the items before `item`; no longer once `stopped` says so.
  template <typename Stopped>
  void Wait(uint64_t item, Stopped stopped) {
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [&] { return next_ == item || stopped(); });
  }
  void Done(uint64_t item) { SetNext(item + 1); }
  void Restart() { SetNext(0); }
  void WakeAll() {
    const std::lock_guard lock(mutex_);
    turn_.notify_all();
  }

 private:
  void SetNext(uint64_t item) {
    const std::lock_guard lock(mutex_);
    next_ = item;
    turn_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable turn_;
  uint64_t next_ = 0;
};

/// Counts, item by item and in order, the elements that equal the threshold of each cut, so that each item
/// knows how many of them stand before it.
class EqualsChain {
 public:
  /// Takes the counts of the next item and returns those of all before it.
  std::vector<uint64_t> Pass(const std::vector<uint64_t>& counts) {
    const std::lock_guard lock(mutex_);
    before_.resize(counts.size(), 0);
    std::vector<uint64_t> before = before_;
    for (size_t i = 0; i < counts.size(); ++i)
      before_[i] += counts[i];
    return before;
  }
  /// True once the items before some finished one hold all elements that may stay: later items need not
  /// count.
  bool Saturated(const std::vector<Threshold>& cuts) {
    const std::lock_guard lock(mutex_);
    before_.resize(cuts.size(), 0);
    for (size_t i = 0; i < cuts.size(); ++i) {
      if (cuts[i].CutsAmongEquals() && before_[i] < cuts[i].equal_kept) return false;
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<uint64_t> before_;
};

/// How one output tensor is computed: its statistics, round by round, and the constants that they give. The
/// mask is the items' business: each of several masks needs an instance of its own.
class TensorMerge {
 public:
  TensorMerge(const Plan& plan, size_t tensor, const kernels::Kernels& kernels);

  const ResolvedTensor& tensor() const { return tensor_; }
  /// Null where the stored type is no number to compute with.
  const ItemCompute* compute() const { return compute_.get(); }
  /// Null where no statistics are missing, and after the last round.
  StatisticsCollector* collector() { return collector_.get(); }
  const TensorStatistics& statistics() const { return statistics_; }
  const Constants& constants() const { return constants_; }
  /// Nobody waits for its turn any longer.
  void WakeAll() { turns_.WakeAll(); }

  /// Adds an item to the current round, in its turn where the round takes items in order. Waits for those
  /// before it unless `stopped` says so; counting takes one of the `places`.
  template <typename Stopped>
  void AddStatistics(uint64_t number, const ItemData& item, std::counting_semaphore<>& places,
                     StatisticsCollector::Scratch& scratch, TileMemory& tiles, Stopped stopped) {
    const bool in_order = collector_->InOrder();
    if (in_order) turns_.Wait(number, stopped);
    {
      const ComputeTurn turn(places);
      compute_->AddStatistics(item, *collector_, scratch, tiles);
    }
    if (in_order) turns_.Done(number);
  }

  /// Ends a statistics round; after the last one the constants are prepared.
  void FinishRound();

  /// By cut: how many elements at its threshold may stay in this item, what is left after the items before
  /// it. Waits for those unless `stopped` says so; counting takes one of the `places`.
  template <typename Stopped>
  std::vector<uint64_t> ShareEquals(uint64_t number, const ItemData& item, std::counting_semaphore<>& places,
                                    TileMemory& tiles, Stopped stopped) {
    std::vector<uint64_t> shares(cuts_.size(), 0);
    if (!cuts_among_equals_) return shares;
    std::vector<uint64_t> counts(shares.size(), 0);
    if (!chain_.Saturated(cuts_)) {
      const ComputeTurn turn(places);
      counts = compute_->CountEquals(item, statistics_, tiles);
    }
    turns_.Wait(number, stopped);
    const auto before = chain_.Pass(counts);
    turns_.Done(number);
    for (size_t i = 0; i < shares.size(); ++i)
      shares[i] = cuts_[i].equal_kept > before[i] ? cuts_[i].equal_kept - before[i] : 0;
    return shares;
  }

 private:
  void Prepare();

  const ResolvedMerge& merge_;
  const ResolvedTensor& tensor_;
  std::unique_ptr<ItemCompute> compute_;
  std::unique_ptr<StatisticsCollector> collector_;
  TensorStatistics statistics_;
  Constants constants_;
  ItemTurns turns_;
  EqualsChain chain_;
  std::vector<Threshold> cuts_;
  bool cuts_among_equals_ = false;
};

}  // namespace mergepipe
