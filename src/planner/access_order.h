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
  /// Takes over what was added to other orders of the same plan and policy.
  void Append(std::vector<AccessOrder> others);
  std::vector<AccessStep> Finish();

 private:
  void AddUnit(size_t tensor, size_t block, const TensorErrors& errors, const ReadUnit& unit);
  void AddSources(const ReadUnit& unit, AccessStep& step);
  double Rank(size_t tensor, size_t block, const ReadUnit& unit, double energy) const;
  void ShareFairly();

  const Plan& plan_;
  Policy policy_;
  std::vector<AccessStep> steps_;
  std::vector<std::vector<uint16_t>> sources_;  // of the steps, by block: they stay where they are
};

}  // namespace mergepipe
