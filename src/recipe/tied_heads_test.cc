#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "recipe/resolve.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/resolving.h"

namespace mergepipe {
namespace {

using testing::HasSubstr;
using tests::LayerStack;
using tests::NamesOf;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TensorOf;

class TiedHeads : public tests::ResolvingTest {
 protected:
  TiedHeads() {
    for (const char* model : {"base", "expert1", "expert2"})
      Write(model, LayerStack(1));
  }
  static constexpr const char* kTied = R"({"tie_word_embeddings": true})";
  static constexpr const char* kUntied = R"({"tie_word_embeddings": false})";
  static std::vector<StoredTensor> Headless() {
    std::vector<StoredTensor> tensors = LayerStack(1);
    tensors.pop_back();
    return tensors;
  }
  bool MakesHead(const ResolvedMerge& merge) {
    const auto names = NamesOf(merge);
    return std::count(names.begin(), names.end(), "lm_head.weight") == 1;
  }
  const std::string ties_ = RecipeOf("ties", 2);
};

TEST_F(TiedHeads, NoHeadIsInventedWhereAllAreTied) {
  for (const char* model : {"base", "expert1", "expert2"})
    Write(model, Headless(), kTied);
  const ResolvedMerge merge = Resolve(ties_);
  EXPECT_FALSE(MakesHead(merge));
  EXPECT_FALSE(merge.unties_head);
}

TEST_F(TiedHeads, TheEmbeddingStandsInForAHeadThatOthersStore) {
  Write("base", LayerStack(1), kUntied);
  Write("expert1", Headless(), kTied);
  const ResolvedMerge merge = Resolve(ties_);
  const ResolvedTensor& head = TensorOf(merge, "lm_head.weight");
  EXPECT_EQ(EntryOf(merge, head.sources[1]).name, "model.embed_tokens.weight");
  EXPECT_EQ(EntryOf(merge, head.sources[2]).name, "lm_head.weight");
  EXPECT_FALSE(merge.unties_head);
  EXPECT_THAT(Join(merge.warnings, "\n"), HasSubstr("/expert1: stores no lm_head.weight (tied)"));
}

TEST_F(TiedHeads, AnUntiedExpertUntiesATiedBase) {
  Write("base", Headless(), kTied);
  Write("expert1", LayerStack(1), kUntied);
  Write("expert2", Headless(), kTied);
  const ResolvedMerge merge = Resolve(ties_);
  EXPECT_TRUE(MakesHead(merge));
  EXPECT_TRUE(merge.unties_head);
  EXPECT_FALSE(merge.keeps_layout);
}

TEST_F(TiedHeads, AHeadStoredBesideATiedConfigIsDroppedAndChecked) {
  for (const char* model : {"base", "expert2"})
    Write(model, Headless(), kTied);
  Write("expert1", LayerStack(1), kTied);
  const ResolvedMerge merge = Resolve(ties_);
  EXPECT_FALSE(MakesHead(merge));
  ASSERT_EQ(merge.redundant_heads.size(), 1u);
  EXPECT_EQ(EntryOf(merge, merge.redundant_heads[0].first).name, "lm_head.weight");
  ASSERT_EQ(merge.dropped.size(), 1u);
  EXPECT_EQ(merge.dropped[0].tensor, "lm_head.weight");
}

TEST_F(TiedHeads, AMissingHeadThatNoConfigTiesIsAFault) {
  Write("expert1", Headless());
  EXPECT_THAT(Faults(ties_), HasSubstr("tensor 'lm_head.weight' is in"));
}

}  // namespace
}  // namespace mergepipe
