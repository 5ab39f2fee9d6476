#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/plan.h"

namespace mergepipe {

/// One pass over the items of one tensor: a statistics round, or the last pass, which computes and writes.
struct Segment {
  size_t tensor = 0;
  size_t phase = 0;                 ///< == TensorPlan::rounds: the last pass
  std::optional<size_t> arena;      ///< resident tensors: which of the two arenas
  std::optional<size_t> waits_for;  ///< tensor that must be finished before (it holds the arena)
};

/// The order of all passes. Items are handed out in this order and nothing waits for anything behind it, so
/// workers can not block each other for ever. The first pass of a tensor comes before the later passes of the
/// one before it, so that the disk stays busy while statistics are completed. Tensors in `finished` are left
/// out.
std::vector<Segment> MakeSchedule(const Plan& plan, const std::vector<bool>& finished);

}  // namespace mergepipe
