#include "txn/side_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/digest.h"
#include "base/text.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::UnorderedElementsAre;
using tests::Must;
using tests::Planned;
using tests::StoredTensor;
using tests::TempFolder;

constexpr const char* kStack = R"(
merge_method: passthrough
slices:
  - sources: [{model: ~/base, layer_range: [0, 2]}]
  - sources: [{model: ~/base, layer_range: [1, 2]}]
)";

class SideFilesTest : public testing::Test {
 protected:
  SideFilesTest() : base_(tests::SmallModel(DType::kBF16, 1)) {
    tests::WriteCheckpoint(folder_ / "base", base_);
    tests::WriteCheckpoint(folder_ / "expert1", tests::NearTo(base_, DType::kBF16, 9));
  }

  void Write(const std::string& name, const std::string& text) {
    tests::WriteFile(folder_ / ("base/" + name), text);
  }
  void ShardTheBase() {
    std::filesystem::remove(folder_ / "base/model.safetensors");
    tests::WriteSharded(folder_ / "base", {{base_[0], base_[1]}, {base_.begin() + 2, base_.end()}});
  }

  // The staged side files of a merge.
  std::map<std::string, std::string> Staged(const std::string& recipe) {
    Planned planned = Must(tests::PlanRecipe(folder_.path(), recipe));
    const auto staging = Must(Staging::Open(folder_ / "out", false, *planned.ledger));
    made_ = Must(WriteSideFiles(planned.plan, recipe, *staging));
    return tests::ReadTree(staging->folder());
  }
  OrderedJson Edited(const std::string& config, const std::string& recipe) {
    Write("config.json", config);
    return Must(EditedConfig(*Must(tests::PlanRecipe(folder_.path(), recipe)).plan.merge));
  }

  TempFolder folder_;
  std::vector<StoredTensor> base_;
  SideFiles made_;
  const std::string ties_ = tests::RecipeOf("ties", 1);
};

TEST_F(SideFilesTest, AreTheBasesByteForByte) {
  Write("config.json", "{ \"a\":1,\n\"b\" : 2 }");
  Write("tokenizer.json", std::string("\0\xff binary", 9));
  Write("1_Pooling/config.json", "pool");
  const auto staged = Staged(ties_);
  EXPECT_EQ(staged.at("config.json"), "{ \"a\":1,\n\"b\" : 2 }");
  EXPECT_EQ(staged.at("tokenizer.json"), std::string("\0\xff binary", 9));
  EXPECT_EQ(staged.at("1_Pooling/config.json"), "pool");
  EXPECT_THAT(made_.files,
              UnorderedElementsAre(Key("config.json"), Key("tokenizer.json"), Key("1_Pooling/config.json")));
}

TEST_F(SideFilesTest, RecordsAreThoseOfTheWrittenBytes) {
  Write("config.json", R"({"torch_dtype": "bfloat16"})");
  ShardTheBase();
  const auto staged = Staged(ties_ + "out_dtype: float32\n");
  std::map<std::string, FileRecord> all = made_.files;
  all.insert(made_.notes.begin(), made_.notes.end());
  EXPECT_EQ(all.size(), staged.size());
  for (const auto& [name, text] : staged) {
    EXPECT_EQ(all.at(name).digest, Hex(DigestOf(std::as_bytes(std::span(text))))) << name;
    EXPECT_EQ(all.at(name).bytes, text.size()) << name;
  }
}

TEST_F(SideFilesTest, TheRecipeAndTheCardAreNotes) {
  Write("README.md", "the base's own card");
  Write("mergekit_config.yml", "an older recipe");
  Write("mergepipe_manifest.json", "{}");
  const auto staged = Staged(ties_);
  EXPECT_EQ(staged.at("mergekit_config.yml"), ties_);
  EXPECT_THAT(staged.at("README.md"), HasSubstr("Made with mergepipe"));
  EXPECT_EQ(staged.count("mergepipe_manifest.json"), 0u);
  EXPECT_THAT(made_.notes, ElementsAre(Key("README.md"), Key("mergekit_config.yml")));
  EXPECT_TRUE(made_.files.empty());
}

TEST_F(SideFilesTest, AShardedOutputHasAnIndexThatLoadersRead) {
  ShardTheBase();
  Write(kIndexName,
        tests::Replace(tests::ReadFile(folder_ / "base/model.safetensors.index.json"), "\"metadata\": {}",
                       R"("metadata": {"total_size": 5, "total_parameters": 7, "own": "kept"})"));
  const Json index = Must(ParseJson(Staged(ties_).at(kIndexName), "index"));
  uint64_t bytes = 0;
  for (const StoredTensor& tensor : base_)
    bytes += tensor.bytes.size();
  EXPECT_EQ(index.at("metadata"), (Json{{"total_size", bytes}, {"total_parameters", 7}, {"own", "kept"}}));
  EXPECT_EQ(index.at("weight_map").size(), base_.size());
  EXPECT_EQ(index.at("weight_map").at(base_[0].name), tests::ShardName(0, 2));
  EXPECT_EQ(index.at("weight_map").at(base_[5].name), tests::ShardName(1, 2));
}

TEST_F(SideFilesTest, ASingleFileNeedsNoIndex) {
  EXPECT_EQ(Staged(ties_).count(kIndexName), 0u);
  ShardTheBase();
  EXPECT_EQ(Staged(kStack).count(kIndexName), 0u) << "a new model in one file";
}

// --- config.json

TEST_F(SideFilesTest, AConfigIsLeftAloneWhereNothingChanges) {
  for (const char* config : {R"({"torch_dtype": "bfloat16", "num_hidden_layers": 2})", "[]", "5", "{}"})
    EXPECT_TRUE(Edited(config, ties_).is_null()) << config;
  EXPECT_TRUE(Edited(R"({"torch_dtype": "bfloat16"})", ties_ + "out_dtype: bfloat16\n").is_null());
}

TEST_F(SideFilesTest, TheTypeFollowsTheOutput) {
  const std::string recipe = ties_ + "out_dtype: float32\n";
  EXPECT_EQ(Edited(R"({"z": 1, "torch_dtype": "bfloat16", "a": 2})", recipe).dump(),
            R"({"z":1,"torch_dtype":"float32","a":2})");
  EXPECT_EQ(Edited(R"({"dtype": "bfloat16"})", recipe).dump(), R"({"dtype":"float32"})");
  EXPECT_EQ(Edited(R"({"dtype": "a", "torch_dtype": "b"})", recipe).dump(),
            R"({"dtype":"float32","torch_dtype":"float32"})");
  EXPECT_EQ(Edited("{}", recipe).dump(), R"({"torch_dtype":"float32"})");
}

TEST_F(SideFilesTest, TheTypeOfANestedTextModelFollowsToo) {
  const OrderedJson config = Edited(
      R"({"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}, "vision_config": {"dtype": "x"}})",
      ties_ + "out_dtype: float16\n");
  EXPECT_EQ(config.dump(),
            R"({"torch_dtype":"float16","text_config":{"dtype":"float16"},"vision_config":{"dtype":"x"}})");
  EXPECT_EQ(Edited(R"({"dtype": "float16", "text_config": {"a": 1}})", ties_ + "out_dtype: float32\n").dump(),
            R"({"dtype":"float32","text_config":{"a":1}})");
}

TEST_F(SideFilesTest, TheLayerCountFollowsTheSlices) {
  for (const char* key : {"num_hidden_layers", "n_layer", "num_layers", "n_layers"})
    EXPECT_EQ(Edited(Format(R"({{"{}": 2, "other": 2}})", key), kStack).dump(),
              Format(R"({{"{}":3,"other":2}})", key));
  EXPECT_EQ(Edited(R"({"text_config": {"num_hidden_layers": 2}})", kStack).dump(),
            R"({"text_config":{"num_hidden_layers":3}})");
}

TEST_F(SideFilesTest, ListsWithAnEntryForEachLayerFollowTheSlices) {
  const OrderedJson config = Edited(
      R"({"layer_types": ["full", "sliding"], "layer_scales": [1, 2], "layer_names": ["a", "b", "c"], "eos": [7, 8]})",
      kStack);
  EXPECT_EQ(config.at("layer_types").dump(), R"(["full","sliding","sliding"])");
  EXPECT_EQ(config.at("layer_scales").dump(), "[1,2,2]");
  EXPECT_EQ(config.at("layer_names").dump(), R"(["a","b","c"])");
  EXPECT_EQ(config.at("eos").dump(), "[7,8]");
}

TEST_F(SideFilesTest, ADamagedConfigIsAnError) {
  const Planned planned = Must(tests::PlanRecipe(folder_.path(), ties_));
  Write("config.json", "{");
  EXPECT_THAT(EditedConfig(*planned.plan.merge), tests::FailsWith(Code::kInvalidInput, "config.json"));
}

// --- the model card

TEST_F(SideFilesTest, TheCardNamesMethodParentsAndRecipe) {
  const Planned planned = Must(tests::PlanRecipe(folder_.path(), ties_));
  const std::string card = ModelCard(*planned.plan.merge, ties_);
  EXPECT_THAT(card, Not(HasSubstr("base_model:\n- ")));  // no model of the Hub is among them
  for (const ResolvedModel& model : planned.plan.merge->models)
    EXPECT_THAT(card, HasSubstr(Format("\n- `{}`\n", model.name)));
  EXPECT_THAT(card, HasSubstr("by the method `ties`"));
  EXPECT_THAT(card, HasSubstr("```yaml\n" + ties_ + "```\n"));
}

TEST_F(SideFilesTest, TheCardNamesModelsWhosePathIsNoText) {
  tests::WriteCheckpoint(folder_ / "caf\xe9", base_);
  const std::string recipe = tests::Replace(ties_, "~/expert1", "~/caf\xe9");
  const Planned planned = Must(tests::PlanRecipe(folder_.path(), recipe));
  EXPECT_THAT(ModelCard(*planned.plan.merge, recipe), HasSubstr("/caf\uFFFD\"`\n"));
}

TEST_F(SideFilesTest, TheCardIsTheSameForTheSameMerge) {
  const auto card = [&] {
    return ModelCard(*Must(tests::PlanRecipe(folder_.path(), ties_)).plan.merge, ties_);
  };
  EXPECT_EQ(card(), card());
}

// --- the estimate

TEST_F(SideFilesTest, TheEstimateIsAtLeastWhatIsCopied) {
  Write("tokenizer.json", std::string(100'000, 'x'));
  Write("config.json", "{}");
  EXPECT_EQ(Must(EstimateSideFileBytes(Must(tests::PlanRecipe(folder_.path(), ties_)).plan)), 100'002u);
}

}  // namespace
}  // namespace mergepipe
