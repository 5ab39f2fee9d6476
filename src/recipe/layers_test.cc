#include "recipe/layers.h"

#include <gtest/gtest.h>

#include "support/checkpoints.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

TEST(LayerName, IsCutAtTheFirstNumberBetweenDots) {
  const auto split = SplitLayerName("model.layers.7.mlp.experts.3.up_proj.weight");
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->prefix, "model.layers");
  EXPECT_EQ(split->layer, 7);
  EXPECT_EQ(split->suffix, "mlp.experts.3.up_proj.weight");
}

TEST(LayerName, JoinsToTheNameItWasCutFrom) {
  for (const char* name : {"h.0.w", "model.layers.12.a.b", "visual.blocks.3.x", "a.b.c.100000000.d"}) {
    const auto split = SplitLayerName(name);
    ASSERT_TRUE(split.has_value()) << name;
    EXPECT_EQ(JoinLayerName(split->prefix, split->layer, split->suffix), name);
  }
}

TEST(LayerName, NamesWithoutANumberOfTheirOwnHaveNoLayer) {
  for (const char* name : {"", "weight", "lm_head.weight", "model.layers.weight", "model.layers.7",
                           "7.weight", "model.layer7.weight", "model.7b.weight", "model..weight",
                           "model.-1.weight", "model.layers.1234567890.weight"})
    EXPECT_FALSE(SplitLayerName(name).has_value()) << name;
}

TEST(CountLayers, IsTheLargestNumberPlusOneByPrefix) {
  const tests::TempFolder folder;
  const auto tensor = [](const char* name) { return tests::TensorOf(name, DType::kF32, {1}, {0}); };
  tests::WriteCheckpoint(folder.path(), {tensor("model.layers.0.w"), tensor("model.layers.9.w"),
                                         tensor("visual.blocks.2.w"), tensor("lm_head.weight")});
  Ledger ledger;
  const auto checkpoint = tests::Must(Checkpoint::Open(folder.path(), "m", ledger));
  EXPECT_EQ(CountLayers(*checkpoint),
            (std::map<std::string, int64_t>{{"model.layers", 10}, {"visual.blocks", 3}}));
}

TEST(StandsBeforeLayers, IsTrueOfEmbeddingsAlone) {
  for (const char* name : {"model.embed_tokens.weight", "transformer.wte.weight", "transformer.wpe.weight",
                           "shared.weight", "bert.embeddings.position_ids"})
    EXPECT_TRUE(StandsBeforeLayers(name)) << name;
  for (const char* name :
       {"lm_head.weight", "model.norm.weight", "transformer.ln_f.bias", "score.weight", "embed_out.weight"})
    EXPECT_FALSE(StandsBeforeLayers(name)) << name;
}

}  // namespace
}  // namespace mergepipe
