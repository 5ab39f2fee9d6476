#include "planner/plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/text.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TempFolder;

// A sharded base in BF16, experts in BF16 and F32.
void WriteFamily(const std::string& folder) {
  const std::vector<StoredTensor> base = tests::SmallModel(DType::kBF16, 1);
  tests::WriteSharded(folder + "/base",
                      {{base[0], base[1], base[2]}, std::vector<StoredTensor>(base.begin() + 3, base.end())});
  tests::WriteCheckpoint(folder + "/expert1", tests::NearTo(base, DType::kBF16, 20));
  tests::WriteCheckpoint(folder + "/expert2", tests::NearTo(base, DType::kF32, 40));
}

class PlanDigest : public testing::Test {
 protected:
  PlanDigest() { WriteFamily(folder_.path()); }
  std::string Of(const std::string& recipe,
                 const PlanOptions& options = {.memory_bytes = tests::kRoomyMemory},
                 const ResolveOptions& resolve = {}) {
    return Must(PlanRecipe(folder_.path(), recipe, options, resolve)).plan.digest;
  }
  TempFolder folder_;
  const std::string recipe_ = RecipeOf("dare_ties", 2, "{density: 0.5}");
};

TEST_F(PlanDigest, IsIndependentOfThreadsAndMemory) {
  const std::string digest = Of(recipe_);
  for (const size_t threads : {1u, 3u, 64u}) {
    for (const uint64_t memory : {16u << 20, 1u << 30})
      EXPECT_EQ(Of(recipe_, {.memory_bytes = memory, .threads = threads}), digest);
  }
}

TEST_F(PlanDigest, IsIndependentOfPaths) {
  const TempFolder elsewhere;
  WriteFamily(elsewhere / "deep/er");
  std::filesystem::create_directory_symlink(elsewhere / "deep/er/base", elsewhere / "deep/link");
  const std::string recipe = tests::Replace(recipe_, "~/base", "~/../link");
  EXPECT_EQ(Must(PlanRecipe(elsewhere / "deep/er", recipe)).plan.digest, Of(recipe_));
}

TEST_F(PlanDigest, IsIndependentOfHowTheRecipeIsWritten) {
  EXPECT_EQ(Of("# a comment\n" + tests::Replace(recipe_, "density: 0.5", "density: [0.5, 5e-1]")),
            Of(recipe_));
}

TEST_F(PlanDigest, ChangesWithEverythingThatDecidesTheOutput) {
  std::set<std::string> digests = {Of(recipe_)};
  const auto is_new = [&](const std::string& digest) { return digests.insert(digest).second; };
  EXPECT_TRUE(is_new(Of(tests::Replace(recipe_, "dare_ties", "ties"))));
  EXPECT_TRUE(is_new(Of(tests::Replace(recipe_, "density: 0.5", "density: 0.51"))));
  EXPECT_TRUE(is_new(Of(tests::Replace(recipe_, "weight: 0.5", "weight: 0.25"))));
  EXPECT_TRUE(is_new(Of(recipe_ + "out_dtype: float16\n")));
  EXPECT_TRUE(is_new(Of(recipe_, {.memory_bytes = tests::kRoomyMemory}, {.seed = 5})));
  EXPECT_TRUE(is_new(Of(recipe_, {.memory_bytes = tests::kRoomyMemory, .block_bytes = 16u << 10})));
  std::string swapped = tests::Replace(recipe_, "expert1", "expertX");
  swapped = tests::Replace(swapped, "expert2", "expert1");
  EXPECT_TRUE(is_new(Of(tests::Replace(swapped, "expertX", "expert2"))));
  tests::WriteFile(folder_ / "expert1/model.safetensors",
                   tests::SafetensorsOf(tests::NearTo(tests::SmallModel(DType::kBF16, 1), DType::kF16, 20)));
  EXPECT_TRUE(is_new(Of(recipe_))) << "with another type in an expert";
}

uint64_t DataOf(const std::string& folder, const std::string& model) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tests::ReadCheckpoint(folder + "/" + model))
    bytes += tensor.bytes.size();
  return bytes;
}

TEST(PlanCosts, AreEveryTensorOncePerPass) {
  const TempFolder folder;
  WriteFamily(folder.path());
  const uint64_t base = DataOf(folder.path(), "base");
  const uint64_t experts = DataOf(folder.path(), "expert1") + DataOf(folder.path(), "expert2");
  for (const char* method : {"task_arithmetic", "ties", "dare_linear"}) {
    const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf(method, 2, "{density: 0.5}"))).plan;
    EXPECT_EQ(plan.costs.base_read_bytes, base) << method;
    EXPECT_EQ(plan.costs.expert_read_bytes, experts) << method;
  }
}

TEST(PlanCosts, AFurtherPassIsPaidFor) {
  const TempFolder folder;
  for (const char* model : {"base", "expert1", "expert2"})
    tests::WriteHollowCheckpoint(folder / model, {{"w", DType::kBF16, {1u << 30}, ""}});
  const auto costs = [&](const char* parameters) {
    return Must(PlanRecipe(folder.path(), RecipeOf("ties", 2, parameters))).plan.costs;
  };
  constexpr uint64_t kModel = 2ull << 30;
  EXPECT_EQ(costs("{density: 1}").expert_read_bytes, 2 * kModel);
  EXPECT_EQ(costs("{density: 1, rescale: true}").expert_read_bytes, 2 * 2 * kModel);
  EXPECT_EQ(costs("{density: 0.5}").expert_read_bytes, 3 * 2 * kModel);
  EXPECT_EQ(costs("{density: 0.5}").base_read_bytes, 3 * kModel);
}

TEST(PlanCosts, OfLinearCountTheDonorAsBase) {
  const TempFolder folder;
  WriteFamily(folder.path());
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("linear", 2))).plan;
  EXPECT_EQ(plan.costs.base_read_bytes, DataOf(folder.path(), "base"));
  EXPECT_EQ(plan.costs.expert_read_bytes,
            DataOf(folder.path(), "expert1") + DataOf(folder.path(), "expert2"));
}

TEST(PlanCosts, WritesAreTheFilesAsLaidOut) {
  const TempFolder folder;
  WriteFamily(folder.path());
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 2))).plan;
  uint64_t bytes = 0;
  for (const Unit& unit : plan.units)
    bytes += unit.layout.file_size;
  EXPECT_EQ(plan.costs.write_bytes, bytes);
  EXPECT_GT(bytes, DataOf(folder.path(), "base"));
}

TEST(Plan, ReadsEverythingUntilThereIsABudget) {
  const TempFolder folder;
  WriteFamily(folder.path());
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 2))).plan;
  for (const TensorMask& mask : plan.masks)
    EXPECT_TRUE(mask.reads_all());
}

TEST(Plan, DigestLeavesHaveAsManyElementsAsTheReferences16KiB) {
  const TempFolder folder;
  const StoredTensor bf16 = tests::RandomTensor("w", DType::kBF16, {100}, 1);
  const StoredTensor ids{"ids", DType::kU8, {3}, "abc"};
  tests::WriteCheckpoint(folder / "base", {bf16, ids});
  tests::WriteCheckpoint(folder / "expert1", {tests::Finetuned(bf16, DType::kF64, 2, 1), ids});
  const Planned planned = Must(PlanRecipe(folder.path(), RecipeOf("ties", 1) + "out_dtype: float32\n"));
  EXPECT_EQ(OutputLeafBytes(planned.plan, planned.Number("w")), 2 * kLeafBytes);
  EXPECT_EQ(OutputLeafBytes(planned.plan, planned.Number("ids")), kLeafBytes);
}

}  // namespace
}  // namespace mergepipe
