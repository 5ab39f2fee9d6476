#include "tokenizer/output_vocabulary.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;

class OutputVocabularyTest : public testing::Test {
 protected:
  /// A vocabulary of these tokens; those in angle brackets stand beside the model.
  Vocabulary Of(const std::vector<std::string>& tokens, const char* setting = "special") {
    Vocabulary vocabulary;
    vocabulary.model_type = "BPE";
    for (uint32_t id = 0; id < tokens.size(); ++id) {
      const uint32_t token = table_.Intern(tokens[id]);
      vocabulary.Set(token, id);
      if (tokens[id][0] != '<') continue;
      OrderedJson settings = PlainTokenSettings();
      settings[setting] = true;
      vocabulary.added.push_back({token, id, settings});
    }
    Must(vocabulary.Finish(table_, "m"));
    return vocabulary;
  }
  std::string Tokens(const OutputVocabulary& vocabulary) {
    std::vector<std::string> texts;
    for (const uint32_t token : vocabulary.tokens)
      texts.push_back(token == TokenTable::kNone ? "-" : table_.Text(token));
    return Join(texts, " ");
  }
  OutputVocabulary Build(const VocabularyRequest& request) {
    return Must(BuildOutputVocabulary(request, table_));
  }
  TokenTable table_;
};

TEST_F(OutputVocabularyTest, OfAUnionHasTheBasesIdsThenOrdinaryTokensThenAddedOnes) {
  const Vocabulary base = Of({"a", "<s>", "b"}), x = Of({"b", "c", "<x>", "<s>"}), y = Of({"<y>", "d", "c"});
  const OutputVocabulary out =
      Build({.models = {{"base", &base, 3}, {"x", &x, 4}, {"y", &y, 3}}, .source = {}, .tokens = {}});
  EXPECT_EQ(Tokens(out), "a <s> b c d <x> <y>");
  EXPECT_EQ(out.added, 4u);
  EXPECT_TRUE(out.removed.empty());
}

TEST_F(OutputVocabularyTest, LeavesOutIdsBeyondTheVocabSize) {
  const Vocabulary base = Of({"a", "b", "<pad>"}), x = Of({"a", "c", "<x>"});
  const OutputVocabulary out =
      Build({.models = {{"base", &base, 2}, {"x", &x, 2}}, .source = {}, .tokens = {}});
  EXPECT_EQ(Tokens(out), "a b c");
  EXPECT_EQ(out.removed.size(), 1u);
  EXPECT_EQ(out.kept, 2u);
}

TEST_F(OutputVocabularyTest, OfOneModelIsItsOwnAsItIs) {
  const Vocabulary base = Of({"a"}), x = Of({"c", "a", "<x>"});
  const OutputVocabulary out =
      Build({.models = {{"base", &base, 1}, {"x", &x, 2}}, .source = 1, .tokens = {}});
  EXPECT_EQ(Tokens(out), "c a <x>");
  EXPECT_EQ(out.model, 1u);
  EXPECT_FALSE(out.changed());
}

TEST_F(OutputVocabularyTest, AppendsTheRecipesTokens) {
  const Vocabulary base = Of({"a"}), x = Of({"c"});
  const OutputVocabulary out = Build({.models = {{"base", &base, 1}, {"x", &x, 1}},
                                      .source = {},
                                      .base = true,
                                      .tokens = {table_.Intern("new"), table_.Intern("a")}});
  EXPECT_EQ(Tokens(out), "a new");
}

TEST_F(OutputVocabularyTest, WarnsOnceWhereSettingsDiffer) {
  const Vocabulary base = Of({"a", "<s>"}), x = Of({"<s>"}, "lstrip"), y = Of({"<s>"}, "rstrip");
  const OutputVocabulary out =
      Build({.models = {{"base", &base, 2}, {"x", &x, 1}, {"y", &y, 1}}, .source = {}, .tokens = {}});
  ASSERT_EQ(out.warnings.size(), 1u);
  EXPECT_THAT(out.warnings[0], testing::HasSubstr("x: the added token '<s>' has other settings"));
  EXPECT_FALSE(out.changed());
}

TEST_F(OutputVocabularyTest, MakesAnAddedTokenOfAPieceThatIsOneElsewhere) {
  const Vocabulary x = Of({"<s>"});
  Vocabulary base = Of({"a", "<s>"});
  base.added.clear();
  const OutputVocabulary out =
      Build({.models = {{"base", &base, 2}, {"x", &x, 1}}, .source = {}, .tokens = {}});
  ASSERT_EQ(out.appended.size(), 1u);
  EXPECT_EQ(out.appended[0].id, 1u);
  EXPECT_EQ(out.added, 0u);
}

TEST_F(OutputVocabularyTest, ThatChangesNeedsATokenizerJson) {
  Vocabulary base = Of({"a"});
  const Vocabulary x = Of({"c"});
  base.model_type = "";
  EXPECT_THAT(BuildOutputVocabulary(
                  {.models = {{"base", &base, 1}, {"x", &x, 1}}, .source = {}, .tokens = {}}, table_),
              FailsWith(Code::kUnsupported, "needs a tokenizer.json"));
}

}  // namespace
}  // namespace mergepipe
