#include "executor/equal_check.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::Planned;
using tests::StoredTensor;
using tests::Succeeds;
using tests::TempFolder;

constexpr const char* kTied = R"({"tie_word_embeddings": true})";

// A tied base, and a tied expert that stores a copy of the embedding as its head, with one byte changed at
// `at`.
Planned WithStoredHead(const std::string& folder, std::optional<size_t> at) {
  const StoredTensor embedding =
      tests::RandomTensor("model.embed_tokens.weight", DType::kF32, {1000, 600}, 1);
  StoredTensor head = embedding;
  head.name = "lm_head.weight";
  if (at) head.bytes[*at] ^= 1;
  tests::WriteCheckpoint(folder + "/base", {embedding}, kTied);
  tests::WriteCheckpoint(folder + "/expert1", {embedding, head}, kTied);
  return Must(tests::PlanRecipe(folder, tests::RecipeOf("ties", 1)));
}

TEST(CheckEqualPairs, AHeadThatIsTheEmbeddingPasses) {
  const TempFolder folder;
  const Planned planned = WithStoredHead(folder.path(), std::nullopt);
  EXPECT_THAT(CheckEqualPairs(planned.plan, *planned.ledger), Succeeds());
  EXPECT_EQ(planned.ledger->TotalRead(Purpose::kExpertData), 2u * 1000 * 600 * 4)
      << "both are read and charged";
}

TEST(CheckEqualPairs, OneByteAnywhereIsADifference) {
  for (const size_t at : {size_t{0}, size_t{1} << 20, size_t{1000} * 600 * 4 - 1}) {
    const TempFolder folder;
    const Planned planned = WithStoredHead(folder.path(), at);
    EXPECT_THAT(CheckEqualPairs(planned.plan, *planned.ledger),
                FailsWith(Code::kInvalidInput,
                          "it stores a 'lm_head.weight' that differs from 'model.embed_tokens.weight'"))
        << at;
  }
}

TEST(CheckEqualPairs, WithoutPairsNothingIsRead) {
  const TempFolder folder;
  for (const char* model : {"base", "expert1"})
    tests::WriteCheckpoint(folder / model, tests::SmallModel(DType::kF32, 1));
  const Planned planned = Must(tests::PlanRecipe(folder.path(), tests::RecipeOf("ties", 1)));
  EXPECT_THAT(CheckEqualPairs(planned.plan, *planned.ledger), Succeeds());
  EXPECT_EQ(planned.ledger->TotalRead(Purpose::kExpertData), 0u);
}

}  // namespace
}  // namespace mergepipe
