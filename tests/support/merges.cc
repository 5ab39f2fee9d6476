#include "support/merges.h"

#include <stdexcept>

#include "base/text.h"
#include "base/try.h"
#include "support/files.h"

namespace mergepipe::tests {

Result<ResolvedMerge> Resolve(const std::string& folder, const std::string& recipe, Ledger& ledger,
                              const ResolveOptions& options) {
  const Recipe parsed = MP_TRY(ParseRecipe(Replace(recipe, "~/", folder + "/"), "recipe.yml"));
  return ResolveRecipe(parsed, options, ledger);
}

size_t Planned::Number(const std::string& tensor) const {
  for (size_t i = 0; i < plan.merge->tensors.size(); ++i) {
    if (plan.merge->tensors[i].name == tensor) return i;
  }
  throw std::runtime_error("no output tensor " + tensor);
}

Result<Planned> PlanRecipe(const std::string& folder, const std::string& recipe, const PlanOptions& options,
                           const ResolveOptions& resolve) {
  auto ledger = std::make_shared<Ledger>();
  auto merge = std::make_shared<const ResolvedMerge>(MP_TRY(Resolve(folder, recipe, *ledger, resolve)));
  return Planned{std::move(ledger), MP_TRY(MakePlan(std::move(merge), options))};
}

std::string RecipeOf(const std::string& method, size_t experts, const std::string& parameters,
                     bool weighted) {
  std::string recipe =
      Format("merge_method: {}\nbase_model: ~/base\nparameters: {}\nmodels:\n", method, parameters);
  if (method == "linear" || method == "slerp" || method == "passthrough")
    recipe += Format("  - model: ~/base\n    parameters: {{{}}}\n", weighted ? "weight: 0.5" : "");
  for (size_t i = 1; i <= experts; ++i) {
    recipe += Format("  - model: ~/expert{}\n    parameters: {{{}}}\n", i,
                     weighted ? Format("weight: {}", 0.2 + 0.3 * static_cast<double>(i)) : "");
  }
  return recipe;
}

std::vector<StoredTensor> SmallModel(DType dtype, uint32_t seed) {
  std::vector<StoredTensor> tensors = {RandomTensor("model.embed_tokens.weight", dtype, {50, 16}, seed)};
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* part : {"mlp.down_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight"}) {
      const bool norm = std::string(part) == "input_layernorm.weight";
      tensors.push_back(RandomTensor(Format("model.layers.{}.{}", layer, part), dtype,
                                     norm ? std::vector<uint64_t>{16} : std::vector<uint64_t>{24, 16},
                                     ++seed));
    }
  }
  tensors.push_back(RandomTensor("model.norm.weight", dtype, {16}, ++seed));
  tensors.push_back(RandomTensor("lm_head.weight", dtype, {50, 16}, ++seed));
  return tensors;
}

std::vector<StoredTensor> NearTo(const std::vector<StoredTensor>& base, DType dtype, uint32_t seed,
                                 double scale) {
  std::vector<StoredTensor> tensors;
  for (const StoredTensor& tensor : base) {
    const bool numbers = IsMergeable(tensor.dtype);
    tensors.push_back(numbers ? Finetuned(tensor, dtype, ++seed, scale) : tensor);
  }
  return tensors;
}

}  // namespace mergepipe::tests
