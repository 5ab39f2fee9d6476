#pragma once

#include "planner/plan.h"

namespace mergepipe {

/// Elements of a compute tile: small enough for the cache, and never across two leaves.
inline constexpr uint64_t kTileElements = 4096;

/// Sets items, rounds and residency of every tensor and sizes the pool. Residency depends on the memory limit
/// alone, never on threads, since it decides how often experts are read. Fails with kUsage when the limit is
/// too small, naming what is needed.
Result<void> PlanMemory(Plan& plan);

}  // namespace mergepipe
