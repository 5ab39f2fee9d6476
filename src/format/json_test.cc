#include "format/json.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::Succeeds;

TEST(ParseJson, KeepsValuesAndSortsKeys) {
  EXPECT_EQ(Must(ParseJson(R"({"b": [1, 2.5, null], "a": "x"})", "f")).dump(),
            R"({"a":"x","b":[1,2.5,null]})");
}

TEST(ParseOrderedJson, KeepsTheOrderOfKeys) {
  EXPECT_EQ(Must(ParseOrderedJson(R"({"b": 1, "a": {"d": 2, "c": 3}})", "f")).dump(),
            R"({"b":1,"a":{"d":2,"c":3}})");
}

TEST(ParseJson, TakesOneDocumentAndNothingElse) {
  for (const char* text : {"", " ", "{", "{}{}", "{} x", "[1,]", "{\"a\":1,}", "// x\n{}", "{'a':1}", "NaN",
                           "[Infinity]", "01", "[1e999]", "\"\x01\"", "{\"a\" 1}", "\"\\ud800\"", "\"\xff\""})
    EXPECT_THAT(ParseJson(text, "side/config.json"),
                FailsWith(Code::kInvalidInput, "side/config.json: is not valid"))
        << text;
}

TEST(ParseJson, AKeyStandsOnceInItsObject) {
  EXPECT_THAT(ParseJson(R"({"a": 1, "a": 2})", "f"),
              FailsWith(Code::kInvalidInput, "f: has the key 'a' twice"));
  EXPECT_THAT(ParseJson(R"([{"x": {"deep": 1, "deep": 1}}])", "f"),
              FailsWith(Code::kInvalidInput, "'deep' twice"));
  EXPECT_THAT(ParseOrderedJson(R"({"a": 1, "\u0061": 2})", "f"), FailsWith(Code::kInvalidInput, "'a' twice"));
}

TEST(ParseJson, ObjectsMayShareKeysWithTheirNeighboursAndParents) {
  EXPECT_THAT(ParseJson(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "f"), Succeeds());
}

TEST(ParseJson, NestsUpTo64Levels) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_THAT(ParseJson(nested(64), "f"), Succeeds());
  EXPECT_THAT(ParseJson(nested(66), "f"), FailsWith(Code::kInvalidInput, "nested deeper than 64"));
  EXPECT_THAT(ParseJson(nested(100'000), "f"), FailsWith(Code::kInvalidInput, "nested deeper than 64"));
}

TEST(ParseJson, AByteOrderMarkIsRefused) {
  EXPECT_THAT(ParseJson("\xEF\xBB\xBF{}", "f"), FailsWith(Code::kInvalidInput, "byte order mark"));
}

TEST(JsonText, ReplacesWhatIsNoUtf8AndKeepsTheRest) {
  EXPECT_EQ(JsonText({{"größe", "caf\xe9"}}), "{\"größe\":\"caf\uFFFD\"}");
  EXPECT_EQ(JsonText({1, 2}, 0), "[\n1,\n2\n]");
}

}  // namespace
}  // namespace mergepipe
