#include "executor/item_compute.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/text.h"
#include "executor/tensor_merge.h"
#include "support/evidence.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/runs.h"

namespace mergepipe {
namespace {

using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TempFolder;

const kernels::Kernels& Fastest() {
  static const kernels::Kernels* kernels = Must(kernels::ChooseKernels(""));
  return *kernels;
}

/// One tensor "w" of a base and experts, in memory, with blocks of 16 KiB.
class Bench {
 public:
  Bench(const std::string& method, const std::vector<StoredTensor>& models, const std::string& more = "") {
    for (size_t m = 0; m < models.size(); ++m)
      tests::WriteCheckpoint(folder_ / (m == 0 ? std::string("base") : Format("expert{}", m)), {models[m]});
    planned = Must(PlanRecipe(folder_.path(), RecipeOf(method, models.size() - 1, "{density: 1}") + more,
                              {.memory_bytes = tests::kRoomyMemory, .block_bytes = 16u << 10}));
    for (size_t s = 0; s < tensor().sources.size(); ++s)
      stored.push_back(tests::BytesOf(planned.plan, 0, s));
  }
  const ResolvedTensor& tensor() const { return planned.plan.merge->tensors[0]; }
  TensorMask NewMask() const { return TensorMask(stored.size(), tensor().elements, BlockElements()); }
  uint64_t BlockElements() const { return (16u << 10) / planned.plan.tensors[0].element_bytes; }

  ItemData Item(const TensorMask* mask) const {
    ItemData item{.first = 0, .count = tensor().elements, .sources = {}, .mask = mask};
    for (const std::string& bytes : stored)
      item.sources.push_back(reinterpret_cast<const std::byte*>(bytes.data()));
    return item;
  }
  std::string Apply(const ItemData& item) const {
    const TensorMerge merge(planned.plan, 0, Fastest());
    std::string out(tensor().bytes(), '\0');
    std::vector<uint64_t> equals(tensor().inputs.size(), 0);
    TileMemory tiles;
    merge.compute()->Apply(item, merge.constants(), merge.statistics(), equals,
                           reinterpret_cast<std::byte*>(out.data()), tiles);
    return out;
  }

  Planned planned;
  std::vector<std::string> stored;

 private:
  TempFolder folder_;
};

std::vector<StoredTensor> Models(DType dtype, size_t count) {
  std::vector<StoredTensor> models = {tests::RandomTensor("w", dtype, {count}, 1)};
  for (uint32_t e = 1; e <= 3; ++e)
    models.push_back(tests::Finetuned(models[0], dtype, 10 + e, 0.25));
  return models;
}

// Overwrites one block of a source with the bytes of another.
void Overwrite(std::string& bytes, const std::string& with, size_t block) {
  const size_t first = block * (16u << 10);
  const size_t count = std::min<size_t>(16u << 10, bytes.size() - first);
  bytes.replace(first, count, with.substr(first, count));
}

class ItemComputeUnderMasks : public testing::TestWithParam<std::string> {};

TEST_P(ItemComputeUnderMasks, WhatIsLeftOutIsAsIfItHeldTheReference) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    Bench bench(GetParam(), Models(dtype, 30'000));
    TensorMask mask = bench.NewMask();
    std::mt19937 random(3);
    for (size_t s = 1; s < 4; ++s) {
      for (size_t b = 0; b < mask.blocks(); ++b)
        mask.Set(s, b, random() % 2 == 0 ? s : TensorMask::kOmitted);
    }
    const std::string masked = bench.Apply(bench.Item(&mask));
    for (size_t s = 1; s < 4; ++s) {
      for (size_t b = 0; b < mask.blocks(); ++b) {
        if (!mask.Reads(s, b)) Overwrite(bench.stored[s], bench.stored[0], b);
      }
    }
    EXPECT_TRUE(masked == bench.Apply(bench.Item(nullptr))) << DTypeName(dtype);
  }
}

TEST_P(ItemComputeUnderMasks, WhatIsHeldByAnotherIsAsIfItHadItsBytes) {
  Bench bench(GetParam(), Models(DType::kBF16, 30'000));
  TensorMask mask = bench.NewMask();
  for (size_t b = 0; b < mask.blocks(); ++b) {
    mask.Set(1, b, 1);
    mask.Set(2, b, b % 2 == 0 ? 1 : 2);
    mask.Set(3, b, b % 3 == 0 ? 0 : 3);
  }
  ItemData item = bench.Item(&mask);
  const std::string masked = bench.Apply(item);
  for (size_t b = 0; b < mask.blocks(); ++b) {
    if (b % 2 == 0) Overwrite(bench.stored[2], bench.stored[1], b);
    if (b % 3 == 0) Overwrite(bench.stored[3], bench.stored[0], b);
  }
  EXPECT_TRUE(masked == bench.Apply(bench.Item(nullptr)));
}

TEST_P(ItemComputeUnderMasks, NeedsNoBytesOfASourceThatIsNotRead) {
  const Bench bench(GetParam(), Models(DType::kF32, 10'000));
  TensorMask mask = bench.NewMask();
  for (size_t b = 0; b < mask.blocks(); ++b) {
    mask.Set(1, b, 1);
    mask.Set(3, b, 1);
  }
  ItemData item = bench.Item(&mask);
  item.sources[2] = item.sources[3] = nullptr;
  const std::string out = bench.Apply(item);
  EXPECT_TRUE(out == bench.Apply(bench.Item(&mask)));
  TileMemory tiles;
  EXPECT_FALSE(ItemCompute(*bench.planned.plan.merge, bench.tensor(), Fastest()).FindNonFinite(item, tiles));
}

INSTANTIATE_TEST_SUITE_P(Methods, ItemComputeUnderMasks,
                         testing::Values("task_arithmetic", "linear", "ties", "dare_ties"),
                         [](const auto& method) { return method.param; });

// --- bits

// Every bit pattern of 16 bits, or many of 32: NaN payloads, signalling ones, both zeros, subnormals.
StoredTensor AllBits(DType dtype) {
  std::string bytes;
  std::mt19937 random(9);
  for (uint32_t k = 0; k < 65'536; ++k) {
    const uint32_t bits = DTypeBytes(dtype) == 2 ? k : k << 16 | (random() & 0xffff);
    bytes.append(reinterpret_cast<const char*>(&bits), DTypeBytes(dtype));
  }
  return {"w", dtype, {65'536}, bytes};
}

TEST(ItemCompute, WhatNoDeltaTouchesKeepsTheBasesBits) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const char* method : {"task_arithmetic", "ties", "dare_linear", "dare_ties"}) {
      const StoredTensor base = AllBits(dtype);
      std::vector<StoredTensor> models = {base, base, base};
      for (size_t m = 1; m < 3; ++m)
        models[m] = tests::RandomTensor("w", dtype, {65'536}, static_cast<uint32_t>(m));
      const Bench bench(method, models);
      TensorMask mask = bench.NewMask();
      mask.Set(1, 1, 1);
      const std::string out = bench.Apply(bench.Item(&mask));
      const size_t block = 16u << 10;
      EXPECT_TRUE(out.substr(0, block) == base.bytes.substr(0, block)) << method << " " << DTypeName(dtype);
      EXPECT_TRUE(out.substr(2 * block) == base.bytes.substr(2 * block)) << method << " " << DTypeName(dtype);
      EXPECT_FALSE(out.substr(block, block) == base.bytes.substr(block, block));
    }
  }
}

TEST(ItemCompute, WhatNoDeltaTouchesIsTheBaseInAnotherStoredTypeToo) {
  const Bench bench("task_arithmetic", Models(DType::kBF16, 20'000), "out_dtype: float32\n");
  const TensorMask mask = bench.NewMask();
  const std::string out = bench.Apply(bench.Item(&mask));
  EXPECT_EQ(tests::ValuesOf(StoredTensor{"", DType::kF32, {}, out}),
            tests::ValuesOf(StoredTensor{"", DType::kBF16, {}, bench.stored[0]}));
}

// --- cuts among equals

// Deltas of five sizes, so that the threshold is one that thousands of elements have.
std::vector<StoredTensor> CoarseModels(size_t count) {
  std::mt19937 random(4);
  std::vector<double> base(count);
  for (double& value : base)
    value = static_cast<double>(random() % 16);
  std::vector<StoredTensor> models = {tests::TensorOf("w", DType::kF32, {count}, base)};
  for (int e = 0; e < 3; ++e) {
    std::vector<double> values = base;
    for (double& value : values)
      value += static_cast<double>(random() % 9) - 4;
    models.push_back(tests::TensorOf("w", DType::kF32, {count}, values));
  }
  return models;
}

TEST(ItemCompute, TrimmingAtAKnownIndexIsTrimmingByCounting) {
  const TempFolder folder;
  const auto models = CoarseModels(100'000);
  for (size_t m = 0; m < models.size(); ++m)
    tests::WriteCheckpoint(folder / (m == 0 ? std::string("base") : Format("expert{}", m)), {models[m]});
  for (const char* density : {"0.05", "0.3", "0.61"}) {
    for (const size_t threads : {1u, 4u}) {
      const Planned counted =
          Must(PlanRecipe(folder.path(), RecipeOf("ties", 3, Format("{{density: {}}}", density)),
                          {.memory_bytes = 16u << 20, .threads = threads, .block_bytes = 16u << 10}));
      auto evidence = tests::ReckonEvidence(counted.plan, /*thresholds=*/true);
      const Planned known{counted.ledger, tests::DraftWith(counted.plan, evidence)};
      ASSERT_TRUE(known.plan.constants[0]->thresholds[1].cut_index);
      Planned given = known;
      for (Threshold& threshold : given.plan.constants[0]->thresholds)
        threshold.cut_index.reset();
      const auto files = Must(tests::RunPlan(counted)).files;
      EXPECT_TRUE(Must(tests::RunPlan(known)).files == files) << density;
      EXPECT_TRUE(Must(tests::RunPlan(given)).files == files) << density;
    }
  }
}

TEST(ItemCompute, CountsEqualsOnlyOfWhatIsReadAndWhereItIsCut) {
  const Bench bench("ties", CoarseModels(10'000));
  const ItemCompute compute(*bench.planned.plan.merge, bench.tensor(), Fastest());
  const uint32_t key = tests::KeyOf(2);
  TensorStatistics statistics;
  statistics.thresholds = {{key, 10, 5, std::nullopt}, {key, 10, 10, std::nullopt}, {key, 10, 5, 77}};
  TensorMask mask = bench.NewMask();
  for (size_t s = 1; s < 4; ++s)
    mask.Set(s, 1, s);
  uint64_t equal = 0;
  const std::vector<double> delta = tests::DeltaOf(bench.planned.plan, 0, 1);
  for (size_t k = 4'096; k < 8'192; ++k)
    equal += tests::KeyOf(delta[k]) == key;
  TileMemory tiles;
  const auto counts = compute.CountEquals(bench.Item(&mask), statistics, tiles);
  EXPECT_EQ(counts, (std::vector<uint64_t>{equal, 0, 0}));
  EXPECT_GT(equal, 0u);
}

}  // namespace
}  // namespace mergepipe
