#pragma once

#include <map>
#include <string>

#include "planner/plan.h"
#include "txn/manifest.h"
#include "txn/staging.h"

namespace mergepipe {

inline constexpr const char* kRecipeName = "mergekit_config.yml";
inline constexpr const char* kCardName = "README.md";

/// Files beside the weights: what a loader reads, and what people may edit.
struct SideFiles {
  std::map<std::string, FileRecord> files;
  std::map<std::string, FileRecord> notes;
};

/// Writes the index (where the output has several shards or the donor has one), config.json (the donor's
/// bytes, edited only where the merge changes it), all other side files of the donor, those of the tokenizer
/// as the recipe wants it, the recipe and the model card.
Result<SideFiles> WriteSideFiles(const Plan& plan, const std::string& recipe_text, Staging& staging);

/// What a merge will leave in `folder`, as later merges see it before it is made: the headers, the index and
/// the files that a loader reads.
Result<PlannedCheckpoint> PlanOutput(const Plan& plan, const std::string& folder);

/// The donor's config with the merge's changes; null where there is nothing to change or no config. Exposed
/// for tests.
Result<OrderedJson> EditedConfig(const ResolvedMerge& merge);

/// The model card: method, recipe and parents, with the front matter that the Hub reads. Exposed for tests.
std::string ModelCard(const ResolvedMerge& merge, const std::string& recipe_text);

/// Bytes that all side files take at most; for the check of free space. Fails like Checkpoint::SideFiles.
Result<uint64_t> EstimateSideFileBytes(const Plan& plan);

}  // namespace mergepipe
