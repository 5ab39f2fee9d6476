#include <gtest/gtest.h>

#include "base/text.h"
#include "recipe/resolve.h"
#include "support/outcome.h"
#include "support/resolving.h"

namespace mergepipe {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;
using tests::LayerStack;
using tests::ParamOf;
using tests::SourceLines;
using tests::StoredTensor;
using tests::Zeros;

class ModulesTest : public tests::ResolvingTest {
 protected:
  ModulesTest() {
    for (const char* model : {"a", "b"}) {
      std::vector<StoredTensor> tensors = LayerStack(2, {"w"});
      for (int layer = 0; layer < 3; ++layer)
        tensors.push_back(Zeros(Format("visual.blocks.{}.w", layer)));
      Write(model, tensors);
    }
  }
};

TEST_F(ModulesTest, WhatNoModuleListsIsTheBasesByteForByte) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: linear
base_model: ~/a
modules:
  visual.blocks: {models: [{model: ~/a}, {model: ~/b}], parameters: {weight: 1}}
)");
  EXPECT_EQ(merge.tensors.size(), 8u);
  for (const ResolvedTensor& tensor : merge.tensors) {
    const bool listed = StartsWith(tensor.name, "visual.");
    EXPECT_EQ(tensor.merged, listed) << tensor.name;
    EXPECT_EQ(tensor.rule, listed ? "" : "its module is not in the recipe") << tensor.name;
  }
  EXPECT_TRUE(merge.keeps_layout);
}

TEST_F(ModulesTest, DefaultIsWhatNoOtherModuleTakes) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: linear
base_model: ~/a
modules:
  default: {models: [{model: ~/a}, {model: ~/b}], parameters: {weight: 1}}
  visual: {models: [{model: ~/a}, {model: ~/b}], parameters: {weight: 2}}
)");
  EXPECT_EQ(ParamOf(merge, "visual.blocks.2.w", "weight", 0), 2);
  for (const char* name : {"model.layers.0.w", "lm_head.weight", "model.embed_tokens.weight"})
    EXPECT_EQ(ParamOf(merge, name, "weight", 0), 1) << name;
}

TEST_F(ModulesTest, AModuleCanBeSliced) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: passthrough
base_model: ~/a
modules:
  visual: {slices: [{sources: [{model: ~/b, layer_range: [1, 3]}]}]}
)");
  EXPECT_THAT(SourceLines(merge), IsSupersetOf({"visual.blocks.0.w < b:visual.blocks.1.w",
                                                "visual.blocks.1.w < b:visual.blocks.2.w",
                                                "model.layers.1.w < a:model.layers.1.w"}));
  EXPECT_EQ(merge.tensors.size(), 7u);
}

TEST_F(ModulesTest, AnUnknownModuleIsNamedWithThoseThereAre) {
  const std::string faults = Faults(
      "merge_method: linear\nbase_model: ~/a\nmodules:\n  audio: {models: [{model: ~/a}], parameters: "
      "{weight: 1}}\n");
  EXPECT_THAT(faults, HasSubstr("recipe.yml:4:3: there is no module 'audio'"));
  EXPECT_THAT(faults, HasSubstr("default, model.layers, visual.blocks"));
}

TEST_F(ModulesTest, FiltersOfAModuleMustMatchSomewhere) {
  EXPECT_THAT(Faults(R"(
merge_method: linear
base_model: ~/a
modules:
  visual: {models: [{model: ~/a}, {model: ~/b}], parameters: {weight: [{filter: blokcs, value: 1}, {value: 2}]}}
)"),
              HasSubstr("the filter 'blokcs' of 'weight' matches no tensor"));
}

}  // namespace
}  // namespace mergepipe
