#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "recipe/resolve.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/resolving.h"

namespace mergepipe {
namespace {

using testing::HasSubstr;
using tests::LayerStack;
using tests::ParamOf;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::Zeros;

class Parameters : public tests::ResolvingTest {
 protected:
  Parameters() {
    for (const char* model : {"base", "expert1", "expert2"})
      Write(model, LayerStack(3));
  }
  const std::string ties_ = RecipeOf("ties", 2);
};

TEST_F(Parameters, ARequiredParameterIsNamedWithItsModelAndTensor) {
  const std::string faults = Faults(RecipeOf("ties", 2, "{}", false));
  EXPECT_THAT(faults, HasSubstr("the method 'ties' needs the parameter 'weight' of model"));
  EXPECT_THAT(faults, HasSubstr("/expert1'"));
  EXPECT_THAT(Faults("merge_method: slerp\nbase_model: ~/base\nmodels: [{model: ~/expert1}]\n"),
              HasSubstr("needs the parameter 't'"));
}

TEST_F(Parameters, AnUnknownParameterIsAFaultWithItsPlace) {
  EXPECT_THAT(Faults(tests::Replace(ties_, "parameters: {}", "parameters: {densty: 0.5}")),
              HasSubstr("recipe.yml:3:14: no method has a parameter 'densty' (did you mean 'density'?)"));
}

TEST_F(Parameters, WhatAnotherMethodWouldUseIsAWarning) {
  EXPECT_THAT(Warnings(RecipeOf("task_arithmetic", 2, "{density: 0.5}")),
              HasSubstr("'task_arithmetic' does not use 'density'"));
  EXPECT_THAT(Warnings(RecipeOf("ties", 2, "{t: 0.5}")), HasSubstr("'ties' does not use 't'"));
  EXPECT_THAT(Warnings(tests::Replace(ties_, "weight: 0.5", "weight: 0.5, lambda: 2")),
              HasSubstr("'lambda' is a parameter of the whole merge"));
  EXPECT_EQ(ParamOf(Resolve(tests::Replace(ties_, "weight: 0.5", "weight: 0.5, lambda: 2")), "lm_head.weight",
                    "lambda"),
            1);
}

TEST_F(Parameters, AFilterThatMatchesNothingIsAFault) {
  EXPECT_THAT(Faults(RecipeOf("ties", 2, "{density: [{filter: mpl, value: 0.5}, {value: 1}]}")),
              HasSubstr("the filter 'mpl' of 'density' matches no tensor of the merge"));
}

TEST_F(Parameters, FiltersDecideTensorByTensor) {
  const ResolvedMerge merge = Resolve(
      RecipeOf("ties", 2, "{density: [{filter: mlp, value: 0.5}, {filter: layers.1., value: 0.25}]}"));
  EXPECT_EQ(ParamOf(merge, "model.layers.1.mlp.w", "density", 0), 0.5);
  EXPECT_EQ(ParamOf(merge, "model.layers.1.attn.w", "density", 0), 0.25);
  EXPECT_EQ(ParamOf(merge, "model.layers.0.attn.w", "density", 0), 1);
  EXPECT_EQ(merge.params.size(), 3u) << "each distinct set once";
}

TEST_F(Parameters, GradientsGoOverTheLayersAndTheRestTakesTheirFirstValue) {
  const ResolvedMerge merge = Resolve(RecipeOf("ties", 2, "{density: [0.2, 1]}"));
  EXPECT_EQ(ParamOf(merge, "model.layers.0.mlp.w", "density", 0), 0.2);
  EXPECT_DOUBLE_EQ(ParamOf(merge, "model.layers.1.mlp.w", "density", 0), 0.6);
  EXPECT_EQ(ParamOf(merge, "model.layers.2.mlp.w", "density", 0), 1);
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"})
    EXPECT_EQ(ParamOf(merge, name, "density", 0), 0.2) << name;
}

TEST_F(Parameters, ALoneLayerTakesTheLastValue) {
  for (const char* model : {"base", "expert1", "expert2"})
    Write(model, {Zeros("model.layers.0.w"), Zeros("lm_head.weight")});
  const ResolvedMerge merge = Resolve(RecipeOf("ties", 2, "{density: [0.2, 1]}"));
  EXPECT_EQ(ParamOf(merge, "model.layers.0.w", "density", 0), 1);
  EXPECT_EQ(ParamOf(merge, "lm_head.weight", "density", 0), 0.2);
}

TEST_F(Parameters, AModelsParametersComeBeforeTheRecipes) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: ties
base_model: ~/base
parameters: {weight: 3, density: 0.5}
models:
  - {model: ~/expert1, parameters: {weight: [{filter: mlp, value: 0}]}}
  - {model: ~/expert2}
)");
  EXPECT_EQ(ParamOf(merge, "model.layers.0.mlp.w", "weight", 0), 0);
  EXPECT_EQ(ParamOf(merge, "model.layers.0.attn.w", "weight", 0), 3);
  EXPECT_EQ(ParamOf(merge, "model.layers.0.mlp.w", "weight", 1), 3);
  EXPECT_EQ(ParamOf(merge, "lm_head.weight", "density", 1), 0.5);
  EXPECT_EQ(ParamOf(merge, "lm_head.weight", "normalize"), 1);
}

TEST_F(Parameters, TheBasesParametersAreIgnoredWithAWarning) {
  const std::string recipe = ties_ + "  - {model: ~/base, parameters: {weight: 9}}\n";
  EXPECT_EQ(Resolve(recipe).params[0].inputs.size(), 2u);
  EXPECT_THAT(Warnings(recipe), HasSubstr("the parameters of the base model"));
}

TEST_F(Parameters, AParameterOutOfRangeNamesATensor) {
  EXPECT_THAT(Faults(RecipeOf("dare_ties", 2, "{density: -1}")),
              HasSubstr("density is -1; a probability lies between 0 and 1 (at tensor"));
}

TEST_F(Parameters, RandomStreamsDifferByExpertTensorAndSeed) {
  const std::string recipe = RecipeOf("dare_ties", 2, "{density: 0.5}");
  std::set<uint64_t> streams;
  for (const uint64_t seed : {0u, 1u}) {
    for (const ResolvedTensor& tensor : Resolve(recipe, {.seed = seed}).tensors)
      streams.insert(tensor.facts.random_streams.begin(), tensor.facts.random_streams.end());
  }
  EXPECT_EQ(streams.size(), 2 * 2 * LayerStack(3).size());
  EXPECT_EQ(Resolve(recipe).tensors[3].facts.random_streams, Resolve(recipe).tensors[3].facts.random_streams);
}

TEST_F(Parameters, ManyKindsOfFaultsAreToldTogether) {
  std::vector<StoredTensor> other = LayerStack(3);
  other[0] = Zeros("model.embed_tokens.weight", {5});
  Write("expert2", other);
  const std::string faults =
      Faults(tests::Replace(RecipeOf("ties", 2, "{lamda: 1}"), "base_model", "nam: x\nbase_model"));
  for (const char* part : {"no method has a parameter 'lamda'", "unknown key 'nam'", "has shape [5]"})
    EXPECT_THAT(faults, HasSubstr(part));
}

}  // namespace
}  // namespace mergepipe
