#pragma once

#include <string>
#include <vector>

#include "mergepipe/mergepipe.h"
#include "recipe/documents.h"

namespace mergepipe {

/// Merges a file of several recipes ("stages"), where later ones name earlier ones as models. All stages are
/// resolved before the first data byte is read, on the headers that earlier ones will have; all faults of all
/// stages at once. Then each is merged and published by itself, in order; finished ones that nothing changed
/// for are used again. The result goes to request.output, the others to folders of request.intermediate_dir.
/// Fails like Merge.
Result<Report> MergeStages(const MergeRequest& request, const std::string& where,
                           std::vector<RecipeDocument> documents);

/// The same checks, and what each stage would read, write and need. Fails like PlanMerge.
Result<Report> PlanStages(const MergeRequest& request, const std::string& where,
                          std::vector<RecipeDocument> documents);

}  // namespace mergepipe
