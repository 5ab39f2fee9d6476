#include "txn/manifest.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/digest.h"
#include "base/text.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::Planned;
using tests::Succeeds;
using tests::TempFolder;

// What a run would have recorded; digests are made up.
TensorRecord RecordOf(const ResolvedTensor& tensor) {
  TensorRecord record{.digest = "d-" + tensor.name, .chunks = {"c-" + tensor.name}};
  for (size_t s = 0; s < tensor.sources.size(); ++s)
    record.sources.push_back(Format("s{}-{}", s, tensor.name));
  if (tensor.merged) record.thresholds.push_back({0, 0.25f, 7, 3});
  return record;
}

class ManifestTest : public testing::Test {
 protected:
  ManifestTest() {
    const auto base = tests::SmallModel(DType::kBF16, 1);
    tests::WriteCheckpoint(folder_ / "base", base);
    tests::WriteCheckpoint(folder_ / "expert1", tests::NearTo(base, DType::kBF16, 9));
    planned_ = Must(tests::PlanRecipe(folder_.path(), tests::RecipeOf("ties", 1, "{density: [0.2, 0.8]}")));
    for (const ResolvedTensor& tensor : planned_.plan.merge->tensors)
      records_.push_back(RecordOf(tensor));
  }

  // The manifest as written, and what its writer said of the root digest.
  Json Build() const {
    Ledger ledger;
    const auto sink = Must(TextSink::Create(folder_ / "written", ledger));
    const std::string root = Must(WriteManifest({.plan = &planned_.plan,
                                                 .tensors = &records_,
                                                 .files = files_,
                                                 .notes = notes_,
                                                 .envelope = envelope_},
                                                *sink));
    Must(sink->Finish());
    const Json manifest = Must(ParseJson(tests::ReadFile(folder_ / "written"), "written"));
    EXPECT_EQ(manifest.at("root_digest"), root);
    return manifest;
  }
  Result<Json> ReadBack(const std::string& text) const {
    tests::WriteFile(folder_ / ("out/" + std::string(kManifestName)), text);
    return ReadManifest(folder_ / "out");
  }

  TempFolder folder_;
  Planned planned_;
  std::vector<TensorRecord> records_;
  std::map<std::string, FileRecord> files_ = {{"config.json", {"f", 2}}};
  std::map<std::string, FileRecord> notes_ = {{"README.md", {"n", 3}}};
  Json envelope_ = {
      {"seconds", 1.5},
      {"recipe", "merge_method: ties\n"},
      {"recipe_path", "r.yml"},
      {"options",
       {{"allow_nonfinite", false},
        {"missing", "error"},
        {"memory_bytes", 1},
        {"form", {{"shard_bytes", nullptr}, {"copies_tokenizer", true}, {"writes_card", true}}}}},
      {"paths", {{"base", "/models/base"}}}};
};

std::string RootOf(const Json& manifest) {
  return manifest.at("root_digest");
}

TEST_F(ManifestTest, TheRootDigestIsThatOfTheCore) {
  const Json manifest = Build();
  EXPECT_EQ(RootOf(manifest), Sha256Hex(manifest.at("core").dump()));
  EXPECT_EQ(manifest.at("envelope_digest"), Sha256Hex(manifest.at("envelope").dump()));
  EXPECT_EQ(manifest.at("schema"), kManifestSchema);
}

TEST_F(ManifestTest, TheEnvelopeDoesNotReachTheRoot) {
  const std::string root = RootOf(Build());
  envelope_["seconds"] = 99;
  notes_["README.md"].digest = "edited";
  EXPECT_EQ(RootOf(Build()), root);
}

TEST_F(ManifestTest, EverythingWrittenReachesTheRoot) {
  const std::string root = RootOf(Build());
  const auto changed = [&](auto change) {
    const auto records = records_;
    const auto files = files_;
    change();
    const std::string now = RootOf(Build());
    records_ = records;
    files_ = files;
    return now != root;
  };
  EXPECT_TRUE(changed([&] { records_[3].digest = "x"; }));
  EXPECT_TRUE(changed([&] { records_[3].chunks[0] = "x"; }));
  EXPECT_TRUE(changed([&] { records_[3].sources[1] = "x"; }));
  EXPECT_TRUE(changed([&] { records_[3].thresholds[0].magnitude = 0.3f; }));
  EXPECT_TRUE(changed([&] { files_["config.json"].digest = "x"; }));
  EXPECT_TRUE(changed([&] { files_["tokenizer.json"] = {}; }));
  EXPECT_EQ(RootOf(Build()), root);
}

TEST_F(ManifestTest, NoPathReachesTheCore) {
  EXPECT_EQ(Build().at("core").dump().find(folder_.path()), std::string::npos);
}

TEST_F(ManifestTest, EveryTensorNamesItsParametersOnce) {
  const Json core = Build().at("core");
  EXPECT_EQ(core.at("tensors").size(), records_.size());
  EXPECT_EQ(core.at("parameters").size(), 2u) << "the gradient's two ends";
  for (const Json& tensor : core.at("tensors")) {
    const Json& set = core.at("parameters").at(tensor.at("parameters").get<size_t>());
    const bool last_layer = StartsWith(tensor.at("name").get<std::string>(), "model.layers.1.");
    EXPECT_EQ(set.at("inputs").at(0).at("density"), last_layer ? 0.8 : 0.2) << tensor.at("name");
  }
}

TEST_F(ManifestTest, IsReadBackWhateverItsIndentation) {
  const Json manifest = Build();
  for (const int indent : {-1, 0, 1, 4})
    EXPECT_EQ(Must(ReadBack(manifest.dump(indent))), manifest);
}

TEST_F(ManifestTest, AnEnvelopeMayHoldBytesThatAreNoText) {
  envelope_["path"] = "caf\xe9";
  const Json manifest = Build();
  EXPECT_EQ(Must(ReadBack(manifest.dump())).at("envelope").at("path"), "caf\uFFFD");
}

TEST_F(ManifestTest, ItsRecordsAreReadBack) {
  const auto records = TensorRecords(Must(ReadBack(Build().dump())));
  ASSERT_EQ(records.size(), records_.size());
  for (size_t i = 0; i < records_.size(); ++i) {
    const TensorRecord& read = records.at(planned_.plan.merge->tensors[i].name);
    EXPECT_EQ(RecordToJson(read), RecordToJson(records_[i]));
  }
}

TEST_F(ManifestTest, AChangeInItIsADifference) {
  const std::string text = Build().dump();
  EXPECT_THAT(ReadBack(tests::Replace(text, "d-lm_head", "D-lm_head")),
              FailsWith(Code::kDifference, "its core"));
  EXPECT_THAT(ReadBack(tests::Replace(text, "\"seconds\":1.5", "\"seconds\":1.6")),
              FailsWith(Code::kDifference, "its envelope"));
  EXPECT_THAT(ReadBack(tests::Replace(text, RootOf(Build()), std::string(64, '0'))),
              FailsWith(Code::kDifference, "its core"));
}

TEST_F(ManifestTest, WhatIsNoManifestIsAnInvalidInput) {
  EXPECT_THAT(ReadManifest(folder_ / "base"),
              FailsWith(Code::kInvalidInput, "only outputs of mergepipe have a manifest"));
  const std::string sound = Build().dump();
  EXPECT_THAT(ReadBack(sound), Succeeds());
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{}"),
        std::string(R"({"schema": "mergepipe.manifest/1"})"), std::string(R"({"schema": 5})"),
        std::string(R"({"schema": null, "core": {}, "envelope": {}})"),
        tests::Replace(sound, kManifestSchema, "mergepipe.manifest/2")})
    EXPECT_THAT(ReadBack(text), FailsWith(Code::kInvalidInput, kManifestName)) << text.substr(0, 80);
}

TEST_F(ManifestTest, DigestsOfAnotherKindAreADifference) {
  Json manifest = Build();
  manifest["root_digest"] = 5;
  EXPECT_THAT(ReadBack(manifest.dump()), FailsWith(Code::kDifference, "its core"));
}

TEST(TensorRecord, SurvivesJsonExactly) {
  TensorRecord record{.digest = "d", .chunks = {"a", "b"}, .sources = {"s", "t"}};
  for (const float magnitude : {0.0f, 1e-45f, 0.1f, 3.4028235e38f, 0x1.fffffep-127f})
    record.thresholds.push_back({record.thresholds.size(), magnitude, UINT64_MAX, 1});
  const TensorRecord back = RecordFromJson(Must(ParseJson(RecordToJson(record).dump(), "record")));
  EXPECT_EQ(back.digest, "d");
  EXPECT_EQ(back.chunks, record.chunks);
  EXPECT_EQ(back.sources, record.sources);
  ASSERT_EQ(back.thresholds.size(), record.thresholds.size());
  for (size_t i = 0; i < back.thresholds.size(); ++i) {
    EXPECT_EQ(back.thresholds[i].input, i);
    EXPECT_EQ(back.thresholds[i].magnitude, record.thresholds[i].magnitude);
    EXPECT_EQ(back.thresholds[i].equals, UINT64_MAX);
    EXPECT_EQ(back.thresholds[i].equals_kept, 1u);
  }
}

}  // namespace
}  // namespace mergepipe
