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

/// Counts, item by item and in order, the elements that equal a trimming threshold, so that each item knows
/// how many of them stand before it. Items are started in order, so whoever waits here waits for work that is
/// under way.
class EqualsChain {
 public:
  explicit EqualsChain(size_t inputs) : before_(inputs, 0) {}

  /// Waits for the items before `item`, adds its counts and returns those before it; nothing when `stopped`
  /// says so.
  template <typename Stopped>
  std::vector<uint64_t> Pass(uint64_t item, const std::vector<uint64_t>& counts, Stopped stopped) {
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [&] { return next_ == item || stopped(); });
    std::vector<uint64_t> before = before_;
    for (size_t i = 0; i < counts.size(); ++i)
      before_[i] += counts[i];
    next_ = item + 1;
    turn_.notify_all();
    return before;
  }
  /// True once the items before some finished one hold all elements that may stay: later items need not
  /// count.
  bool Saturated(const std::vector<Threshold>& thresholds) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < before_.size(); ++i) {
      const bool cuts = ItemCompute::CutsAmongEquals(thresholds[i]);
      if (cuts && before_[i] < thresholds[i].equal_kept) return false;
    }
    return true;
  }
  void WakeAll() {
    const std::lock_guard lock(mutex_);
    turn_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable turn_;
  uint64_t next_ = 0;
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
  EqualsChain& chain() { return chain_; }
  bool cuts_among_equals() const { return cuts_; }

  /// Ends a statistics round; after the last one the constants are prepared.
  void FinishRound();

  /// By input: how many elements at the threshold may stay in this item, what is left after the items before
  /// it. Waits for those unless `stopped` says so; counting takes one of the `places`.
  template <typename Stopped>
  std::vector<uint64_t> ShareEquals(uint64_t number, const ItemData& item, std::counting_semaphore<>& places,
                                    TileMemory& tiles, Stopped stopped) {
    std::vector<uint64_t> shares(tensor_.inputs.size(), 0);
    if (!cuts_) return shares;
    std::vector<uint64_t> counts(shares.size(), 0);
    if (!chain_.Saturated(statistics_.thresholds)) {
      const ComputeTurn turn(places);
      counts = compute_->CountEquals(item, statistics_, tiles);
    }
    const auto before = chain_.Pass(number, counts, stopped);
    for (size_t i = 0; i < shares.size(); ++i) {
      const uint64_t kept = statistics_.thresholds[i].equal_kept;
      shares[i] = kept > before[i] ? kept - before[i] : 0;
    }
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
  EqualsChain chain_;
  bool cuts_ = false;
};

}  // namespace mergepipe
