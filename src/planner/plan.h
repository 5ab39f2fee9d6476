#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "planner/budget.h"
#include "planner/evidence.h"
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
  uint64_t expert_read_bytes = 0;  ///< under the mask, samples not counted
  uint64_t full_expert_bytes = 0;  ///< what the full read of the same merge would fetch
  uint64_t write_bytes = 0;        ///< weights only
};

/// Error that omissions cause, ‖θ_A − θ_full‖, as predicted: relative to ‖θ_full‖ and to ‖θ_full − θ_0‖.
/// Nothing where it is not known, or where there is no update.
struct Deviation {
  std::optional<double> of_weights, of_update;
};

/// Upper bounds on that error: before rounding, and what rounding adds.
struct Certificate {
  double l2 = 0;
  double rounding_l2 = 0;
};

/// What the mask does with one source of one tensor.
struct SourceOutcome {
  uint64_t available_bytes = 0;  ///< what a full read fetches of it
  uint64_t read_bytes = 0;
  uint64_t lossless_bytes = 0;  ///< not read, and nothing is lost
  double error = 0;             ///< λ² ‖Δ‖² of what is left out, each source on its own
  double energy = 0;            ///< the same of all
};

/// What was decided under a budget.
struct BudgetOutcome {
  Budget request;
  std::optional<uint64_t> bytes;  ///< the budget
  Strength strength = Strength::kNone;
  uint64_t sample_bytes = 0;
  bool complete = true;  ///< nothing is left out but what changes nothing
  uint64_t lossless_bytes = 0;
  Deviation predicted;
  std::optional<Certificate> certificate;
  double cut_rate = 0;  ///< gain per byte of the first step that was not taken; 0 where none was
  std::vector<std::vector<SourceOutcome>> sources;  ///< by tensor, source; empty for tensors without experts
};

/// A resolved merge with its access mask, layout and costs.
struct Plan {
  std::shared_ptr<const ResolvedMerge> merge;
  PlanOptions options;
  std::vector<TensorPlan> tensors;  ///< by position in merge->tensors
  std::vector<TensorMask> masks;    ///< the access set, by tensor
  /// By tensor: statistics of the whole deltas, where they are known beforehand; else those of the deltas as
  /// masked are gathered while reading.
  std::vector<std::optional<TensorStatistics>> constants;
  std::vector<Unit> units;
  std::vector<bool> reference_model;  ///< by model: its bytes count as base, not as expert data
  MemoryPlan memory;
  uint64_t least_memory_bytes = 0;  ///< the smallest --memory that this merge can do with
  PlanCosts costs;
  uint64_t pair_check_bytes = 0;  ///< expert bytes that the check of merge->redundant_heads reads
  bool checks_pairs = true;       ///< that check is made
  BudgetOutcome budget;
  std::vector<std::string> identities;  ///< by model: what the plan knows it by
  /// By tensor and source: digest of what will be read, where it is known; else empty.
  std::vector<std::vector<std::string>> expected;
  std::string digest;  ///< of everything that decides the output
};

/// Stored bytes of one digest leaf of an output tensor.
inline uint64_t OutputLeafBytes(const Plan& plan, size_t tensor) {
  const ResolvedTensor& resolved = plan.merge->tensors[tensor];
  return plan.tensors[tensor].leaf_elements() * (resolved.merged ? DTypeBytes(resolved.dtype) : 1);
}

/// Memory of the program itself (code, catalogs of names, stacks), beside the limit.
inline constexpr uint64_t kProgramBytes = 64u << 20;

/// Statistics of whole deltas, by tensor, where the evidence has exactly all that the method asks for.
using KnownConstants = std::vector<std::optional<TensorStatistics>>;
Result<KnownConstants> FindConstants(const ResolvedMerge& merge, Evidence& evidence);
/// True where all statistics that a tensor asks for are of kinds that can be known beforehand.
bool TakesConstants(const StatisticsRequest& request);
/// Those of one tensor, from the thresholds (and where deltas that are not trimmed are summed, the sums) in
/// `evidence`.
std::optional<TensorStatistics> ConstantsOf(const ResolvedTensor& tensor, const TensorEvidence& evidence);

/// The full read of a merge: layout, memory, passes, costs; everything but the digest. `constants` need no
/// pass of their own. Fails with kUsage when the memory limit is below what the merge needs.
Result<Plan> DraftPlan(std::shared_ptr<const ResolvedMerge> merge, const PlanOptions& options,
                       KnownConstants constants);

/// Ends a plan: what it knows the models by, and its digest, which covers everything that decides the output.
void SealPlan(Plan& plan, std::vector<std::string> identities);

/// The plan of a full read about which nothing is known beforehand: no I/O.
Result<Plan> MakePlan(std::shared_ptr<const ResolvedMerge> merge, const PlanOptions& options);

}  // namespace mergepipe
