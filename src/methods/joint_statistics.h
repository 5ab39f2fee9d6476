#pragma once

#include <memory>
#include <vector>

#include "base/exact_sum.h"
#include "methods/magnitude_selection.h"
#include "methods/method.h"

namespace mergepipe {

/// A run of elements as statistics see it: all inputs side by side, deltas or values as the method's domain
/// says. It crosses no leaf, and begins where a leaf's tile begins.
template <typename T>
struct StatisticsTile {
  size_t n = 0;
  uint64_t first = 0;  ///< index of its first element in the tensor
  std::span<T* const> inputs;
  T* scratch = nullptr;  ///< n elements
  const kernels::Loops<T>* loops = nullptr;
};

/// What one worker gathers between two merges into the shared state.
struct JointScratch {
  std::vector<MagnitudeSelection::Scratch> magnitudes;
  std::vector<ExactSum> sums;
  std::vector<uint64_t> counts;
  std::vector<double> partials;  ///< in the order of the tiles
};

/// Statistics of a tensor that are one method's own, gathered in streaming rounds over all inputs. A subclass
/// makes sure that what comes out does not depend on how the work was cut: counts, exact sums, sums over
/// fixed runs, or rounds in order.
class JointStatistics {
 public:
  virtual ~JointStatistics() = default;
  /// True when this round takes items one by one, in the order of the tensor.
  virtual bool InOrder() const { return false; }
  virtual void Add(JointScratch& scratch, const StatisticsTile<float>& tile) = 0;
  virtual void Add(JointScratch& scratch, const StatisticsTile<double>& tile) = 0;
  /// Takes what Add gathered for an item and clears the scratch; one call at a time.
  virtual void Merge(JointScratch& scratch) = 0;
  /// Ends a round; no other call runs beside it.
  virtual void FinishRound() = 0;
  /// After the last round.
  virtual JointResult TakeResult() = 0;
};

/// What a request says of such statistics before there is any data.
class JointStatisticsSpec {
 public:
  virtual ~JointStatisticsSpec() = default;
  virtual size_t Rounds() const = 0;
  /// Bytes of shared state, and of one worker's scratch.
  virtual uint64_t MemoryBytes() const = 0;
  virtual uint64_t ScratchBytes() const { return 0; }
  virtual std::unique_ptr<JointStatistics> Make() const = 0;
};

/// A tensor as vectors along its last axis: the rows of a matrix; a tensor of one axis is one row.
struct Rows {
  uint64_t elements = 0;
  uint64_t length = 1;
  uint64_t count() const { return length == 0 ? 0 : elements / length; }
  static Rows Of(const TensorFacts& facts) {
    return {facts.elements, facts.shape.empty() ? std::max<uint64_t>(1, facts.elements) : facts.shape.back()};
  }
};

/// Calls visit(row, at, n) for each part of a row in elements [first, first + n) of a tensor; `at` counts
/// from `first`.
template <typename Visit>
void ForRows(const Rows& rows, uint64_t first, size_t n, const Visit& visit) {
  for (size_t at = 0; at < n;) {
    const uint64_t row = (first + at) / rows.length;
    const auto part = static_cast<size_t>(std::min<uint64_t>(n - at, (row + 1) * rows.length - (first + at)));
    visit(row, at, part);
    at += part;
  }
}

}  // namespace mergepipe
