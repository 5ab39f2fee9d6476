#include "planner/catalog_evidence.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "mergepipe/mergepipe.h"
#include "support/evidence.h"
#include "support/families.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FakeEvidence;
using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::TempFolder;

class CatalogEvidenceTest : public testing::Test {
 protected:
  CatalogEvidenceTest() { tests::WriteFamily(folder_.path(), {.seed = 2, .experts = 2, .mixed = true}); }

  void Analyse(const std::vector<std::string>& experts, const std::vector<double>& densities = {}) const {
    AnalyzeRequest request{.block_bytes = tests::kSmallBlock, .catalog = path()};
    for (const std::string& name : experts)
      request.experts.push_back(folder_ / name);
    request.base = folder_ / "base";
    request.densities = densities;
    request.run.threads = 2;
    Must(mergepipe::Analyze(request));
  }
  Planned Plan(const std::string& method = "task_arithmetic", const std::string& parameters = "{}") const {
    return Must(PlanRecipe(folder_.path(), RecipeOf(method, 2, parameters),
                           {.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock}));
  }
  std::unique_ptr<Evidence> Ask(const Planned& planned, uint64_t block_bytes = tests::kSmallBlock) {
    catalog_ = Must(Catalog::OpenExisting(path()));
    return Must(EvidenceFromCatalog(*planned.plan.merge, *catalog_, block_bytes));
  }
  std::string path() const { return folder_ / "catalog.db"; }

  TempFolder folder_;
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(CatalogEvidenceTest, IsWhatTheStoredBytesSay) {
  Analyse({"expert1", "expert2"});
  const Planned planned = Plan();
  const auto evidence = Ask(planned);
  EXPECT_EQ(evidence->strength(), Strength::kFull);
  EXPECT_EQ(evidence->sample_bytes(), 0u);
  const FakeEvidence expected = tests::ReckonEvidence(planned.plan);
  for (size_t t = 0; t < planned.plan.tensors.size(); ++t) {
    const TensorEvidence got = Must(evidence->Of(t)), &want = expected.tensors[t];
    ASSERT_EQ(got.base.has_value(), want.base.has_value());
    EXPECT_TRUE(!got.base || got.base->digest == want.base->digest);
    ASSERT_EQ(got.sources.size(), want.sources.size());
    for (size_t s = 0; s < got.sources.size(); ++s) {
      ASSERT_EQ(got.sources[s].has_value(), want.sources[s].has_value());
      if (!got.sources[s]) continue;
      const BlockColumns &a = got.sources[s]->knowledge.blocks, &b = want.sources[s]->knowledge.blocks;
      EXPECT_TRUE(got.sources[s]->exact);
      EXPECT_EQ(a.digest, b.digest);
      EXPECT_EQ(a.max_key, b.max_key);
      EXPECT_EQ(a.nonzeros, b.nonzeros);
      EXPECT_EQ(a.octaves, b.octaves);
      const auto& histogram = got.sources[s]->knowledge.histogram;  // loaded for methods that trim
      EXPECT_TRUE(histogram.empty() || histogram == want.sources[s]->knowledge.histogram);
      for (size_t k = 0; k < b.energy.size(); ++k)
        EXPECT_NEAR(a.energy[k], b.energy[k], 1e-12 * b.energy[k]);
    }
  }
}

TEST_F(CatalogEvidenceTest, ThresholdsAreThoseOfTheDensitiesThatWereAskedFor) {
  Analyse({"expert1", "expert2"}, {0.3});
  const Planned planned = Plan("ties", "{density: 0.3}");
  FakeEvidence expected = tests::ReckonEvidence(planned.plan, /*thresholds=*/true);
  const auto evidence = Ask(planned);
  const KnownConstants got = Must(FindConstants(*planned.plan.merge, *evidence));
  const KnownConstants want = Must(FindConstants(*planned.plan.merge, expected));
  for (size_t t = 0; t < got.size(); ++t) {
    ASSERT_EQ(got[t].has_value(), want[t].has_value());
    for (size_t i = 0; got[t] && i < got[t]->thresholds.size(); ++i) {
      const Threshold &a = got[t]->thresholds[i], &b = want[t]->thresholds[i];
      EXPECT_EQ(a.key, b.key);
      if (b.key == 0) continue;  // whether zeros stay is all one
      EXPECT_EQ(a.equal_total, b.equal_total);
      EXPECT_EQ(a.equal_kept, b.equal_kept);
      EXPECT_EQ(a.cut_index, b.cut_index);
    }
  }
  const Planned other = Plan("ties", "{density: 0.31}");
  for (const auto& constants : Must(FindConstants(*other.plan.merge, *Ask(other))))
    EXPECT_FALSE(constants) << "at a density that nobody asked for";
}

TEST_F(CatalogEvidenceTest, OneExpertThatIsNotAnalysedMakesItNoFullKnowledge) {
  Analyse({"expert1"});
  const Planned planned = Plan();
  const auto evidence = Ask(planned);
  EXPECT_EQ(evidence->strength(), Strength::kNone);
  EXPECT_TRUE(evidence->Knows(1));
  EXPECT_FALSE(evidence->Knows(2));
  const TensorEvidence found = Must(evidence->Of(planned.Number("b.bf16")));
  EXPECT_TRUE(found.base && found.sources[1]);
  EXPECT_FALSE(found.sources[2]);
  const NoEvidence headers(*planned.plan.merge);
  EXPECT_NE(evidence->Identity(1), headers.Identity(1));
  EXPECT_EQ(evidence->Identity(2), headers.Identity(2));
}

TEST_F(CatalogEvidenceTest, NothingIsKnownAtAnotherBlockSize) {
  Analyse({"expert1", "expert2"});
  const Planned planned = Plan();
  const auto evidence = Ask(planned, 2 * tests::kSmallBlock);
  EXPECT_EQ(evidence->strength(), Strength::kNone);
  const TensorEvidence found = Must(evidence->Of(planned.Number("b.bf16")));
  EXPECT_FALSE(found.sources[1] || found.sources[2]);
}

TEST_F(CatalogEvidenceTest, AnExpertThatWasWrittenAgainIsNotKnown) {
  Analyse({"expert1", "expert2"});
  const std::string before = Ask(Plan())->Identity(1);
  tests::WriteFile(folder_ / "expert1/model.safetensors",
                   tests::ReadFile(folder_ / "expert2/model.safetensors"));
  const Planned planned = Plan();
  const auto evidence = Ask(planned);
  EXPECT_EQ(evidence->strength(), Strength::kNone);
  EXPECT_FALSE(evidence->Knows(1));
  EXPECT_NE(evidence->Identity(1), before);
}

TEST_F(CatalogEvidenceTest, CopiesOfAModelHaveItsIdentity) {
  Analyse({"expert1", "expert2"});
  const Planned planned = Plan();
  const std::string content = Ask(planned)->Identity(1);
  const TempFolder elsewhere;
  for (const char* model : {"base", "expert1", "expert2"})
    tests::WriteFile(elsewhere / (std::string(model) + "/model.safetensors"),
                     tests::ReadFile(folder_ / (std::string(model) + "/model.safetensors")));
  AnalyzeRequest request{.base = elsewhere / "base", .block_bytes = tests::kSmallBlock, .catalog = path()};
  request.experts = {elsewhere / "expert1", elsewhere / "expert2"};
  Must(mergepipe::Analyze(request));
  const Planned copies =
      Must(PlanRecipe(elsewhere.path(), RecipeOf("task_arithmetic", 2),
                      {.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock}));
  EXPECT_EQ(Ask(copies)->Identity(1), content);
}

}  // namespace
}  // namespace mergepipe
