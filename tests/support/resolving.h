#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "recipe/resolve.h"
#include "support/checkpoints.h"
#include "support/files.h"

namespace mergepipe::tests {

/// A tensor of zeros.
StoredTensor Zeros(const std::string& name, std::vector<uint64_t> shape = {4}, DType dtype = DType::kF32);

/// `layers` layers of these tensors ("model.layers.N.PART") between an embedding and a head.
std::vector<StoredTensor> LayerStack(int layers, const std::vector<std::string>& parts = {"mlp.w", "attn.w"});

/// Recipes resolved against models in a folder of the test's own; "~/" stands for it.
class ResolvingTest : public testing::Test {
 protected:
  void Write(const std::string& model, const std::vector<StoredTensor>& tensors,
             const std::string& config = "") {
    WriteCheckpoint(folder_ / model, tensors, config);
  }
  ResolvedMerge Resolve(const std::string& recipe, const ResolveOptions& options = {});
  /// The error of a recipe that must be refused.
  Error Refused(const std::string& recipe, const ResolveOptions& options = {});
  /// All that is said of such a recipe.
  std::string Faults(const std::string& recipe, const ResolveOptions& options = {});
  /// All warnings of a recipe that resolves.
  std::string Warnings(const std::string& recipe, const ResolveOptions& options = {});

  TempFolder folder_;
  Ledger ledger_;
};

/// An output tensor by its name.
const ResolvedTensor& TensorOf(const ResolvedMerge& merge, const std::string& name);
std::vector<std::string> NamesOf(const ResolvedMerge& merge);

/// A parameter's value at an output tensor, for the merge or for one input.
double ParamOf(const ResolvedMerge& merge, const std::string& tensor, const std::string& name,
               std::optional<size_t> input = std::nullopt);

/// "OUTPUT < MODEL:TENSOR MODEL:TENSOR" for each output tensor; models by the last part of their path.
std::vector<std::string> SourceLines(const ResolvedMerge& merge);

}  // namespace mergepipe::tests
