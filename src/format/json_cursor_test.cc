#include "format/json_cursor.h"

#include <gtest/gtest.h>

#include <vector>

#include "format/json.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Succeeds;

TEST(JsonCursor, WalksThroughADocumentAndTellsWhereItsPartsStand) {
  const std::string text = R"( {"a": [1, "x\u00e9", {"b": null}], "c": 7 , "d": {}} )";
  JsonCursor cursor(text, "f");
  std::vector<std::string> keys, parts;
  uint64_t seven = 0;
  cursor.Members([&](const std::string& key) {
    keys.push_back(key);
    if (key == "c") {
      seven = cursor.Unsigned().value_or(0);
      return;
    }
    const size_t begin = cursor.Offset();
    const std::string_view raw = cursor.Raw();
    EXPECT_EQ(raw, std::string_view(text).substr(begin, cursor.End() - begin));
    parts.emplace_back(raw);
  });
  EXPECT_THAT(cursor.Verdict(), Succeeds());
  EXPECT_EQ(keys, (std::vector<std::string>{"a", "c", "d"}));
  EXPECT_EQ(parts, (std::vector<std::string>{R"([1, "x\u00e9", {"b": null}])", "{}"}));
  EXPECT_EQ(seven, 7u);
}

TEST(JsonCursor, UnescapesTexts) {
  JsonCursor cursor(R"(["a\"b\\", "\u00e9"])", "f");
  std::vector<std::string> texts;
  cursor.Items([&] { texts.push_back(cursor.String().value_or("?")); });
  EXPECT_EQ(texts, (std::vector<std::string>{"a\"b\\", "é"}));
}

TEST(JsonCursor, AcceptsWhatAParserAccepts) {
  const std::vector<std::string> documents = {"{}",        "[]",     "[1,2.5e3,-1,true,false,null]",
                                              "\"x\"",     "3",      R"({"a":{"b":[[],{}]}})",
                                              "",          "{",      "[",
                                              "]",         "[1,]",   "[1 2]",
                                              "{\"a\"}",   "{a:1}",  "{\"a\":}",
                                              "[1]x",      "\"open", "\"bad \\q\"",
                                              "nul",       "01",     "[\"\\",
                                              "{\"a\":1,}"};
  for (const std::string& text : documents) {
    JsonCursor cursor(text, "f");
    cursor.Raw();
    EXPECT_EQ(cursor.Verdict().has_value(), Json::accept(text)) << text;
  }
}

TEST(JsonCursor, RefusesDeepNesting) {
  const std::string deep(100, '[');
  JsonCursor cursor(deep, "f");
  cursor.Raw();
  EXPECT_THAT(cursor.Verdict(), FailsWith(Code::kInvalidInput, "nested deeper"));
}

TEST(JsonCursor, TakesWholeNumbersAlone) {
  for (const char* text : {"-1", "1.5", "1e3", "\"1\"", "99999999999999999999"}) {
    JsonCursor cursor(text, "f");
    EXPECT_FALSE(cursor.Unsigned().has_value()) << text;
    EXPECT_THAT(cursor.Verdict(), FailsWith(Code::kInvalidInput, "f: is not valid at byte")) << text;
  }
}

}  // namespace
}  // namespace mergepipe
