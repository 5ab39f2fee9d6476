#pragma once

#include <span>

#include "executor/scan.h"
#include "planner/plan.h"

namespace mergepipe {

/// How a sweep divides its memory.
struct SweepMemory {
  size_t workers = 1;
  uint64_t item_bytes = 0;    ///< of the reference, per item
  uint64_t input_bytes = 0;   ///< buffers of one worker for the sources of an item
  uint64_t gather_bytes = 0;  ///< of one worker, to lay rows out anew
  uint64_t output_bytes = 0;  ///< and for each of two outputs
  uint64_t arena_bytes = 0;   ///< for a tensor that stays in memory between its passes; 0: none does
  size_t states = 1;          ///< variants whose statistics are gathered at once
};

/// Elements of one item of a tensor: whole leaves, or all of it.
uint64_t SweepItemElements(const Plan& plan, size_t tensor, uint64_t item_bytes);
/// Stored bytes of one element of a source; where tensors are copied elements are bytes.
uint64_t SweepSourceBytes(const Plan& plan, size_t tensor, size_t source);
/// Buffers for the sources of `elements` elements, each on whole pages.
uint64_t SweepInputBytes(const Plan& plan, size_t tensor, uint64_t elements);

/// Divides limits.memory_bytes for a sweep over `variants` masks that take `mask_bytes`. Fails with kUsage
/// when it is too little, naming what is needed.
Result<SweepMemory> DivideSweepMemory(const Plan& plan, size_t variants, uint64_t mask_bytes,
                                      const ScanLimits& limits);

}  // namespace mergepipe
