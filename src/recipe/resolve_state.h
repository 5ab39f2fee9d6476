#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "recipe/model_shelf.h"
#include "recipe/resolve.h"
#include "recipe/scope.h"
#include "recipe/vocabulary_plan.h"

namespace mergepipe {

/// What the steps of one resolution share: opened models, scopes, the merge that grows, and every fault found
/// on the way.
struct ResolveState {
  const Recipe& recipe;
  const ResolveOptions& options;
  ModelShelf shelf;
  const Method* method = nullptr;
  std::optional<size_t> base;  ///< the recipe's base_model
  bool files_alone = false;    ///< every model is a single file: a raw merge, which knows no layers
  std::vector<Scope> scopes;
  std::optional<VocabularyPlan> vocabulary;  ///< where the recipe has a tokenizer
  ResolvedMerge merge;
  std::vector<std::string> faults;
  bool unsupported = false;  ///< one of the faults is a known thing that this version does not do
  bool incomplete = false;   ///< one of the faults is a tensor that only some models have

  const Checkpoint& CheckpointOf(size_t model) { return *shelf.models()[model].checkpoint; }
  const std::string& NameOf(size_t model) { return shelf.models()[model].name; }
  std::string At(const RecipePlace& place) const {
    return Format("{}:{}:{}", recipe.where, place.line, place.column);
  }
  std::optional<size_t> Open(const ModelRef& ref) { return shelf.Open(ref, At(ref.at)); }
  void Unsupported(std::string text) {
    unsupported = true;
    faults.push_back(std::move(text));
  }
};

}  // namespace mergepipe
