#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "recipe/resolve.h"
#include "storage/ledger.h"
#include "support/checkpoints.h"

namespace mergepipe::tests {

/// Parses and resolves a recipe. "~/" in it stands for `folder`, where the models lie.
Result<ResolvedMerge> Resolve(const std::string& folder, const std::string& recipe, Ledger& ledger,
                              const ResolveOptions& options = {});

/// A plan and the ledger that its checkpoints charge.
struct Planned {
  std::shared_ptr<Ledger> ledger;
  Plan plan;

  /// Position of an output tensor.
  size_t Number(const std::string& tensor) const;
  const ResolvedTensor& Tensor(const std::string& tensor) const {
    return plan.merge->tensors[Number(tensor)];
  }
  const TensorPlan& PlanOf(const std::string& tensor) const { return plan.tensors[Number(tensor)]; }
};

inline constexpr uint64_t kRoomyMemory = 256u << 20;

/// Parses, resolves and plans a recipe.
Result<Planned> PlanRecipe(const std::string& folder, const std::string& recipe,
                           const PlanOptions& options = {.memory_bytes = kRoomyMemory, .threads = 2},
                           const ResolveOptions& resolve = {});

/// "merge_method: METHOD", a base and experts "~/base", "~/expert1", …; `parameters` is YAML flow, "{}" for
/// none, and each expert gets a weight where `weighted`.
std::string RecipeOf(const std::string& method, size_t experts, const std::string& parameters = "{}",
                     bool weighted = true);

/// Tensors of a model with two layers, an embedding and a head, all of `dtype`.
std::vector<StoredTensor> SmallModel(DType dtype, uint32_t seed);

/// Tensors near those of the base.
std::vector<StoredTensor> NearTo(const std::vector<StoredTensor>& base, DType dtype, uint32_t seed,
                                 double scale = 0.1);

}  // namespace mergepipe::tests
