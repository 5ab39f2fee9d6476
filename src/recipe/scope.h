#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "recipe/layers.h"
#include "recipe/module_names.h"
#include "recipe/recipe.h"

namespace mergepipe {

/// One model inside a scope.
struct ScopeInput {
  size_t model = 0;
  int64_t first_layer = 0;  ///< slices: layer range [first, end) in that model
  int64_t end_layer = 0;
  const InputSpec* spec = nullptr;  ///< null for a base that joined unlisted
};

/// The part of a merge that one set of inputs and one level of parameters governs: a whole model, a module,
/// or one slice.
struct Scope {
  std::vector<ScopeInput> inputs;  ///< in the recipe's order
  std::optional<size_t> base;
  const SliceSpec* slice = nullptr;
  const Parameters* module_parameters = nullptr;
  ModuleNames module_names;
  std::string layer_prefix;  ///< slices only
  int64_t first_output_layer = 0;
  bool takes_before = false;    ///< slices: the tensors before the layers are made here (first slice)
  bool takes_behind = false;    ///< slices: those behind them (last slice)
  int64_t layers = 0;           ///< that gradients are spread over; the most where there are several stacks
  std::set<std::string> names;  ///< output and input tensors met here; what filters can match
};

}  // namespace mergepipe
