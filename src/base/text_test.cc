#include "base/text.h"

#include <gtest/gtest.h>

#include "base/try.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;

TEST(ParseBytes, KbIsAThousandAndKibIs1024) {
  const std::vector<std::pair<const char*, uint64_t>> sizes = {
      {"0", 0},
      {"4096", 4096},
      {"12B", 12},
      {"3KB", 3'000},
      {"3KiB", 3 * 1024},
      {"3MB", 3'000'000},
      {"3MiB", 3ull << 20},
      {"3GB", 3'000'000'000},
      {"3GiB", 3ull << 30},
      {"3TB", 3'000'000'000'000},
      {"3TiB", 3ull << 40},
  };
  for (const auto& [text, bytes] : sizes)
    EXPECT_EQ(Must(ParseBytes(text)), bytes) << text;
}

TEST(ParseBytes, CaseAndBlanksBeforeTheUnitDoNotMatter) {
  for (const char* text : {"1.5GiB", "1.5gib", "1.5 GIB", "1.5  GiB"})
    EXPECT_EQ(Must(ParseBytes(text)), 3ull << 29) << text;
}

TEST(ParseBytes, FractionsAreRoundedToWholeBytes) {
  EXPECT_EQ(Must(ParseBytes("0.5KiB")), 512u);
  EXPECT_EQ(Must(ParseBytes(".25KB")), 250u);
  EXPECT_EQ(Must(ParseBytes("1.0006KB")), 1001u);
}

TEST(ParseBytes, WholeNumbersAreExactUpTo2To53) {
  for (const uint64_t bytes : {(1ull << 53) - 1, 1ull << 53, 4'503'599'627'370'497ull})
    EXPECT_EQ(Must(ParseBytes(std::to_string(bytes))), bytes);
}

TEST(ParseBytes, WhatIsNoSizeIsRefusedAndQuoted) {
  for (const char* text : {"", "GiB", "-1", "+1", "1e9", "1.2.3", "5 potatoes", "5G", "5K", "0x10", "nan",
                           "inf", " 5", "5%", "1,5GiB"})
    EXPECT_THAT(ParseBytes(text), FailsWith(Code::kUsage, Format("'{}' is not a size", text)));
}

TEST(ParseBytes, SizesBeyondSignedBytesAreRefused) {
  EXPECT_THAT(ParseBytes("8388608TiB"), FailsWith(Code::kUsage, "too large"));  // 2^63
  EXPECT_THAT(ParseBytes("99999999999999999999"), FailsWith(Code::kUsage, "too large"));
}

TEST(ParseUnsigned, TakesDigitsAloneUpTo64Bits) {
  EXPECT_EQ(Must(ParseUnsigned("0")), 0u);
  EXPECT_EQ(Must(ParseUnsigned("007")), 7u);
  EXPECT_EQ(Must(ParseUnsigned("18446744073709551615")), UINT64_MAX);
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "1.0", "1e3", "18446744073709551616", "0x1"})
    EXPECT_THAT(ParseUnsigned(text), FailsWith(Code::kUsage, "is not a whole number")) << text;
}

TEST(ParseDouble, TakesDecimalNumbersThatFillTheText) {
  const std::vector<std::pair<const char*, double>> numbers = {
      {"0", 0.0},   {"1e-5", 1e-5}, {"+2.5", 2.5}, {"-0.25", -0.25},
      {".5", 0.5},  {"5.", 5.0},    {"1E3", 1e3},  {"1.7976931348623157e308", 1.7976931348623157e308},
      {"-7", -7.0},
  };
  for (const auto& [text, value] : numbers)
    EXPECT_EQ(Must(ParseDouble(text)), value) << text;
}

TEST(ParseDouble, RefusesEverythingElse) {
  for (const char* text : {"",    "+",   "-",    ".",        "e5",    "1e",  "1 ",  " 1",  "1.0f", "0x10",
                           "nan", "inf", "-inf", "infinity", "1e999", "+-5", "++5", "--5", "1,5",  "yes"})
    EXPECT_THAT(ParseDouble(text), FailsWith(Code::kUsage, "is not a number")) << text;
}

TEST(NearestWord, FindsTheFewestEdits) {
  const std::vector<std::string> words = {"weight", "density", "normalize", "rescale"};
  EXPECT_EQ(NearestWord("wieght", words), "weight");
  EXPECT_EQ(NearestWord("densty", words), "density");
  EXPECT_EQ(NearestWord("normalise", words), "normalize");
  EXPECT_EQ(NearestWord("re_scale", words), "rescale");
  EXPECT_EQ(NearestWord("weight", words), "weight");
}

TEST(NearestWord, TheFirstOfEquallyNearOnesWins) {
  EXPECT_EQ(NearestWord("bat", {"cat", "hat"}), "cat");
  EXPECT_EQ(NearestWord("bat", {"hat", "cat"}), "hat");
}

TEST(NearestWord, NothingIsNearToAWordOfItsOwn) {
  EXPECT_EQ(NearestWord("tokenizer_source", {"weight", "density"}), "");
  EXPECT_EQ(NearestWord("weight", {}), "");
}

TEST(NearestWord, AWordWithNothingInCommonIsNoTypingMistake) {
  EXPECT_EQ(NearestWord("x", {"t"}), "");
  EXPECT_EQ(NearestWord("ab", {"t", "cd"}), "");
  EXPECT_EQ(NearestWord("tt", {"t"}), "t");
}

TEST(DidYouMean, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(DidYouMean("wieght", {"weight"}), " (did you mean 'weight'?)");
  EXPECT_EQ(DidYouMean("banana", {"weight"}), "");
}

TEST(HumanBytes, ShowsThreeDigitsInTheLargestFittingUnit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(3u << 19), "1.50 MiB");
  EXPECT_EQ(HumanBytes(300ull << 30), "300.0 GiB");
  EXPECT_EQ(HumanBytes(5000ull << 40), "5000.0 TiB");
}

TEST(ShapeText, AScalarIsAnEmptyList) {
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(ShapeText({4096, 11008}), "[4096, 11008]");
}

TEST(StartsWith, AndEndsWithNeedTheWholePart) {
  EXPECT_TRUE(StartsWith("model.safetensors", "model"));
  EXPECT_FALSE(StartsWith("mod", "model"));
  EXPECT_TRUE(EndsWith("model.safetensors", ".safetensors"));
  EXPECT_FALSE(EndsWith("tensors", ".safetensors"));
  EXPECT_TRUE(StartsWith("", "") && EndsWith("", ""));
}

TEST(IsUtf8, KnowsTextFromBytes) {
  for (const char* text : {"", "plain", "größe", "☃", "\U0001F600"})
    EXPECT_TRUE(IsUtf8(text)) << text;
  for (const char* bytes : {"caf\xe9", "\xff", "\x80", "\xc3", "\xe2\x98", "\xf0\x9f\x98", "\xc0\xaf",
                            "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x80\x80\x80"})
    EXPECT_FALSE(IsUtf8(bytes));
}

TEST(Join, PutsTheSeparatorBetweenOnly) {
  EXPECT_EQ(Join({}, ", "), "");
  EXPECT_EQ(Join({"a"}, ", "), "a");
  EXPECT_EQ(Join({"a", "b", "c"}, ", "), "a, b, c");
}

Result<int> Halve(int value) {
  if (value % 2 != 0) return Fail(Code::kUsage, Format("{} is odd", value));
  return value / 2;
}
Result<int> Quarter(int value) {
  const int half = MP_TRY(Halve(value));
  return MP_TRY(During(Halve(half), Format("half of {}", value)));
}

TEST(Try, YieldsTheValueOrReturnsTheErrorWithItsContext) {
  EXPECT_EQ(Must(Quarter(8)), 2);
  EXPECT_EQ(Quarter(7).error().message, "7 is odd");
  EXPECT_EQ(Quarter(6).error().message, "half of 6: 3 is odd");
  EXPECT_EQ(Quarter(6).error().code, Code::kUsage);
}

}  // namespace
}  // namespace mergepipe
