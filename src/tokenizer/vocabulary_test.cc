#include "tokenizer/vocabulary.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::TempFolder;
using tests::WriteFile;

class VocabularyTest : public testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) { WriteFile(folder_ / file, text); }
  Result<std::optional<Vocabulary>> Read() {
    tests::WriteCheckpoint(folder_.path(), {tests::RandomTensor("w", DType::kF32, {2}, 1)});
    Ledger ledger;
    return ReadVocabulary(*Must(Checkpoint::Open(folder_.path(), "m", ledger)), table_);
  }
  Vocabulary Sound() { return *Must(Read()); }
  /// "token=id" in the order of ids.
  std::string Listed(const Vocabulary& vocabulary) {
    std::vector<std::string> all;
    for (uint64_t id = 0; id < vocabulary.size(); ++id) {
      const uint32_t token = vocabulary.TokenAt(id);
      all.push_back(token == TokenTable::kNone ? "-" : Format("{}={}", table_.Text(token), id));
    }
    return Join(all, " ");
  }
  TempFolder folder_;
  TokenTable table_;
};

TEST_F(VocabularyTest, HasThePiecesOfTheModelAndTheAddedTokens) {
  Write("tokenizer.json", R"({"added_tokens": [{"id": 3, "content": "<x>", "special": true, "lstrip": true}],
                              "model": {"type": "BPE", "merges": [["a", "b"]], "vocab": {"b": 1, "a": 0, "ab": 2}}})");
  const Vocabulary vocabulary = Sound();
  EXPECT_EQ(Listed(vocabulary), "a=0 b=1 ab=2 <x>=3");
  EXPECT_EQ(vocabulary.model_type, "BPE");
  ASSERT_EQ(vocabulary.added.size(), 1u);
  EXPECT_EQ(vocabulary.added[0].settings["lstrip"], true);
  EXPECT_EQ(vocabulary.added[0].settings["rstrip"], false);
  EXPECT_EQ(vocabulary.added[0].settings["normalized"], false) << "special tokens are not normalised";
}

TEST_F(VocabularyTest, NumbersUnigramPiecesByTheirPlace) {
  Write("tokenizer.json",
        R"({"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["a", -1.5], ["b", -2]]}})");
  EXPECT_EQ(Listed(Sound()), "<unk>=0 a=1 b=2");
}

TEST_F(VocabularyTest, TakesOlderFilesWhereThereIsNoTokenizerJson) {
  Write("vocab.json", R"({"a": 0, "b": 1})");
  Write("added_tokens.json", R"({"<x>": 2})");
  Write("tokenizer_config.json",
        R"({"added_tokens_decoder": {"2": {"content": "<x>"}, "4": {"content": "<y>"}}})");
  EXPECT_EQ(Listed(Sound()), "a=0 b=1 <x>=2 - <y>=4");
}

TEST_F(VocabularyTest, TakesLines) {
  Write("vocab.txt", "[PAD]\r\nthe\n##s\n");
  EXPECT_EQ(Listed(Sound()), "[PAD]=0 the=1 ##s=2");
}

TEST_F(VocabularyTest, IsNothingWhereThereIsNoTokenizer) {
  EXPECT_FALSE(Must(Read()).has_value());
}

TEST_F(VocabularyTest, OfASentencePieceModelAloneIsRefusedWithTheWayOut) {
  Write("tokenizer.model", "\n");
  EXPECT_THAT(Read(), FailsWith(Code::kUnsupported, "save_pretrained('m')"));
}

TEST_F(VocabularyTest, RefusesDamage) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": {"vocab": {"a": 0, "b": 0}}})", "'a' and 'b' have the same id 0"},
      {R"({"model": {"vocab": {"a": -1}}})", "is no whole number"},
      {R"({"model": {"vocab": {"a": 4000000000}}})", "no token's"},
      {R"({"model": {"vocab": [["a", 1], [2]]}})", "has no text"},
      {R"({"model": {}})", "has no vocabulary"},
      {R"({"model": {"vocab": {}}, "added_tokens": [{"content": "x"}]})", "added_tokens"},
      {R"({"model": {"vocab": {}}, "added_tokens": {"x": 1}})", "added_tokens"},
      {R"({"model": {"vocab": {}}, "added_tokens": [{"id": 99999999, "content": "x"}]})", "no token's"},
      {R"({"model": {"vocab": {"a": 0)", "is not valid at byte"},
      {"[]", "is not valid"},
  };
  for (const auto& [text, what] : cases) {
    Write("tokenizer.json", text);
    EXPECT_THAT(Read(), FailsWith(Code::kInvalidInput, what)) << text;
  }
}

}  // namespace
}  // namespace mergepipe
