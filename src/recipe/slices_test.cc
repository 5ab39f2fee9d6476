#include <gtest/gtest.h>

#include <map>

#include "base/text.h"
#include "recipe/resolve.h"
#include "support/outcome.h"
#include "support/resolving.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using tests::LayerStack;
using tests::ParamOf;
using tests::SourceLines;
using tests::StoredTensor;
using tests::Zeros;

class SlicesTest : public tests::ResolvingTest {
 protected:
  SlicesTest() {
    Write("a", LayerStack(4, {"w"}));
    Write("b", LayerStack(6, {"w"}));
  }
};

TEST_F(SlicesTest, LayersAreNumberedAnewFromFirstToLast) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: passthrough
slices:
  - sources: [{model: ~/a, layer_range: [2, 4]}]
  - sources: [{model: ~/b, layer_range: [0, 1]}]
  - sources: [{model: ~/a, layer_range: [3, 4]}]
)");
  EXPECT_THAT(SourceLines(merge),
              ElementsAre("lm_head.weight < a:lm_head.weight",
                          "model.embed_tokens.weight < a:model.embed_tokens.weight",
                          "model.layers.0.w < a:model.layers.2.w", "model.layers.1.w < a:model.layers.3.w",
                          "model.layers.2.w < b:model.layers.0.w", "model.layers.3.w < a:model.layers.3.w",
                          "model.norm.weight < a:model.norm.weight"));
  ASSERT_EQ(merge.sliced.size(), 1u);
  EXPECT_THAT(merge.sliced[0].sources, ElementsAre(2, 3, 0, 3));
  EXPECT_EQ(merge.sliced[0].donor_layers, 4);
}

TEST_F(SlicesTest, TheFirstSliceGivesTheEmbeddingAndTheLastTheHead) {
  const auto sources = SourceLines(Resolve(R"(
merge_method: passthrough
slices:
  - sources: [{model: ~/b, layer_range: [0, 2]}]
  - sources: [{model: ~/a, layer_range: [0, 2]}]
)"));
  EXPECT_THAT(sources,
              IsSupersetOf({"model.embed_tokens.weight < b:model.embed_tokens.weight",
                            "lm_head.weight < a:lm_head.weight", "model.norm.weight < a:model.norm.weight"}));
}

TEST_F(SlicesTest, SeveralSourcesAreMergedLayerByLayer) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: slerp
base_model: ~/a
parameters: {t: 0.5}
slices:
  - sources: [{model: ~/b, layer_range: [3, 5]}, {model: ~/a, layer_range: [0, 2]}]
)");
  EXPECT_THAT(SourceLines(merge), IsSupersetOf({"model.layers.0.w < a:model.layers.0.w b:model.layers.3.w",
                                                "model.layers.1.w < a:model.layers.1.w b:model.layers.4.w"}));
}

TEST_F(SlicesTest, TensorsOfUnusedLayersAreAccountedFor) {
  const ResolvedMerge merge =
      Resolve("merge_method: passthrough\nslices: [{sources: [{model: ~/a, layer_range: [1, 3]}]}]\n");
  std::vector<std::string> dropped;
  for (const DroppedTensor& tensor : merge.dropped)
    dropped.push_back(tensor.tensor);
  EXPECT_THAT(dropped, ElementsAre("model.layers.0.w", "model.layers.3.w"));
}

TEST_F(SlicesTest, OnlySlicesThatMakeTheWholeModelKeepItsLayout) {
  EXPECT_TRUE(Resolve("merge_method: passthrough\nslices: [{sources: [{model: ~/a, layer_range: [0, 4]}]}]\n")
                  .keeps_layout);
  EXPECT_FALSE(
      Resolve("merge_method: passthrough\nslices: [{sources: [{model: ~/a, layer_range: [0, 3]}]}]\n")
          .keeps_layout);
}

// --- parameters

constexpr const char* kLevels = R"(
merge_method: linear
parameters: {weight: 1, normalize: false}
slices:
  - sources:
      - {model: ~/a, layer_range: [0, 2], parameters: {weight: [{filter: layers.0., value: 5}]}}
      - {model: ~/b, layer_range: [2, 4], parameters: {weight: [{filter: layers.2., value: 6}]}}
    parameters: {weight: [{filter: layers, value: 3}], normalize: true}
  - sources:
      - {model: ~/a, layer_range: [2, 4]}
      - {model: ~/b, layer_range: [4, 6]}
)";

TEST_F(SlicesTest, SourcesComeBeforeTheSliceAndTheSliceBeforeTheRecipe) {
  const ResolvedMerge merge = Resolve(kLevels);
  EXPECT_EQ(ParamOf(merge, "model.layers.0.w", "weight", 0), 5);
  EXPECT_EQ(ParamOf(merge, "model.layers.1.w", "weight", 0), 3);
  EXPECT_EQ(ParamOf(merge, "model.layers.2.w", "weight", 0), 1);
  EXPECT_EQ(ParamOf(merge, "model.layers.1.w", "normalize"), 1);
  EXPECT_EQ(ParamOf(merge, "model.layers.2.w", "normalize"), 0);
}

TEST_F(SlicesTest, AModelsFilterSeesItsOwnLayerNumbers) {
  EXPECT_EQ(ParamOf(Resolve(kLevels), "model.layers.0.w", "weight", 1), 6) << "layer 2 of b";
}

TEST_F(SlicesTest, TheEmbeddingTakesTheFirstSlicesParametersAndTheHeadTheLasts) {
  const ResolvedMerge merge = Resolve(kLevels);
  EXPECT_EQ(ParamOf(merge, "model.embed_tokens.weight", "normalize"), 1);
  EXPECT_EQ(ParamOf(merge, "lm_head.weight", "normalize"), 0);
}

TEST_F(SlicesTest, AGradientGoesOverItsSliceAlone) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: linear
parameters: {weight: [0, 1]}
slices:
  - sources: [{model: ~/b, layer_range: [0, 3]}]
  - sources: [{model: ~/b, layer_range: [3, 4]}]
  - sources: [{model: ~/b, layer_range: [4, 6]}]
)");
  for (const auto& [layer, weight] : std::map<int, double>{{0, 0}, {1, 0.5}, {2, 1}, {3, 1}, {4, 0}, {5, 1}})
    EXPECT_EQ(ParamOf(merge, Format("model.layers.{}.w", layer), "weight", 0), weight) << layer;
  EXPECT_EQ(ParamOf(merge, "lm_head.weight", "weight", 0), 0);
}

TEST_F(SlicesTest, AFilterThatOnlyAnotherSliceMeetsIsAWarning) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: linear
parameters: {weight: 1}
slices:
  - sources: [{model: ~/a, layer_range: [0, 2]}]
    parameters: {weight: [{filter: layers.3., value: 2}]}
  - sources: [{model: ~/a, layer_range: [2, 4]}]
)");
  EXPECT_THAT(
      Join(merge.warnings, "\n"),
      HasSubstr("the filter 'layers.3.' of 'weight' matches no tensor of its slice, only of another"));
}

// --- faults

TEST_F(SlicesTest, ALayerThatTheModelLacksIsAFault) {
  EXPECT_THAT(Faults("merge_method: passthrough\nslices: [{sources: [{model: ~/a, layer_range: [3, 5]}]}]\n"),
              HasSubstr("layer_range [3, 5) reaches beyond"));
}

TEST_F(SlicesTest, SourcesOfOneSliceHaveEqualLengths) {
  EXPECT_THAT(Faults(R"(
merge_method: linear
parameters: {weight: 1}
slices: [{sources: [{model: ~/a, layer_range: [0, 2]}, {model: ~/b, layer_range: [0, 3]}]}]
)"),
              HasSubstr("layer_range [0, 3) has 3 layers but the slice's first source has 2"));
}

TEST_F(SlicesTest, AModelStandsOnceInASlice) {
  EXPECT_THAT(Faults(R"(
merge_method: linear
parameters: {weight: 1}
slices: [{sources: [{model: ~/a, layer_range: [0, 2]}, {model: ~/a, layer_range: [2, 4]}]}]
)"),
              HasSubstr("stands twice among the inputs"));
}

TEST_F(SlicesTest, AMethodThatNeedsTheBaseNeedsItAmongTheSources) {
  EXPECT_THAT(Faults(R"(
merge_method: ties
base_model: ~/a
parameters: {weight: 1}
slices: [{sources: [{model: ~/b, layer_range: [0, 2]}]}]
)"),
              HasSubstr("needs the base_model"));
}

TEST_F(SlicesTest, ASliceMayHaveABaseOfItsOwn) {
  const ResolvedMerge merge = Resolve(R"(
merge_method: slerp
base_model: ~/a
parameters: {t: 0.5}
slices:
  - sources: [{model: ~/a, layer_range: [0, 2]}, {model: ~/b, layer_range: [0, 2]}]
  - sources: [{model: ~/a, layer_range: [2, 4]}, {model: ~/b, layer_range: [2, 4]}]
    base_model: ~/b
)");
  EXPECT_THAT(SourceLines(merge), IsSupersetOf({"model.layers.0.w < a:model.layers.0.w b:model.layers.0.w",
                                                "model.layers.2.w < b:model.layers.2.w a:model.layers.2.w"}));
}

TEST_F(SlicesTest, AModelOfSeveralStacksNeedsModules) {
  std::vector<StoredTensor> tensors = LayerStack(2, {"w"});
  tensors.push_back(Zeros("visual.blocks.0.w"));
  Write("a", tensors);
  EXPECT_THAT(Faults("merge_method: passthrough\nslices: [{sources: [{model: ~/a, layer_range: [0, 1]}]}]\n"),
              HasSubstr("use 'modules'"));
}

}  // namespace
}  // namespace mergepipe
