#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "planner/mask.h"
#include "recipe/resolve.h"

namespace mergepipe {

/// Elements of a leaf take this many bytes in the reference's stored type: the smallest block, and the grain
/// of digests and of long reductions.
inline constexpr uint64_t kLeafBytes = 16u << 10;
inline constexpr uint64_t kDefaultBlockBytes = 1u << 20;
inline constexpr uint64_t kMaxBlockBytes = 64u << 20;
/// Leaves of one digest chunk: how finely `verify` can say where a stored tensor differs.
inline constexpr uint64_t kLeavesPerChunk = 16;

struct PlanOptions {
  uint64_t memory_bytes = 0;  ///< limit for buffers and statistics together
  size_t threads = 1;         ///< that compute at the same time
  uint64_t block_bytes = kDefaultBlockBytes;
};

/// How one output tensor is worked through: in items, each a run of whole leaves.
struct TensorPlan {
  uint64_t element_bytes = 1;  ///< of the reference, stored; copies are counted in bytes
  uint64_t elements = 0;
  uint64_t item_elements = 0;
  uint64_t items = 0;
  size_t rounds = 0;      ///< statistics rounds before the first element can be computed
  bool resident = false;  ///< sources stay in memory between rounds, so that each is read once
  uint64_t leaf_elements() const { return kLeafBytes / element_bytes; }
  uint64_t passes() const { return resident ? 1 : rounds + 1; }
};

/// One output shard: a unit of work that needs no other.
struct Unit {
  std::string file_name;
  std::vector<size_t> tensors;  ///< in file order: positions in ResolvedMerge::tensors
  SafetensorsLayout layout;
};

/// Sizes of the one pool of buffers; together with the statistics they stay under the memory limit.
struct MemoryPlan {
  size_t workers = 1;             ///< items in flight
  uint64_t item_bytes = 0;        ///< of the reference, per item
  uint64_t slot_bytes = 0;        ///< buffers of one worker
  uint64_t arena_bytes = 0;       ///< each of the two arenas for resident tensors
  uint64_t scratch_bytes = 0;     ///< of one worker
  uint64_t statistics_bytes = 0;  ///< of the tensors in flight
  uint64_t total_bytes() const {
    return workers * (slot_bytes + scratch_bytes) + 2 * arena_bytes + statistics_bytes;
  }
};

/// What a plan costs, in bytes.
struct PlanCosts {
  uint64_t base_read_bytes = 0;
  uint64_t expert_read_bytes = 0;
  uint64_t write_bytes = 0;  ///< weights only
};

/// A resolved merge with its access mask, layout and costs.
struct Plan {
  std::shared_ptr<const ResolvedMerge> merge;
  PlanOptions options;
  AccessMask mask;
  std::vector<TensorPlan> tensors;  ///< by position in merge->tensors
  std::vector<Unit> units;
  std::vector<bool> reference_model;  ///< by model: its bytes count as base, not as expert data
  MemoryPlan memory;
  uint64_t least_memory_bytes = 0;  ///< the smallest --memory that this merge can do with
  PlanCosts costs;
  std::string digest;  ///< of everything that decides the output
};

/// Stored bytes of one digest leaf of an output tensor.
inline uint64_t OutputLeafBytes(const Plan& plan, size_t tensor) {
  const ResolvedTensor& resolved = plan.merge->tensors[tensor];
  return plan.tensors[tensor].leaf_elements() * (resolved.merged ? DTypeBytes(resolved.dtype) : 1);
}

/// Memory of the program itself (code, catalogs of names, stacks), beside the limit.
inline constexpr uint64_t kProgramBytes = 64u << 20;

/// Plans a merge: pure, no I/O. Fails with kUsage when the memory limit is below what the merge needs.
Result<Plan> MakePlan(std::shared_ptr<const ResolvedMerge> merge, const PlanOptions& options);

}  // namespace mergepipe
