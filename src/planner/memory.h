#pragma once

#include "planner/plan.h"

namespace mergepipe {

/// Elements of a compute tile: small enough for the cache, and never across two leaves.
inline constexpr uint64_t kTileElements = 4096;

/// True for tensors whose elements are ranked within groups: their items are whole groups.
bool RanksElements(const ResolvedTensor& tensor);
/// Elements of an item of about `item_bytes` of a tensor of `elements` elements, stored in `element_bytes`
/// each: whole groups where elements are ranked, else whole leaves; not more than the tensor has.
uint64_t ItemElements(const ResolvedTensor& tensor, uint64_t elements, uint64_t element_bytes,
                      uint64_t item_bytes);

/// What one worker needs beside tiles for a tensor's statistics and ranks.
uint64_t StatisticsScratch(const Plan& plan, size_t tensor, uint64_t item_elements);

/// Rows that are laid out anew are read in pieces of this size at most.
inline constexpr uint64_t kGatherChunkBytes = 128u << 10;
/// Buffer for that, of one worker; 0 for other tensors.
uint64_t GatherScratch(const ResolvedTensor& tensor);
/// State of the means that padding rows get; 0 where a tensor has none.
uint64_t PaddingBytes(const ResolvedTensor& tensor);

/// Sets items, rounds and residency of every tensor and sizes the pool. Residency depends on the memory limit
/// alone, never on threads, since it decides how often experts are read. Fails with kUsage when the limit is
/// too small, naming what is needed.
Result<void> PlanMemory(Plan& plan);

}  // namespace mergepipe
