#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/item_compute.h"
#include "methods/statistics.h"
#include "planner/plan.h"
#include "txn/digest_tree.h"
#include "txn/record.h"

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

/// The state of one output tensor between its first item and its last. Which items run when is the engine's
/// business.
class TensorTask {
 public:
  TensorTask(const Plan& plan, size_t tensor, const kernels::Kernels& kernels);

  const ResolvedTensor& tensor() const { return tensor_; }
  const TensorPlan& plan() const { return plan_; }
  const ItemCompute* compute() const { return compute_.get(); }
  StatisticsCollector* collector() { return collector_.get(); }
  const TensorStatistics& statistics() const { return statistics_; }
  const Constants& constants() const { return constants_; }
  EqualsChain& chain() { return chain_; }
  bool cuts_among_equals() const { return cuts_; }

  uint64_t FirstElement(uint64_t item) const { return item * plan_.item_elements; }
  uint64_t Count(uint64_t item) const {
    return std::min(plan_.item_elements, plan_.elements - FirstElement(item));
  }
  /// Stored bytes of one element of a source; 1 for tensors that are copied, whose elements are bytes.
  uint64_t SourceBytes(size_t source) const { return source_bytes_[source]; }
  /// Stored bytes of one element of the reference, where its values can be computed with.
  uint64_t compute_bytes() const { return DTypeBytes(tensor_.dtype); }
  uint64_t OutputBytes() const { return tensor_.merged ? DTypeBytes(tensor_.dtype) : 1; }

  /// Hashes what was read of a source; sources that share blocks must come after those that hold them.
  void HashSource(size_t source, const ItemData& item);
  void HashOutput(uint64_t item, std::span<const std::byte> stored);

  /// Ends a statistics round; after the last one the constants are prepared.
  void FinishRound(size_t round);
  TensorRecord Record() const;

  /// Where the items of a resident tensor lie, by item and source.
  std::vector<std::vector<const std::byte*>> resident;

 private:
  void Prepare();
  std::string SourceDigest(size_t source) const;

  const ResolvedMerge& merge_;
  const ResolvedTensor& tensor_;
  const TensorPlan& plan_;
  const TensorMask& mask_;
  const uint64_t block_leaves_;
  std::vector<uint64_t> source_bytes_;
  std::unique_ptr<ItemCompute> compute_;
  std::unique_ptr<StatisticsCollector> collector_;
  TensorStatistics statistics_;
  Constants constants_;
  EqualsChain chain_;
  bool cuts_ = false;
  DigestTree output_;
  std::vector<DigestTree> sources_;
};

}  // namespace mergepipe
