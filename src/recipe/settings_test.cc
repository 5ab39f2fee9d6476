#include "recipe/settings.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;

const ParamSpec kNumber{.name = "weight"};
const ParamSpec kWhole{.name = "max_iter", .type = ParamType::kInteger};
const ParamSpec kSwitch{.name = "normalize", .type = ParamType::kBool};

// --- scalars

TEST(ConvertScalar, NumbersAreDecimalTextOrTruth) {
  for (const auto& [text, value] : std::vector<std::pair<const char*, double>>{{"0.3", 0.3},
                                                                               {"1e-5", 1e-5},
                                                                               {"-2", -2.0},
                                                                               {"+1", 1.0},
                                                                               {".5", 0.5},
                                                                               {"true", 1.0},
                                                                               {"False", 0.0},
                                                                               {"yes", 1.0},
                                                                               {"off", 0.0}})
    EXPECT_EQ(Must(ConvertScalar(kNumber, text)), value) << text;
  for (const char* text : {"", "abc", "0.3x", "nan", ".inf", "1,5", "0x10", "[1]"})
    EXPECT_THAT(ConvertScalar(kNumber, text),
                FailsWith(Code::kUsage, Format("'weight' is '{}', which is not a number", text)));
}

TEST(ConvertScalar, WholeNumbersMayBeWrittenWithAPoint) {
  EXPECT_EQ(Must(ConvertScalar(kWhole, "5")), 5);
  EXPECT_EQ(Must(ConvertScalar(kWhole, "5.0")), 5);
  for (const char* text : {"5.5", "x", "1e-1"})
    EXPECT_THAT(ConvertScalar(kWhole, text), FailsWith(Code::kUsage, "which is not a whole number"));
}

TEST(ConvertScalar, TruthHasTheWordsOfYaml) {
  for (const char* text : {"true", "True", "TRUE", "yes", "on", "t", "y", "1", "1.0"})
    EXPECT_EQ(Must(ConvertScalar(kSwitch, text)), 1) << text;
  for (const char* text : {"false", "no", "No", "off", "f", "n", "0", "0.0"})
    EXPECT_EQ(Must(ConvertScalar(kSwitch, text)), 0) << text;
  for (const char* text : {"2", "0.5", "", "maybe", "-1"})
    EXPECT_THAT(ConvertScalar(kSwitch, text), FailsWith(Code::kUsage, "which is not true or false")) << text;
}

TEST(ConvertScalar, ALeastValueIsInclusive) {
  const ParamSpec bounded{.name = "t", .minimum = 0.0};
  EXPECT_EQ(Must(ConvertScalar(bounded, "0")), 0);
  EXPECT_THAT(ConvertScalar(bounded, "-0.1"),
              FailsWith(Code::kUsage, "'t' is -0.1, below its least value 0"));
}

// --- gradients

double At(const std::vector<std::string>& anchors, double t, const ParamSpec& spec = kNumber) {
  return Must(EvaluateValue(spec, {.anchors = anchors, .is_list = true}, t));
}

TEST(Gradient, GoesThroughItsAnchorsAtEvenDistances) {
  const std::vector<std::string> anchors = {"0", "1", "0.5", "-1"};
  EXPECT_EQ(At(anchors, 0), 0);
  EXPECT_EQ(At(anchors, 1.0 / 3), 1);
  EXPECT_EQ(At(anchors, 2.0 / 3), 0.5);
  EXPECT_EQ(At(anchors, 1), -1);
}

TEST(Gradient, IsStraightBetweenAnchors) {
  for (const double t : {0.0, 0.125, 0.4, 0.75, 1.0})
    EXPECT_DOUBLE_EQ(At({"2", "6"}, t), 2 + 4 * t);
  EXPECT_DOUBLE_EQ(At({"0", "1", "0.5"}, 0.75), 0.75);
}

TEST(Gradient, OneAnchorIsAConstant) {
  for (const double t : {0.0, 0.3, 1.0})
    EXPECT_EQ(At({"0.7"}, t), 0.7);
}

TEST(Gradient, StaysInsideItsAnchors) {
  const std::vector<std::string> anchors = {"0.1", "0.9", "0.3", "0.3", "0.7"};
  for (int step = 0; step <= 1000; ++step) {
    const double value = At(anchors, step / 1000.0);
    EXPECT_GE(value, 0.1 - 1e-15);
    EXPECT_LE(value, 0.9 + 1e-15);
  }
}

TEST(Gradient, OfTruthTakesTheAnchorBefore) {
  EXPECT_EQ(At({"true", "false", "true"}, 0.0, kSwitch), 1);
  EXPECT_EQ(At({"true", "false", "true"}, 0.49, kSwitch), 1);
  EXPECT_EQ(At({"true", "false", "true"}, 0.5, kSwitch), 0);
  EXPECT_EQ(At({"true", "false", "true"}, 0.99, kSwitch), 0);
  EXPECT_EQ(At({"true", "false", "true"}, 1.0, kSwitch), 1);
}

TEST(Gradient, OfWholeNumbersMustBeWholeEverywhere) {
  EXPECT_EQ(At({"2", "4"}, 0.5, kWhole), 3);
  EXPECT_THAT(EvaluateValue(kWhole, {.anchors = {"2", "3"}, .is_list = true}, 0.5),
              FailsWith(Code::kUsage, "'max_iter' is a whole number, but its gradient gives 2.5"));
}

// --- filters

Setting::Entry Entry(std::optional<std::string> filter, std::vector<std::string> anchors) {
  return {.filter = std::move(filter), .value = {.anchors = std::move(anchors)}};
}

TEST(Filter, TheFirstThatIsPartOfTheNameWins) {
  const Setting setting{
      .entries = {Entry("mlp", {"1"}), Entry("up_proj", {"2"}), Entry(std::nullopt, {"3"})}};
  const auto value = [&](const char* tensor) { return MatchEntry(setting, tensor)->value.anchors[0]; };
  EXPECT_EQ(value("layers.0.mlp.up_proj"), "1");
  EXPECT_EQ(value("layers.0.attn.up_proj"), "2");
  EXPECT_EQ(value("lm_head"), "3");
  EXPECT_EQ(value("MLP"), "3");
}

TEST(Filter, IsNoPattern) {
  const Setting setting{.entries = {Entry("m.p", {"1"}), Entry("mlp.*", {"2"})}};
  EXPECT_EQ(MatchEntry(setting, "layers.0.mlp.w"), nullptr);
  EXPECT_NE(MatchEntry(setting, "m.p"), nullptr);
}

TEST(Filter, AnEmptyListIsNoValueAndEndsTheSearch) {
  const Setting setting{.entries = {Entry("mlp", {}), Entry(std::nullopt, {"3"})}};
  EXPECT_EQ(MatchEntry(setting, "mlp"), nullptr);
  EXPECT_NE(MatchEntry(setting, "attn"), nullptr);
}

// --- precedence

Parameters Set(const char* value, std::optional<std::string> filter = std::nullopt) {
  return {{"weight", Setting{.entries = {Entry(std::move(filter), {value})}}}};
}

TEST(LookUp, TheFirstLevelThatHasAValueWins) {
  const Parameters model = Set("1", "mlp"), slice = Set("2", "attn"), top = Set("0"),
                   other = {{"density", {}}};
  const auto value = [&](const char* tensor) {
    return Must(
        LookUp(kNumber,
               {{&model, tensor}, {nullptr, tensor}, {&other, tensor}, {&slice, tensor}, {&top, tensor}}, 0));
  };
  EXPECT_EQ(value("mlp"), 1);
  EXPECT_EQ(value("attn"), 2);
  EXPECT_EQ(value("norm"), 0) << "zero is a value";
}

TEST(LookUp, EachLevelSeesItsOwnName) {
  const Parameters model = Set("1", "layers.7."), top = Set("2", "layers.0.");
  EXPECT_EQ(Must(LookUp(kNumber, {{&model, "layers.7.w"}, {&top, "layers.0.w"}}, 0)), 1);
  EXPECT_EQ(Must(LookUp(kNumber, {{&model, "layers.3.w"}, {&top, "layers.0.w"}}, 0)), 2);
}

TEST(LookUp, WithoutAnyValueItIsTheDefaultOrNothing) {
  EXPECT_EQ(Must(LookUp({.name = "weight", .default_value = 0.25}, {{nullptr, "w"}}, 0)), 0.25);
  EXPECT_EQ(Must(LookUp({.name = "weight", .required = true}, {{nullptr, "w"}}, 0)), std::nullopt);
}

TEST(LookUp, AValueThatDoesNotConvertIsAnErrorAndNoFallThrough) {
  const Parameters model = Set("abc"), top = Set("2");
  EXPECT_THAT(LookUp(kNumber, {{&model, "w"}, {&top, "w"}}, 0), FailsWith(Code::kUsage, "'weight' is 'abc'"));
}

}  // namespace
}  // namespace mergepipe
