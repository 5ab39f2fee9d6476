#include "executor/analyze_scan.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "catalog/packing.h"
#include "executor/tensor_analysis.h"
#include "methods/magnitude_selection.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::HasSubstr;
using tests::FailsWith;
using tests::Must;
using tests::StoredTensor;
using tests::TempFolder;

struct ScanSettings {
  uint64_t block_bytes = kLeafBytes;
  size_t threads = 2;
  uint64_t memory_bytes = 256u << 20;
  std::string target;
  std::vector<uint64_t> kept;
};

class AnalyzeScanTest : public testing::Test {
 protected:
  // Findings of "w" by checkpoint: "base", "a", "b", …
  std::map<std::string, Finding> Scan(const std::vector<std::string>& experts,
                                      const ScanSettings& settings = {}) {
    const auto base = Must(Checkpoint::Open(folder_ / "base", "base", ledger_));
    std::vector<std::unique_ptr<Checkpoint>> opened;
    AnalyzeJob job{
        .base = {base.get(), "base"}, .experts = {}, .block_bytes = settings.block_bytes, .tensors = {}};
    TensorWish wish{.name = "w", .base = true, .experts = {}};
    for (const std::string& name : experts) {
      opened.push_back(Must(Checkpoint::Open(folder_ / name, name, ledger_)));
      wish.experts.push_back({.expert = job.experts.size(), .kept = settings.kept});
      job.experts.push_back({opened.back().get(), name});
    }
    job.tensors.push_back(wish);
    std::map<std::string, Finding> findings;
    ProgressCounters progress;
    Must(ScanForCatalog(job, *Must(kernels::ChooseKernels(settings.target)),
                        {.threads = settings.threads, .memory_bytes = settings.memory_bytes}, ledger_,
                        progress, [&](std::vector<Finding> found) -> Result<void> {
                          for (Finding& finding : found)
                            findings[finding.checkpoint] = std::move(finding);
                          return {};
                        }));
    return findings;
  }
  void Write(const std::string& model, const StoredTensor& tensor) {
    tests::WriteCheckpoint(folder_ / model, {tensor});
  }

  TempFolder folder_;
  Ledger ledger_;
};

// All that a tensor's knowledge holds, as bytes.
std::string Bits(const TensorKnowledge& k) {
  std::string bits;
  const auto add = [&](std::span<const std::byte> bytes) {
    bits.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  add(ColumnBytes(k.blocks.energy));
  add(ColumnBytes(k.blocks.max_key));
  add(ColumnBytes(k.blocks.nonzeros));
  add(ColumnBytes(k.blocks.octaves));
  add(ColumnBytes(k.blocks.sketch_scale));
  add(ColumnBytes(k.blocks.sketch));
  add(ColumnBytes(k.blocks.digest));
  add(std::as_bytes(std::span(&k.l1, 1)));
  add(PackHistogram(k.histogram));
  for (const ExactThreshold& t : k.thresholds)
    bits += std::to_string(t.threshold.key) + " " + std::to_string(*t.threshold.cut_index) + " " +
            std::to_string(std::bit_cast<uint64_t>(t.l1_kept)) + " " +
            std::to_string(std::bit_cast<uint64_t>(t.l1_whole));
  return bits;
}

TEST_F(AnalyzeScanTest, ABlockThatEqualsTheBaseHasNoDelta) {
  std::vector<double> values(20000, 0.5), changed = values;
  changed[9000] = 2.5;
  Write("base", tests::TensorOf("w", DType::kBF16, {20000}, values));
  Write("a", tests::TensorOf("w", DType::kBF16, {20000}, changed));
  auto found = Scan({"a"});
  const BlockColumns& blocks = found.at("a").knowledge->blocks;
  EXPECT_EQ(blocks.block_elements, 8192u);
  EXPECT_EQ(blocks.energy, (std::vector<double>{0, 4, 0}));
  EXPECT_EQ(blocks.nonzeros, (std::vector<uint32_t>{0, 1, 0}));
  EXPECT_EQ(blocks.max_key, (std::vector<uint32_t>{0, std::bit_cast<uint32_t>(2.0f), 0}));
  EXPECT_EQ(blocks.octaves[kOctaves], 1u);
  const BaseColumns& base = *found.at("base").base_columns;
  EXPECT_EQ(base.digest[0], blocks.digest[0]);
  EXPECT_FALSE(base.digest[1] == blocks.digest[1]);
  EXPECT_EQ(base.energy[0], 8192 * 0.25);
}

TEST_F(AnalyzeScanTest, NothingButTheDataShows) {
  const StoredTensor base = tests::RandomTensor("w", DType::kF32, {1000, 1100}, 1);
  Write("base", base);
  Write("a", tests::Finetuned(base, DType::kBF16, 2, 0.1));
  Write("b", tests::Finetuned(base, DType::kF64, 3, 0.1));
  const std::vector<uint64_t> kept = {1, 1000, 550'000, 1'099'999};
  for (const uint64_t block : {kLeafBytes, uint64_t{1} << 20, uint64_t{4} << 20}) {
    const auto want = Scan({"a", "b"}, {.block_bytes = block, .kept = kept});
    std::vector<ScanSettings> others = {
        {.block_bytes = block,
         .threads = 1,
         .memory_bytes = 18u << 20,
         .kept = kept},  // read again for thresholds
        {.block_bytes = block, .threads = 9, .memory_bytes = 64u << 20, .kept = kept}};
    for (const std::string& target : kernels::RunnableTargets())
      others.push_back({.block_bytes = block, .target = target, .kept = kept});
    for (const ScanSettings& settings : others) {
      const auto got = Scan({"a", "b"}, settings);
      for (const char* name : {"a", "b"}) {
        EXPECT_EQ(Bits(*got.at(name).knowledge), Bits(*want.at(name).knowledge)) << name << settings.target;
        EXPECT_EQ(got.at(name).content.digest, want.at(name).content.digest);
      }
      EXPECT_EQ(got.at("base").base_columns->energy, want.at("base").base_columns->energy);
    }
  }
}

TEST_F(AnalyzeScanTest, BlockSizeAndBaseDoNotShowInTheDigest) {
  const StoredTensor base = tests::RandomTensor("w", DType::kF32, {300'001}, 1);
  const StoredTensor expert = tests::Finetuned(base, DType::kBF16, 2, 0.1);
  Write("a", expert);
  std::vector<Digest128> digests;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    Write("base", tests::Finetuned(base, dtype, 7, 0));
    for (const uint64_t block : {kLeafBytes, uint64_t{1} << 20})
      digests.push_back(Scan({"a"}, {.block_bytes = block}).at("a").content.digest);
  }
  DigestTree tree((expert.bytes.size() + kLeafBytes - 1) / kLeafBytes);
  tree.Set(0, std::as_bytes(std::span(expert.bytes)), kLeafBytes);
  for (const Digest128& digest : digests)
    EXPECT_EQ(digest, tree.RootDigest());
}

TEST_F(AnalyzeScanTest, ThresholdsAreThoseOfAMerge) {
  const StoredTensor base = tests::RandomTensor("w", DType::kBF16, {70'000}, 1);
  const StoredTensor expert = tests::Finetuned(base, DType::kBF16, 2, 0.1);
  Write("base", base);
  Write("a", expert);
  const auto found = Scan({"a"}, {.kept = {700, 35'000}});
  ASSERT_EQ(found.at("a").knowledge->thresholds.size(), 2u);
  const std::vector<double> x = tests::ValuesOf(expert), y = tests::ValuesOf(base);
  std::vector<float> delta;
  for (size_t i = 0; i < x.size(); ++i)
    delta.push_back(static_cast<float>(x[i]) - static_cast<float>(y[i]));
  for (const ExactThreshold& got : found.at("a").knowledge->thresholds) {
    MagnitudeSelection selection(delta.size(), got.kept, true);
    for (size_t round = 0; round < MagnitudeSelection::Rounds(delta.size()); ++round) {
      MagnitudeSelection::Scratch scratch;
      selection.Count(scratch, delta.data(), delta.size(), Must(kernels::ChooseKernels(""))->f32);
      selection.Merge(scratch);
      selection.FinishRound();
    }
    EXPECT_EQ(got.threshold.key, selection.threshold().key);
    EXPECT_EQ(got.threshold.equal_total, selection.threshold().equal_total);
    EXPECT_EQ(got.threshold.equal_kept, selection.threshold().equal_kept);
    EXPECT_EQ(got.l1_whole, selection.l1_whole());
    EXPECT_EQ(got.l1_kept, selection.l1_kept());
  }
}

TEST_F(AnalyzeScanTest, DeltasTooSmallForFloat32AreStillDeltas) {
  Write("base", tests::TensorOf("w", DType::kF64, {3}, {0, 1e-300, 1}));
  Write("a", tests::TensorOf("w", DType::kF64, {3}, {0, 2e-300, 1}));
  const auto found = Scan({"a"});
  const BlockColumns& blocks = found.at("a").knowledge->blocks;
  EXPECT_EQ(blocks.nonzeros[0], 1u);
  EXPECT_GT(blocks.max_key[0], 0u);
  EXPECT_EQ(blocks.octaves[0], 1u);
}

TEST_F(AnalyzeScanTest, ValuesThatAreNotFiniteHaveNoStatistics) {
  Write("base", tests::TensorOf("w", DType::kF32, {2}, {1, 2}));
  Write("a", tests::TensorOf("w", DType::kF32, {2}, {1, INFINITY}));
  Write("b", tests::TensorOf("w", DType::kF32, {2}, {1, 3}));
  const auto found = Scan({"a", "b"}, {.kept = {1}});
  EXPECT_TRUE(found.at("a").has_columns);
  EXPECT_FALSE(found.at("a").knowledge.has_value());
  EXPECT_TRUE(found.at("b").knowledge.has_value());
  EXPECT_TRUE(found.at("base").base_columns.has_value());
}

TEST_F(AnalyzeScanTest, EachByteIsReadOnceWhereMemoryAllows) {
  const StoredTensor base = tests::RandomTensor("w", DType::kBF16, {1'000'000}, 1);
  Write("base", base);
  Write("a", tests::Finetuned(base, DType::kBF16, 2, 0.1));
  Write("b", tests::Finetuned(base, DType::kBF16, 3, 0.1));
  Scan({"a", "b"}, {.kept = {1000}});
  EXPECT_EQ(ledger_.TotalRead(Purpose::kBaseData), 2'000'000u);
  EXPECT_EQ(ledger_.TotalRead(Purpose::kExpertData), 4'000'000u);
}

}  // namespace
}  // namespace mergepipe
