#include "catalog/catalog.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "support/checkpoints.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using tests::FailsWith;
using tests::Must;
using tests::Succeeds;
using tests::TempFolder;

constexpr uint64_t kBlock = 16u << 10;
constexpr uint64_t kElements = 10'000;  // of F32: three blocks

class CatalogTest : public testing::Test {
 protected:
  void SetUp() override {
    tests::WriteCheckpoint(folder_ / "base", {tests::RandomTensor("w", DType::kF32, {kElements}, 1)});
    tests::WriteCheckpoint(folder_ / "a", {tests::RandomTensor("w", DType::kF32, {kElements}, 2)});
  }
  std::unique_ptr<Checkpoint> Open(const std::string& model) {
    return Must(Checkpoint::Open(folder_ / model, model, ledger_));
  }
  std::string path() const { return folder_ / "cache/catalog.db"; }

  Finding FindingOf(const Checkpoint& checkpoint, const std::string& base, uint64_t digest) const {
    return {.checkpoint = StampKey(checkpoint),
            .base = base,
            .name = "w",
            .content = {DType::kF32, {kElements}, {digest, digest}},
            .block_bytes = kBlock,
            .has_columns = true,
            .base_columns = {},
            .knowledge = {}};
  }
  static TensorKnowledge Knowledge() {
    TensorKnowledge k;
    k.blocks = {.block_elements = kBlock / 4, .elements = kElements};
    k.blocks.energy = {1.5, 2.5, 0};
    k.blocks.max_key = {5, 6, 0};
    k.blocks.nonzeros = {1, 2, 0};
    k.blocks.octaves.assign(3 * kOctaves, 7);
    k.blocks.sketch_scale = {0.5f, 0.25f, 0};
    k.blocks.sketch.assign(3 * kSketchBuckets, -3);
    k.blocks.digest = {{1, 2}, {3, 4}, {5, 6}};
    k.l1 = 12.5;
    k.histogram = {{0, kElements - 3}, {900, 3}};
    k.thresholds = {{.kept = 2,
                     .threshold = {.key = 6, .equal_total = 2, .equal_kept = 1, .cut_index = 77},
                     .l1_whole = 12.5,
                     .l1_kept = 3}};
    return k;
  }
  // Stores an analysis of "a" against "base".
  void Fill(Catalog& catalog) {
    const auto base = Open("base"), a = Open("a");
    Must(catalog.Begin(*base));
    Must(catalog.Begin(*a));
    Finding of_base = FindingOf(*base, "", 1), of_a = FindingOf(*a, StampKey(*base), 2);
    of_base.base_columns = BaseColumns{{1, 2, 3}, {{1, 1}, {2, 2}, {3, 3}}};
    of_a.knowledge = Knowledge();
    Must(catalog.Store({of_base, of_a}));
    Must(catalog.Finish(*base, *base, kBlock));
    Must(catalog.Finish(*a, *base, kBlock));
  }

  TempFolder folder_;
  Ledger ledger_;
};

TEST_F(CatalogTest, WhatWasStoredIsLoaded) {
  Fill(*Must(Catalog::OpenForWriting(path())));
  const auto catalog = Must(Catalog::OpenExisting(path()));
  const auto base = Must(catalog->Find(*Open("base"))), a = Must(catalog->Find(*Open("a")));
  ASSERT_TRUE(base && a);
  EXPECT_NE(base->content, a->content);
  const auto got = Must(catalog->Load(a->id, base->id, "w", kBlock));
  ASSERT_TRUE(got);
  const TensorKnowledge want = Knowledge();
  EXPECT_EQ(got->blocks.block_elements, kBlock / 4);
  EXPECT_EQ(got->blocks.elements, kElements);
  EXPECT_EQ(got->blocks.energy, want.blocks.energy);
  EXPECT_EQ(got->blocks.max_key, want.blocks.max_key);
  EXPECT_EQ(got->blocks.nonzeros, want.blocks.nonzeros);
  EXPECT_EQ(got->blocks.octaves, want.blocks.octaves);
  EXPECT_EQ(got->blocks.sketch_scale, want.blocks.sketch_scale);
  EXPECT_EQ(got->blocks.sketch, want.blocks.sketch);
  EXPECT_EQ(got->blocks.digest, want.blocks.digest);
  EXPECT_EQ(got->l1, want.l1);
  EXPECT_EQ(got->histogram, want.histogram);
  ASSERT_EQ(got->thresholds.size(), 1u);
  EXPECT_EQ(got->thresholds[0].threshold.cut_index, 77u);
  EXPECT_EQ(got->thresholds[0].l1_kept, 3);
  EXPECT_EQ(Must(catalog->LoadBase(base->id, "w", kBlock))->energy, (std::vector<double>{1, 2, 3}));
}

TEST_F(CatalogTest, NothingIsKnownOfWhatWasNotAnalysed) {
  Fill(*Must(Catalog::OpenForWriting(path())));
  const auto catalog = Must(Catalog::OpenExisting(path()));
  const int64_t base = Must(catalog->Find(*Open("base")))->id, a = Must(catalog->Find(*Open("a")))->id;
  EXPECT_FALSE(Must(catalog->Load(a, base, "w", 2 * kBlock)));
  EXPECT_FALSE(Must(catalog->Load(a, base, "v", kBlock)));
  EXPECT_FALSE(Must(catalog->Load(base, a, "w", kBlock)));
  EXPECT_FALSE(Must(catalog->LoadBase(a, "w", kBlock)));
  tests::WriteCheckpoint(folder_ / "b", {tests::RandomTensor("w", DType::kF32, {kElements}, 2)});
  EXPECT_FALSE(Must(catalog->Find(*Open("b"))));
}

TEST_F(CatalogTest, AFileThatWasWrittenAgainIsNotKnown) {
  Fill(*Must(Catalog::OpenForWriting(path())));
  tests::WriteCheckpoint(folder_ / "a", {tests::RandomTensor("w", DType::kF32, {kElements}, 2)});
  const auto catalog = Must(Catalog::OpenExisting(path()));
  EXPECT_FALSE(Must(catalog->Find(*Open("a"))));
  EXPECT_TRUE(Must(catalog->Find(*Open("base"))));
}

TEST_F(CatalogTest, AnAnalysisThatIsNotFinishedIsNotKnownButContinued) {
  const auto catalog = Must(Catalog::OpenForWriting(path()));
  const auto a = Open("a");
  Must(catalog->Begin(*a));
  Must(catalog->Store({FindingOf(*a, "", 9)}));
  EXPECT_FALSE(Must(catalog->Find(*a)));
  Must(catalog->Begin(*a));
  const auto stored = Must(catalog->Stored(StampKey(*a), "", kBlock));
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_TRUE(stored.at("w").has_columns);
  EXPECT_FALSE(stored.at("w").is_finite);
}

TEST_F(CatalogTest, ACopySharesWhatIsKnown) {
  const auto catalog = Must(Catalog::OpenForWriting(path()));
  Fill(*catalog);
  std::filesystem::copy(folder_ / "a", folder_ / "copy");
  const auto copy = Open("copy"), base = Open("base");
  Must(catalog->Begin(*copy));
  Finding finding = FindingOf(*copy, "", 2);
  finding.has_columns = false;
  Must(catalog->Store({finding}));
  const KnownCheckpoint known = Must(catalog->Finish(*copy, *base, kBlock));
  EXPECT_EQ(known.id, Must(catalog->Find(*Open("a")))->id);
  EXPECT_TRUE(Must(catalog->Load(known.id, Must(catalog->Find(*base))->id, "w", kBlock)));
  EXPECT_EQ(Must(catalog->List()).size(), 2u);
}

TEST_F(CatalogTest, ForgettingTakesTheStatisticsWithIt) {
  const auto catalog = Must(Catalog::OpenForWriting(path()));
  Fill(*catalog);
  const CatalogRemoval removal = Must(catalog->Forget(Must(catalog->Find(*Open("a")))->id));
  EXPECT_EQ(removal.checkpoints, 1u);
  EXPECT_EQ(removal.tensors, 1u);
  EXPECT_FALSE(Must(catalog->Find(*Open("a"))));
  EXPECT_TRUE(Must(catalog->Find(*Open("base"))));
}

TEST_F(CatalogTest, OpeningWhatIsNotThereCreatesNothing) {
  EXPECT_EQ(Must(Catalog::OpenExisting(path())), nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache"));
  tests::WriteFile(path(), "");
  EXPECT_EQ(Must(Catalog::OpenExisting(path())), nullptr);
  EXPECT_THAT(Catalog::OpenForWriting(path()), Succeeds());
  EXPECT_NE(Must(Catalog::OpenExisting(path())), nullptr);
}

TEST_F(CatalogTest, WhatIsNoCatalogIsNamed) {
  tests::WriteFile(path(), std::string(5000, 'x'));
  EXPECT_THAT(Catalog::OpenExisting(path()), FailsWith(Code::kInvalidInput, "the catalog is damaged"));
  EXPECT_THAT(Catalog::OpenForWriting(path()), FailsWith(Code::kInvalidInput, path()));
  EXPECT_THAT(Catalog::OpenExisting(folder_.path()), FailsWith(Code::kInvalidInput, "is no file"));
}

TEST_F(CatalogTest, NoFlippedByteChangesAnAnswer) {
  Fill(*Must(Catalog::OpenForWriting(path())));
  const std::string sound = tests::ReadFile(path());
  const TensorKnowledge want = Knowledge();
  for (size_t at = 100; at < sound.size(); at += 61) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    tests::WriteFile(path(), damaged);
    auto catalog = Catalog::OpenExisting(path());
    if (!catalog || *catalog == nullptr) continue;
    const auto base = (*catalog)->Find(*Open("base")), a = (*catalog)->Find(*Open("a"));
    if (!base || !a || !*base || !*a) continue;
    const auto got = (*catalog)->Load((*a)->id, (*base)->id, "w", kBlock);
    if (!got || !*got) continue;
    EXPECT_EQ((*got)->blocks.energy, want.blocks.energy) << at;
    EXPECT_EQ((*got)->blocks.sketch, want.blocks.sketch) << at;
    EXPECT_EQ((*got)->blocks.digest, want.blocks.digest) << at;
    EXPECT_EQ((*got)->histogram, want.histogram) << at;
    EXPECT_EQ((*got)->l1, want.l1) << at;
  }
}

TEST(CatalogPath, FollowsTheFlagThenTheCacheFolderThenHome) {
  EXPECT_EQ(CatalogPath("x/y.db"), "x/y.db");
  ::setenv("HOME", "/home/someone", 1);
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(CatalogPath(""), "/cache/mergepipe/catalog.db");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(CatalogPath(""), "/home/someone/.cache/mergepipe/catalog.db");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(CatalogPath(""), "/home/someone/.cache/mergepipe/catalog.db");
  ::unsetenv("HOME");
  EXPECT_EQ(CatalogPath(""), "");
  EXPECT_EQ(Must(Catalog::OpenExisting("")), nullptr);
  EXPECT_THAT(Catalog::OpenForWriting(""), FailsWith(Code::kUsage, "--catalog"));
}

}  // namespace
}  // namespace mergepipe
