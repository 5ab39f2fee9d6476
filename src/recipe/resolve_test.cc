#include "recipe/resolve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/resolving.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using tests::LayerStack;
using tests::Must;
using tests::NamesOf;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TensorOf;
using tests::Zeros;

class ResolveTest : public tests::ResolvingTest {
 protected:
  ResolveTest() {
    for (const char* model : {"base", "expert1", "expert2"})
      Write(model, LayerStack(3));
  }
  const std::string ties_ = RecipeOf("ties", 2);
};

// The models that a tensor's sources come from.
std::vector<size_t> ModelsOf(const ResolvedTensor& tensor) {
  std::vector<size_t> models;
  for (const TensorSource& source : tensor.sources)
    models.push_back(source.model);
  return models;
}

// --- inputs and sources

TEST_F(ResolveTest, EveryTensorOfTheBaseIsMadeOnceInOrderOfName) {
  std::vector<std::string> expected;
  for (const StoredTensor& tensor : LayerStack(3))
    expected.push_back(tensor.name);
  std::sort(expected.begin(), expected.end());
  const ResolvedMerge merge = Resolve(ties_);
  EXPECT_EQ(NamesOf(merge), expected);
  EXPECT_TRUE(merge.keeps_layout);
  EXPECT_THAT(merge.dropped, IsEmpty());
  EXPECT_THAT(merge.warnings, IsEmpty());
}

TEST_F(ResolveTest, TheReferenceIsTheFirstSourceAndNoInputOfAMethodOnDeltas) {
  const ResolvedTensor tensor = TensorOf(Resolve(ties_), "model.norm.weight");
  EXPECT_THAT(ModelsOf(tensor), ElementsAre(0, 1, 2));
  EXPECT_THAT(tensor.inputs, ElementsAre(1, 2));
  EXPECT_TRUE(tensor.merged);
  EXPECT_EQ(tensor.facts.elements, 4u);
  EXPECT_FALSE(tensor.facts.base_input.has_value());
}

TEST_F(ResolveTest, MethodsOnValuesHaveTheirInputsInTheRecipesOrder) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: linear
base_model: ~/base
parameters: {weight: 1}
models: [{model: ~/expert1}, {model: ~/base}, {model: ~/expert2}]
)");
  const ResolvedTensor& tensor = merge.tensors[0];
  EXPECT_THAT(ModelsOf(tensor), ElementsAre(0, 1, 2));
  EXPECT_THAT(tensor.inputs, ElementsAre(1, 0, 2));
  EXPECT_EQ(tensor.facts.base_input, 1u);
}

TEST_F(ResolveTest, ABaseThatIsNotListedJoinsLast) {
  const std::string recipe = R"(
merge_method: linear
base_model: ~/base
parameters: {weight: 1}
models: [{model: ~/expert1}, {model: ~/expert2}]
)";
  EXPECT_THAT(Resolve(recipe).tensors[0].inputs, ElementsAre(1, 2, 0));
  EXPECT_THAT(Warnings(recipe), HasSubstr("takes part like any other model"));
  EXPECT_THAT(Warnings(ties_), Not(HasSubstr("takes part")));
}

TEST_F(ResolveTest, WithoutABaseTheFirstModelGivesTheLayout) {
  const ResolvedMerge merge = Resolve(
      "merge_method: linear\nparameters: {weight: 1}\nmodels: [{model: ~/expert2}, {model: ~/expert1}]\n");
  EXPECT_EQ(merge.models[merge.donor].name, folder_ / "expert2");
}

TEST_F(ResolveTest, EachModelIsOpenedOnceInWhateverSpelling) {
  std::filesystem::create_directory_symlink("expert1", folder_ / "link");
  const ResolvedMerge merge = Resolve(tests::Replace(
      tests::Replace(ties_, "base_model: ~/base", "base_model: ~/./base/"), "~/expert1", "~/link"));
  EXPECT_EQ(merge.models.size(), 3u);
  EXPECT_THAT(Faults(tests::Replace(
                  ties_, "~/expert2",
                  "~/../" + std::filesystem::path(folder_.path()).filename().string() + "/expert1")),
              HasSubstr("stands twice among the inputs"));
}

TEST_F(ResolveTest, ModelsAreLookedForBesideTheRecipe) {
  const Recipe recipe = Must(ParseRecipe(tests::Replace(ties_, "~/", ""), folder_ / "recipe.yml"));
  const ResolvedMerge merge = Must(ResolveRecipe(recipe, {}, ledger_));
  EXPECT_EQ(merge.models[0].name, "base");
  EXPECT_EQ(merge.models[0].path, folder_ / "base");
}

TEST_F(ResolveTest, PathsGivenForNamesComeFirst) {
  const Recipe recipe = Must(ParseRecipe(tests::Replace(ties_, "~/", "nowhere/"), "r.yml"));
  ResolveOptions options;
  for (const char* model : {"base", "expert1", "expert2"})
    options.paths[Format("nowhere/{}", model)] = folder_ / model;
  EXPECT_EQ(Must(ResolveRecipe(recipe, options, ledger_)).models.size(), 3u);
}

// --- tensors that do not fit

TEST_F(ResolveTest, EveryShapeThatDiffersIsAFaultWithBothSides) {
  std::vector<StoredTensor> other = LayerStack(3);
  other[1].shape = {2, 2};
  other[7] = Zeros("model.norm.weight", {5});
  Write("expert2", other);
  const Error error = Refused(ties_);
  EXPECT_EQ(error.code, Code::kInvalidInput);
  EXPECT_EQ(error.faults.size(), 2u);
  EXPECT_THAT(tests::Told(error), HasSubstr("/expert2: tensor 'model.layers.0.mlp.w' has shape [2, 2] but"));
  EXPECT_THAT(tests::Told(error), HasSubstr("/expert2: tensor 'model.norm.weight' has shape [5] but"));
  EXPECT_THAT(tests::Told(error), HasSubstr("/base has [4]"));
}

TEST_F(ResolveTest, EveryTensorThatSomeModelLacksIsAFault) {
  std::vector<StoredTensor> fewer = LayerStack(3), more = LayerStack(3);
  fewer.erase(fewer.begin() + 1, fewer.begin() + 3);
  more.push_back(Zeros("extra"));
  Write("expert1", fewer);
  Write("expert2", more);
  const std::string faults = Faults(ties_);
  for (const char* name : {"model.layers.0.mlp.w", "model.layers.0.attn.w"})
    EXPECT_THAT(faults, HasSubstr(Format("tensor '{}' is in {}/base but not in {}/expert1", name,
                                         folder_.path(), folder_.path())));
  EXPECT_THAT(faults,
              HasSubstr(Format("tensor 'extra' is in {0}/expert2 but not in {0}/base", folder_.path())));
  EXPECT_THAT(faults, HasSubstr("--missing base"));
}

TEST_F(ResolveTest, MissingTensorsCanCountAsTheBases) {
  std::vector<StoredTensor> fewer = LayerStack(3), more = LayerStack(3);
  fewer.pop_back();
  more.push_back(Zeros("extra"));
  Write("expert1", fewer);
  Write("expert2", more);
  const ResolvedMerge merge = Resolve(ties_, {.missing = MissingTensors::kBase});
  EXPECT_THAT(TensorOf(merge, "lm_head.weight").inputs, ElementsAre(0, 1));
  EXPECT_THAT(ModelsOf(TensorOf(merge, "lm_head.weight")), ElementsAre(0, 2));
  ASSERT_EQ(merge.dropped.size(), 1u);
  EXPECT_EQ(merge.dropped[0].tensor, "extra");
  EXPECT_EQ(merge.dropped[0].model, 2u);
  EXPECT_THAT(merge.dropped[0].rule, HasSubstr("not in the base"));
}

TEST_F(ResolveTest, IntegersAndBooleansAreCopiedFromTheBase) {
  for (const char* model : {"base", "expert1", "expert2"})
    Write(model, {Zeros("w"), Zeros("ids", {3}, DType::kI64), Zeros("mask", {3}, DType::kBool)});
  const ResolvedMerge merge = Resolve(ties_ + "out_dtype: bfloat16\n");
  for (const auto& [name, dtype] : {std::pair("ids", DType::kI64), std::pair("mask", DType::kBool)}) {
    const ResolvedTensor& tensor = TensorOf(merge, name);
    EXPECT_FALSE(tensor.merged);
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_THAT(tensor.rule, HasSubstr("is never averaged"));
    EXPECT_EQ(tensor.sources[0].model, 0u);
    EXPECT_THAT(tensor.inputs, IsEmpty());
  }
}

TEST_F(ResolveTest, ANumberAndACodeAreNotTheSameTensor) {
  for (const char* model : {"base", "expert1"})
    Write(model, {Zeros("w")});
  Write("expert2", {Zeros("w", {4}, DType::kI32)});
  EXPECT_THAT(Faults(ties_), HasSubstr("/expert2: tensor 'w' is stored as I32 but in"));
}

TEST_F(ResolveTest, QuantizedCodesAreNotBlended) {
  for (const char* model : {"base", "expert1", "expert2"})
    Write(model, {Zeros("w", {4}, DType::kF8E4M3)});
  EXPECT_EQ(Refused(ties_).code, Code::kUnsupported);
  EXPECT_THAT(Faults(ties_), HasSubstr("tensor 'w' is stored as F8_E4M3"));
  EXPECT_FALSE(Resolve("merge_method: passthrough\nmodels: [{model: ~/base}]\n").tensors[0].merged);
}

TEST_F(ResolveTest, AConfigThatNamesAQuantizationIsRefused) {
  Write("expert1", LayerStack(3), R"({"quantization_config": {"bits": 4}})");
  EXPECT_EQ(Refused(ties_).code, Code::kUnsupported);
  EXPECT_THAT(Faults(ties_), HasSubstr("/expert1: its config.json has a quantization_config"));
}

// --- types

TEST_F(ResolveTest, TheOutputsTypeIsTheBasesOrTheRecipes) {
  Write("base", {Zeros("a", {4}, DType::kBF16), Zeros("b", {4}, DType::kF32)});
  Write("expert1", {Zeros("a", {4}, DType::kF32), Zeros("b", {4}, DType::kF16)});
  const std::string recipe = RecipeOf("ties", 1);
  EXPECT_EQ(TensorOf(Resolve(recipe), "a").dtype, DType::kBF16);
  EXPECT_EQ(TensorOf(Resolve(recipe), "b").dtype, DType::kF32);
  EXPECT_EQ(TensorOf(Resolve(recipe + "dtype: float16\n"), "a").dtype, DType::kF16);
  EXPECT_EQ(TensorOf(Resolve(recipe + "dtype: float16\nout_dtype: torch.float64\n"), "b").dtype, DType::kF64);
}

TEST_F(ResolveTest, ATypeThatNobodyMergesIsRefused) {
  for (const char* dtype : {"int8", "float", "bool", "float8_e4m3fn"})
    EXPECT_THAT(Faults(ties_ + Format("out_dtype: {}\n", dtype)),
                HasSubstr(Format("out_dtype '{}' is none of", dtype)));
}

TEST_F(ResolveTest, WhatOnlyTheBaseGivesIsCopiedUnlessItsTypeChanges) {
  const std::string recipe = "merge_method: ties\nbase_model: ~/base\nmodels: [{model: ~/base}]\n";
  const ResolvedMerge copied = Resolve(recipe);
  for (const ResolvedTensor& tensor : copied.tensors)
    EXPECT_FALSE(tensor.merged);
  EXPECT_EQ(copied.tensors[0].rule, "no model but the base");
  const ResolvedMerge converted = Resolve(recipe + "out_dtype: bfloat16\n");
  for (const ResolvedTensor& tensor : converted.tensors)
    EXPECT_TRUE(tensor.merged);
}

// --- number of inputs

TEST_F(ResolveTest, AMethodTakesAsManyModelsAsItTakes) {
  EXPECT_THAT(Faults(RecipeOf("slerp", 2, "{t: 0.5}", false)),
              HasSubstr("'slerp' takes exactly 2 models, the base included, but 3 are given"));
  EXPECT_THAT(Faults(RecipeOf("passthrough", 1, "{}", false)),
              HasSubstr("'passthrough' takes exactly 1 models, but 2 are given"));
  EXPECT_EQ(Resolve(RecipeOf("slerp", 1, "{t: 0.5}", false)).tensors.size(), LayerStack(3).size());
}

TEST_F(ResolveTest, AMethodThatNeedsABaseSaysSo) {
  EXPECT_THAT(Faults("merge_method: ties\nparameters: {weight: 1}\nmodels: [{model: ~/expert1}]\n"),
              HasSubstr("the method 'ties' needs a 'base_model'"));
}

TEST_F(ResolveTest, AnUnknownMethodIsNamedWithTheNearest) {
  const Error error = Refused(RecipeOf("task_arithmetics", 1));
  EXPECT_EQ(error.code, Code::kUsage);
  EXPECT_THAT(tests::Told(error),
              HasSubstr("there is no merge_method 'task_arithmetics' (did you mean 'task_arithmetic'?)"));
}

TEST_F(ResolveTest, AllModelsThatAreNotThereAreToldAtOnce) {
  const std::string faults =
      Faults(tests::Replace(tests::Replace(ties_, "~/expert1", "~/gone"), "~/expert2", "org/name"));
  EXPECT_THAT(faults, HasSubstr("/gone' is no file or folder here"));
  EXPECT_THAT(faults, HasSubstr("'org/name' is no file or folder here"));
  EXPECT_THAT(faults, HasSubstr("hf download org/name"));
}

TEST_F(ResolveTest, ADamagedModelIsAnInvalidInput) {
  tests::WriteFile(folder_ / "expert1/model.safetensors", "PK\x03\x04");
  EXPECT_EQ(Refused(ties_).code, Code::kInvalidInput);
  EXPECT_THAT(Faults(ties_), HasSubstr("/expert1/model.safetensors: is a ZIP archive"));
}

TEST_F(ResolveTest, AnAdapterIsUnsupported) {
  const std::string recipe = tests::Replace(ties_, "~/expert1", "~/expert1+adapter");
  EXPECT_EQ(Refused(recipe).code, Code::kUnsupported);
  EXPECT_THAT(Faults(recipe), HasSubstr("the adapter 'adapter' of model"));
}

}  // namespace
}  // namespace mergepipe
