#include "planner/layout.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TempFolder;

std::vector<std::string> NamesIn(const Plan& plan, const Unit& unit) {
  std::vector<std::string> names;
  for (const size_t t : unit.tensors)
    names.push_back(plan.merge->tensors[t].name);
  return names;
}

std::vector<std::string> FilesOf(const Plan& plan) {
  std::vector<std::string> files;
  for (const Unit& unit : plan.units)
    files.push_back(unit.file_name);
  return files;
}

StoredTensor Of(const std::string& name, DType dtype, std::vector<uint64_t> shape) {
  StoredTensor tensor{name, dtype, std::move(shape), ""};
  tensor.bytes.resize(tests::CountOf(tensor.shape) * DTypeBytes(dtype));
  return tensor;
}

// Every output tensor stands in one unit, at a multiple of its element's size, inside the file.
void ExpectSoundLayout(const Plan& plan) {
  std::vector<size_t> times(plan.merge->tensors.size(), 0);
  for (const Unit& unit : plan.units) {
    ASSERT_EQ(unit.layout.offsets.size(), unit.tensors.size());
    uint64_t at = unit.layout.prefix.size();
    for (size_t i = 0; i < unit.tensors.size(); ++i) {
      const ResolvedTensor& tensor = plan.merge->tensors[unit.tensors[i]];
      ++times[unit.tensors[i]];
      EXPECT_EQ(unit.layout.offsets[i], at) << tensor.name;
      EXPECT_EQ(at % DTypeBytes(tensor.dtype), 0u) << tensor.name;
      at += tensor.bytes();
    }
    EXPECT_EQ(unit.layout.file_size, at);
  }
  EXPECT_EQ(times, std::vector<size_t>(times.size(), 1));
}

TEST(Layout, KeepsTheBasesShardsAndTheirOrder) {
  const TempFolder folder;
  const std::vector<StoredTensor> tensors = tests::SmallModel(DType::kBF16, 1);
  const std::vector<std::vector<StoredTensor>> shards = {{tensors[8], tensors[1]},
                                                         {tensors[0], tensors[7], tensors[2], tensors[3]},
                                                         {tensors[6], tensors[5], tensors[4]}};
  tests::WriteSharded(folder / "base", shards);
  tests::WriteCheckpoint(folder / "expert1", tests::NearTo(tensors, DType::kF32, 9));
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 1))).plan;
  ASSERT_EQ(plan.units.size(), 3u);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(plan.units[s].file_name, tests::ShardName(s, 3));
    std::vector<std::string> names;
    for (const StoredTensor& tensor : shards[s])
      names.push_back(tensor.name);
    EXPECT_EQ(NamesIn(plan, plan.units[s]), names);
  }
  ExpectSoundLayout(plan);
}

TEST(Layout, KeepsTheNameAndMetadataOfASingleFile) {
  const TempFolder folder;
  tests::WriteFile(folder / "base/diffusion.safetensors",
                   tests::SafetensorsOf({Of("w", DType::kF32, {3})}, {{"format", "pt"}, {"step", "7"}}));
  tests::WriteCheckpoint(folder / "expert1", {Of("w", DType::kF32, {3})});
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 1))).plan;
  EXPECT_THAT(FilesOf(plan), ElementsAre("diffusion.safetensors"));
  const auto header = Must(ParseSafetensorsHeader(std::string_view(plan.units[0].layout.prefix).substr(8),
                                                  plan.units[0].layout.file_size, "out"));
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"step", "7"}}));
}

TEST(Layout, ATensorThatMisalignsTheNextIsMovedBehindWiderOnes) {
  const TempFolder folder;
  const std::vector<StoredTensor> tensors = {Of("a", DType::kBF16, {3}), Of("b", DType::kF32, {2}),
                                             Of("c", DType::kBool, {1}), Of("d", DType::kF64, {1}),
                                             Of("e", DType::kBF16, {1})};
  tests::WriteCheckpoint(folder / "base", tensors);
  tests::WriteCheckpoint(folder / "expert1", tensors);
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 1))).plan;
  EXPECT_THAT(NamesIn(plan, plan.units[0]), ElementsAre("d", "b", "a", "e", "c"));
  ExpectSoundLayout(plan);
}

TEST(Layout, AnOrderThatIsAlignedIsKept) {
  const TempFolder folder;
  const std::vector<StoredTensor> tensors = {Of("z", DType::kBF16, {4}), Of("m", DType::kF32, {2}),
                                             Of("a", DType::kBF16, {3})};
  tests::WriteCheckpoint(folder / "base", tensors);
  tests::WriteCheckpoint(folder / "expert1", tensors);
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 1))).plan;
  EXPECT_THAT(NamesIn(plan, plan.units[0]), ElementsAre("z", "m", "a"));
}

TEST(Layout, ASupersededCopyIsNotWritten) {
  const TempFolder folder;
  tests::WriteFile(folder / "base/one.safetensors",
                   tests::SafetensorsOf({Of("a", DType::kF32, {2}), Of("b", DType::kF32, {2})}));
  tests::WriteFile(folder / "base/two.safetensors", tests::SafetensorsOf({Of("a", DType::kF32, {2})}));
  tests::WriteFile(folder / ("base/" + std::string(kIndexName)),
                   tests::IndexText({{"a", "two.safetensors"}, {"b", "one.safetensors"}}));
  tests::WriteCheckpoint(folder / "expert1", {Of("a", DType::kF32, {2}), Of("b", DType::kF32, {2})});
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 1))).plan;
  EXPECT_THAT(FilesOf(plan), ElementsAre("one.safetensors", "two.safetensors"));
  EXPECT_THAT(NamesIn(plan, plan.units[0]), ElementsAre("b"));
  EXPECT_THAT(NamesIn(plan, plan.units[1]), ElementsAre("a"));
}

TEST(Layout, AnOutputTypeOfItsOwnKeepsOrderAndShards) {
  const TempFolder folder;
  const std::vector<StoredTensor> tensors = tests::SmallModel(DType::kF32, 1);
  tests::WriteSharded(folder / "base", {{tensors[0], tensors[1]},
                                        std::vector<StoredTensor>(tensors.begin() + 2, tensors.end())});
  tests::WriteCheckpoint(folder / "expert1", tests::NearTo(tensors, DType::kF32, 5));
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", 1) + "out_dtype: bfloat16\n")).plan;
  EXPECT_EQ(plan.units.size(), 2u);
  for (const ResolvedTensor& tensor : plan.merge->tensors)
    EXPECT_EQ(tensor.dtype, DType::kBF16);
  ExpectSoundLayout(plan);
}

// A stack of layers that no model has: embeddings, layers by number, then the rest.
TEST(Layout, ANewModelStandsInLayerOrderInOneFile) {
  const TempFolder folder;
  std::vector<StoredTensor> tensors = {Of("lm_head.weight", DType::kBF16, {4}),
                                       Of("model.norm.weight", DType::kBF16, {4}),
                                       Of("model.embed_tokens.weight", DType::kBF16, {4})};
  for (int layer = 0; layer < 11; ++layer)
    tensors.push_back(Of(Format("model.layers.{}.w", layer), DType::kBF16, {4}));
  tests::WriteSharded(folder / "base", {tensors});
  const Plan plan = Must(PlanRecipe(folder.path(), R"(
merge_method: passthrough
slices:
  - sources: [{model: ~/base, layer_range: [0, 11]}]
  - sources: [{model: ~/base, layer_range: [9, 11]}]
)"))
                        .plan;
  EXPECT_THAT(FilesOf(plan), ElementsAre("model.safetensors"));
  std::vector<std::string> expected = {"model.embed_tokens.weight"};
  for (int layer = 0; layer < 13; ++layer)
    expected.push_back(Format("model.layers.{}.w", layer));
  expected.insert(expected.end(), {"lm_head.weight", "model.norm.weight"});
  EXPECT_EQ(NamesIn(plan, plan.units[0]), expected);
  ExpectSoundLayout(plan);
}

TEST(Layout, ANewModelHasShardsOfAtMostFiveGigabytes) {
  const TempFolder folder;
  std::vector<StoredTensor> tensors;
  for (int layer = 0; layer < 6; ++layer)
    tensors.push_back({Format("model.layers.{}.w", layer), DType::kBF16, {1'100'000'000}, ""});  // 2.2 GB
  tests::WriteHollowCheckpoint(folder / "base", tensors);
  const Plan plan = Must(PlanRecipe(folder.path(), R"(
merge_method: passthrough
slices:
  - sources: [{model: ~/base, layer_range: [0, 3]}]
  - sources: [{model: ~/base, layer_range: [0, 4]}]
)"))
                        .plan;
  EXPECT_THAT(FilesOf(plan),
              ElementsAre("model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                          "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"));
  for (const Unit& unit : plan.units)
    EXPECT_LE(unit.layout.file_size, 5'000'000'000u);
  ExpectSoundLayout(plan);
}

}  // namespace
}  // namespace mergepipe
