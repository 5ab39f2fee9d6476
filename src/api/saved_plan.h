#pragma once

#include <string>
#include <vector>

#include "api/planning.h"

namespace mergepipe {

/// A plan in a file: docs/plan.md lists every field.
struct SavedPlan {
  RecipeText recipe;
  MergeRequest request;  ///< what decides the output: block size, seed, missing, allow_nonfinite
  uint64_t memory_bytes = 0;
  SavedDecision decision;
  std::vector<std::vector<FileStamp>> stamps;                ///< by model and shard
  std::map<std::string, std::vector<std::string>> expected;  ///< by tensor and source; "" where unknown
  /// The expected digests in the order of the merge's tensors.
  std::vector<std::vector<std::string>> Expected(const ResolvedMerge& merge) const;
};

/// Writes a plan beside its final place and renames it.
Result<void> SavePlan(const std::string& path, const Plan& plan, const RecipeText& recipe,
                      const MergeRequest& request);

/// Reads the JSON of a plan. Fails with kInvalidInput where it is none or does not match its own digest.
Result<Json> ReadPlanJson(const std::string& path);
/// Reads a plan. Fails like ReadPlanJson, with kUnsupported for another version's.
Result<SavedPlan> LoadPlan(const std::string& path);

/// Where files are not the ones that were planned for and no digest of their content is known, nobody can say
/// whether they are the same: fails with kInvalidInput, naming the model.
Result<void> CheckStamps(const SavedPlan& saved, const ResolvedMerge& merge);

}  // namespace mergepipe
