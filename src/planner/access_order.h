#pragma once

#include <span>
#include <vector>

#include "planner/block_error.h"

namespace mergepipe {

/// One entry of the order in which a merge reads: units of one block. Valid as long as its AccessOrder is.
struct AccessStep {
  uint32_t tensor = 0;
  uint32_t block = 0;
  uint32_t sequence = 0;              ///< among the steps of this block
  double rank = 0;                    ///< larger comes first
  double gain = 0;                    ///< decrease of the predicted squared error
  uint64_t bytes = 0;                 ///< fetched, all passes
  std::span<const uint16_t> sources;  ///< that the step makes known, those that share bytes included
};

/// Sorts by rank, ties by tensor, block and sequence; the same on every machine.
void SortSteps(std::vector<AccessStep>& steps);

/// Collects the steps of a merge, tensor by tensor, in the order of a policy. More budget takes more of the
/// same order, so masks are nested.
class AccessOrder {
 public:
  AccessOrder(const Plan& plan, Policy policy) : plan_(plan), policy_(policy) {}

  void Add(size_t tensor, size_t block, const TensorErrors& errors, const BlockError& error);
  /// Makes room for this many steps: growing by and by would need twice the memory.
  void Reserve(size_t steps) { steps_.reserve(steps); }
  /// Takes over what was added to another order of the same plan and policy, other tensors of it. In whatever
  /// order they come, Finish gives the same.
  void Append(AccessOrder other);
  std::vector<AccessStep> Finish();

 private:
  void MakeRow(size_t tensor, const TensorErrors& errors);
  void AddUnit(size_t tensor, size_t block, const TensorErrors& errors, const ReadUnit& unit);
  void AddSources(const ReadUnit& unit, AccessStep& step);
  double Rank(size_t tensor, size_t block, const ReadUnit& unit, double energy) const;
  void ShareFairly();

  const Plan& plan_;
  Policy policy_;
  std::vector<AccessStep> steps_;
  std::vector<std::vector<uint16_t>> sources_;  // of the steps of each tensor: they stay where they are
  size_t row_tensor_ = SIZE_MAX;                // whose steps the last of them holds
};

}  // namespace mergepipe
