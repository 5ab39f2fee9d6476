#include "tokenizer/tokenizer_files.h"

#include <gtest/gtest.h>

#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;

const OrderedJson kNew = {{"id", 3}, {"content", "<x>"}, {"special", true}};

TokenizerEdit Adding() {
  return {.kept = 3, .strips = false, .removed = {}, .appended = OrderedJson::array({kNew})};
}
TokenizerEdit Removing(uint64_t kept, std::vector<std::string> removed) {
  return {.kept = kept, .strips = true, .removed = std::move(removed), .appended = OrderedJson::array()};
}
std::string Edited(const TokenizerEdit& edit, const std::string& file, const std::string& text) {
  return Must(EditTokenizerFile(edit, file, text, "m/" + file));
}

TEST(TokenizerFiles, AddTokensAndLeaveAllOtherBytesAlone) {
  const std::string before = "{\"version\" :  \"1.0\", \"added_tokens\": ";
  const std::string after = ",\n\t\"model\": {\"vocab\": {\"a\": 0}, \"odd\" : 1e-5 }}";
  const std::string text =
      Edited(Adding(), "tokenizer.json", before + R"([{"id": 0, "content": "a"}])" + after);
  EXPECT_EQ(text.substr(0, before.size()), before);
  EXPECT_EQ(text.substr(text.size() - after.size()), after);
  const OrderedJson tokens = Must(ParseOrderedJson(text, "t"))["added_tokens"];
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[1], kNew);
}

TEST(TokenizerFiles, GetAListOfAddedTokensWhereTheyHadNone) {
  const std::string text = Edited(Adding(), "tokenizer.json", R"({"model": {"vocab": {"a": 0}}})");
  EXPECT_EQ(Must(ParseOrderedJson(text, "t"))["added_tokens"], OrderedJson::array({kNew}));
}

TEST(TokenizerFiles, LoseTokensAndTheMergesThatUseOrMakeThem) {
  for (const char* merges : {R"([["a","b"],["b","c"],["ab","c"]])", R"(["a b","b c","ab c"])"}) {
    const std::string text = Edited(
        Removing(4, {"bc", "abc"}), "tokenizer.json",
        std::string(
            R"({"added_tokens": [{"id": 1, "content": "b"}, {"id": 5, "content": "abc"}], "model": {"type": "BPE",
               "vocab": {"a": 0, "b": 1, "bc": 4, "c": 2, "ab": 3, "abc": 5}, "merges": )") +
            merges + "}}");
    const OrderedJson json = Must(ParseOrderedJson(text, "t"));
    EXPECT_EQ(json["model"]["vocab"].dump(), R"({"a":0,"b":1,"c":2,"ab":3})");
    EXPECT_EQ(json["model"]["merges"].size(), 1u);
    EXPECT_EQ(json["added_tokens"].size(), 1u);
  }
}

TEST(TokenizerFiles, OfAUnigramModelLoseNothing) {
  EXPECT_THAT(EditTokenizerFile(Removing(1, {"b"}), "tokenizer.json",
                                R"({"model": {"type": "Unigram", "vocab": [["a", 0], ["b", 0]]}})",
                                "m/tokenizer.json"),
              FailsWith(Code::kUnsupported, "Unigram"));
}

TEST(TokenizerFiles, TellTheSameInTheOtherFiles) {
  const std::string config = R"({"added_tokens_decoder": {"2": {"content": "<p>"}}, "pad_token": "<p>",
                                 "additional_special_tokens": ["<p>", "<q>"]})";
  EXPECT_EQ(Must(ParseOrderedJson(Edited(Adding(), "tokenizer_config.json", config),
                                  "t"))["added_tokens_decoder"]["3"]["content"],
            "<x>");
  const OrderedJson without =
      Must(ParseOrderedJson(Edited(Removing(2, {"<p>"}), "tokenizer_config.json", config), "t"));
  EXPECT_EQ(without.dump(), R"({"added_tokens_decoder":{},"additional_special_tokens":["<q>"]})");
  EXPECT_EQ(Must(ParseOrderedJson(Edited(Adding(), "added_tokens.json", R"({"<p>": 2})"), "t")).dump(),
            R"({"<p>":2,"<x>":3})");
  const std::string plain = "{\"pad_token\":   \"<p>\"}";
  EXPECT_EQ(Edited(Adding(), "tokenizer_config.json", plain), plain)
      << "what does not change keeps its bytes";
}

TEST(TokenizerFiles, AreKnownByName) {
  for (const char* name :
       {"tokenizer.json", "vocab.txt", "chat_template.jinja", "additional_chat_templates/rag.jinja"})
    EXPECT_TRUE(IsTokenizerFile(name)) << name;
  for (const char* name : {"config.json", "generation_config.json", "sub/tokenizer.json"})
    EXPECT_FALSE(IsTokenizerFile(name)) << name;
}

}  // namespace
}  // namespace mergepipe
