#pragma once

#include <vector>

#include "recipe/recipe.h"

namespace mergepipe {

/// How the recipes of one file depend on each other; numbers are positions in the file.
struct StageOrder {
  std::vector<std::vector<size_t>> needs;  ///< by recipe: those whose results it takes as models
  std::vector<size_t> order;               ///< each behind those that it needs, else as in the file
  size_t result = 0;                       ///< the one without a name, else the last that no other needs
};

/// A model whose path is the name of another recipe is that recipe's result; nothing else is. Fails with
/// kUsage on a name that is given twice, on two recipes without a name, and on recipes that need each other;
/// all faults at once.
Result<StageOrder> OrderStages(const std::vector<Recipe>& recipes);

}  // namespace mergepipe
