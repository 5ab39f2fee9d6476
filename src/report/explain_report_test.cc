#include "report/explain_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace mergepipe {
namespace {

using testing::HasSubstr;
using testing::Not;

// Two experts of a tensor of 10 elements in blocks of 4: 4, 4 and 2 elements, two bytes each.
Json Tensor() {
  return {{"name", "model.layers.1.w"},
          {"elements", 10},
          {"block_elements", 4},
          {"models", {0, 1, 2}},
          {"inputs", {1, 2}},
          {"expected", {"", "", ""}},
          {"mask", {{"block_elements", 4}, {"rows", {{1, 2, 1, 0, 1, 2}, {1, 0, 1, 3, 1, 2}}}}},
          {"reads", {{0, 0, 0, 0.0, 0.0}, {20, 12, 0, 1.0, 4.0}, {20, 8, 12, 0.0, 2.0}}},
          {"constants",
           {{"thresholds", {{0x3f000000, 3, 2, nullptr}, {0, 0, 0, nullptr}}},
            {"l1_whole", Json::array()},
            {"l1_kept", Json::array()}}}};
}

// A tensor of the base alone.
Json Embedding() {
  return {{"name", "embed"}, {"models", {0}}, {"inputs", Json::array()}};
}

Json Budget() {
  return {{"budget_bytes", 20},
          {"policy", "gram"},
          {"statistics", "full"},
          {"sample_read_bytes", 0},
          {"complete", false},
          {"lossless_skipped_bytes", 12},
          {"predicted_deviation", {{"relative_to_weights", 0.01}, {"relative_to_update", 0.5}}},
          {"certificate", nullptr},
          {"checks_pairs", false},
          {"cut_rate", 0.125},
          {"identities", {"a", "b", "c"}}};
}

Json SoundPlan() {
  return {{"schema", "mergepipe.plan/1"},
          {"version", "1"},
          {"method", "ties"},
          {"plan_digest", "0123456789abcdef0123"},
          {"options", {{"block_bytes", 16384}}},
          {"models",
           {{{"name", "base"}, {"role", "base"}},
            {{"name", "math"}, {"role", "expert"}},
            {{"name", "code"}, {"role", "expert"}}}},
          {"budget", Budget()},
          {"tensors", {Tensor(), Embedding()}}};
}

// The manifest of the same merge, without constants.
Json SoundManifest() {
  Json decision = Tensor();
  for (const char* key : {"constants", "name", "inputs", "models", "expected"})
    decision.erase(key);
  const Json tensor = {{"name", "model.layers.1.w"},
                       {"inputs", {1, 2}},
                       {"sources", {{{"input", 0}}, {{"input", 1}}, {{"input", 2}}}},
                       {"decision", decision},
                       {"thresholds",
                        {{{"input", 0}, {"magnitude", 0.25}, {"equals", 1}, {"equals_kept", 1}},
                         {{"input", 1}, {"magnitude", 2.0}, {"equals", 1}, {"equals_kept", 1}}}}};
  return {{"core",
           {{"version", "1"},
            {"method", "ties"},
            {"plan_digest", "0123456789abcdef0123"},
            {"block_bytes", 16384},
            {"budget", Budget()},
            {"inputs", {{{"role", "base"}}, {{"role", "expert"}}, {{"role", "expert"}}}},
            {"tensors", {tensor}}}},
          {"envelope", {{"models", {{{"name", "base"}}, {{"name", "math"}}, {{"name", "code"}}}}}}};
}

// As they come from a file, where whole numbers have no sign.
Result<Explanation> Plan(const Json& json) {
  return ExplanationOfPlan(Json::parse(json.dump()));
}
Result<Explanation> Manifest(const Json& json) {
  return ExplanationOfManifest(Json::parse(json.dump()));
}

TEST(ExplainReport, BytesAreSplitIntoReadLosslessSharedAndLeftOut) {
  const auto explanation = Plan(SoundPlan());
  ASSERT_TRUE(explanation) << explanation.error().message;
  const Json json = ExplainReportJson(*explanation);
  EXPECT_EQ(json["experts"][0]["model"], "math");
  EXPECT_EQ(json["experts"][0]["read_bytes"], 12);
  EXPECT_EQ(json["experts"][0]["left_out_bytes"], 8);
  EXPECT_EQ(json["experts"][0]["omitted_error_share"], 1.0);
  EXPECT_EQ(json["experts"][1]["lossless_skipped_bytes"], 12);
  EXPECT_EQ(json["experts"][1]["shared_bytes"], 4);
  EXPECT_EQ(json["experts"][1]["left_out_bytes"], 0);
  EXPECT_EQ(json["available_bytes"], 40);
}

TEST(ExplainReport, WhyCountsBlocksAndNamesWhoHoldsThem) {
  const auto explanation = Plan(SoundPlan());
  ASSERT_TRUE(explanation) << explanation.error().message;
  const ExplainedTensor& tensor = **FindTensor(*explanation, "model.layers.1.w");
  const Json why = WhyJson(*explanation, tensor);
  EXPECT_EQ(why["experts"][0]["read_blocks"], 2);
  EXPECT_EQ(why["experts"][0]["left_out_gain_per_byte"], 0.125);
  EXPECT_EQ(why["experts"][1]["lossless_blocks"], 1);
  EXPECT_EQ(why["experts"][1]["left_out_blocks"], 0);
  EXPECT_EQ(why["experts"][1]["shared_blocks"], Json::parse(R"([{"model": "math", "blocks": 1}])"));
  const std::string text = WhyText(*explanation, tensor);
  EXPECT_THAT(text, HasSubstr("read: 2 of 3 blocks, 12 B of 20 B"));
  EXPECT_THAT(text, HasSubstr("the order was cut at a gain of 0.125 per byte"));
  EXPECT_THAT(text, HasSubstr("would bring 0.125 per byte on average, no more than where the order was cut"));
  EXPECT_THAT(text, HasSubstr("shared: 1 block with the same bytes as those of math"));
}

TEST(ExplainReport, ThresholdsSayInWhatTheyWereFound) {
  const auto planned = Plan(SoundPlan());
  const auto made = Manifest(SoundManifest());
  ASSERT_TRUE(planned && made) << made.error().message;
  const Json of_plan = ThresholdsJson(*planned, **FindTensor(*planned, "model.layers.1.w"));
  ASSERT_EQ(of_plan.size(), 1u) << "one input is not trimmed";
  EXPECT_EQ(of_plan[0]["magnitude"], 0.5);
  EXPECT_EQ(of_plan[0]["of_whole_delta"], true);
  const Json of_output = ThresholdsJson(*made, made->tensors[0]);
  EXPECT_EQ(of_output[0]["magnitude"], 0.25);
  EXPECT_EQ(of_output[0]["of_whole_delta"], false) << "a block of math is left out";
  EXPECT_EQ(of_output[1]["of_whole_delta"], true) << "all of code is read that changes anything";
}

TEST(ExplainReport, LayersStandInTheirOrder) {
  const auto explanation = Plan(SoundPlan());
  ASSERT_TRUE(explanation) << explanation.error().message;
  const Json layers = ExplainReportJson(*explanation)["layers"];
  EXPECT_EQ(layers[0]["place"], "before");
  EXPECT_EQ(layers[1]["layer"], 1);
  EXPECT_EQ(layers[1]["prefix"], "model.layers");
}

TEST(ExplainReport, UnknownTensorsGetTheNearestName) {
  const auto explanation = Plan(SoundPlan());
  ASSERT_TRUE(explanation) << explanation.error().message;
  const auto found = FindTensor(*explanation, "model.layers.1.v");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kUsage);
  EXPECT_THAT(found.error().message, HasSubstr("did you mean 'model.layers.1.w'?"));
}

TEST(ExplainReport, WhatNobodyKnowsIsNotGivenANumber) {
  Json plan = SoundPlan();
  plan["tensors"][0]["reads"] = Json::parse("[[0,0,0,0,0],[20,12,0,0,0],[20,8,4,0,0]]");
  plan["budget"]["statistics"] = "none";
  const auto explanation = Plan(plan);
  ASSERT_TRUE(explanation) << explanation.error().message;
  EXPECT_TRUE(ExplainReportJson(*explanation)["experts"][0]["omitted_error_share"].is_null());
  EXPECT_THAT(ExplainReportText(*explanation, "p"), Not(HasSubstr("?")));
  EXPECT_THAT(WhyText(*explanation, **FindTensor(*explanation, "embed")), HasSubstr("the base alone"));
}

// Every value of a document, replaced by each of these or removed, is refused or explained; nothing throws.
void Damage(const Json& sound, Result<Explanation> (*read)(const Json&)) {
  const std::vector<Json> others = {nullptr,
                                    "x",
                                    -1,
                                    1.5,
                                    1e300,
                                    18446744073709551615u,
                                    Json::array(),
                                    Json::object(),
                                    Json::parse("[[1, 2], {}]"),
                                    true};
  const Json flat = sound.flatten();
  for (const auto& [path, value] : flat.items()) {
    for (Json::json_pointer at(path); !at.empty(); at.pop_back()) {
      for (const Json& other : others) {
        Json damaged = sound;
        damaged[at] = other;
        const auto explanation = read(damaged);
        if (!explanation) {
          EXPECT_EQ(explanation.error().code, Code::kInvalidInput);
          continue;
        }
        ExplainReportText(*explanation, "p");
        ExplainReportJson(*explanation);
        for (const ExplainedTensor& tensor : explanation->tensors)
          WhyText(*explanation, tensor);
      }
    }
  }
}

TEST(ExplainReport, DamagedDocumentsAreRefusedWithoutACrash) {
  Damage(SoundPlan(), Plan);
  Damage(SoundManifest(), Manifest);
  EXPECT_FALSE(Plan({}));
  EXPECT_FALSE(Plan(Json::array()));
  EXPECT_FALSE(Manifest("x"));
}

TEST(ExplainReport, MasksThatDoNotAddUpAreRefused) {
  for (const char* rows : {"[[1,2,1,0],[1,0,1,3,1,2]]", "[[3,2],[1,0,1,3,1,2]]", "[[1,2,1,0,1,3],[3,0]]",
                           "[[4,2],[3,3]]", "[[1,2,1,0,1,2]]", "[[1,2,1,0,1],[3,0]]"}) {
    Json plan = SoundPlan();
    plan["tensors"][0]["mask"]["rows"] = Json::parse(rows);
    const auto explanation = Plan(plan);
    ASSERT_FALSE(explanation) << rows;
    EXPECT_THAT(explanation.error().message, HasSubstr("tensor 'model.layers.1.w': 'rows'"));
  }
}

}  // namespace
}  // namespace mergepipe
