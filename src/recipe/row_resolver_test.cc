#include "recipe/row_resolver.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/text.h"
#include "support/outcome.h"
#include "support/resolving.h"

namespace mergepipe {
namespace {

using testing::HasSubstr;
using tests::TensorOf;
using tests::WriteFile;
using tests::Zeros;

class Rows : public tests::ResolvingTest {
 protected:
  /// A model with this vocabulary: token N is the N-th letter of `tokens`.
  void WriteModel(const std::string& name, const std::string& tokens, std::vector<uint64_t> shape = {},
                  DType dtype = DType::kF32) {
    if (shape.empty()) shape = {tokens.size(), 2};
    Write(name, {Zeros("model.embed_tokens.weight", shape, dtype), Zeros("model.norm.weight", {2})},
          Format("{{\"vocab_size\": {}}}", shape[0]));
    std::string vocab;
    for (size_t id = 0; id < tokens.size(); ++id)
      vocab += Format("{}\"{}\": {}", id > 0 ? ", " : "", tokens[id], id);
    WriteFile(folder_ / (name + "/tokenizer.json"),
              Format(R"({{"model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}})", vocab));
  }
  static std::string Linear(const std::vector<std::string>& models, const std::string& more) {
    std::string recipe = "merge_method: linear\nmodels:\n";
    for (const std::string& model : models)
      recipe += Format("  - {{model: ~/{}, parameters: {{weight: 1}}}}\n", model);
    return recipe + more;
  }
  /// The rows of each source: its own by number, r of the reference, 0 zero, p padding, else MODEL:ROW+….
  std::string RowsOf(const ResolvedMerge& merge, size_t source) {
    const TensorSource& from = TensorOf(merge, "model.embed_tokens.weight").sources[source];
    if (from.rows == nullptr) return "as stored";
    std::vector<std::string> rows;
    for (uint64_t row = 0; row < from.rows->map->size(); ++row)
      rows.push_back(RowText(*from.rows->map, from.rows->map->At(row)));
    return Join(rows, " ");
  }
  static std::string RowText(const RowMap& map, int32_t code) {
    if (code >= 0) return std::to_string(code);
    if (!RowMap::IsMixture(code))
      return code == RowMap::kReference ? "r" : code == RowMap::kZero ? "zero" : "pad";
    std::vector<std::string> parts;
    for (const StoredRow& part : map.Mixture(code))
      parts.push_back(Format("{}:{}", part.model, part.row));
    return Join(parts, "+");
  }
};

TEST_F(Rows, AreAsStoredWhereVocabulariesAreEqual) {
  WriteModel("a", "xyz");
  WriteModel("b", "xyz");
  const ResolvedMerge merge = Resolve(Linear({"a", "b"}, "tokenizer_source: union\n"));
  EXPECT_EQ(RowsOf(merge, 0), "as stored");
  EXPECT_EQ(RowsOf(merge, 1), "as stored");
  EXPECT_FALSE(merge.tokenizer->edit.changed());
}

TEST_F(Rows, FollowTheTokens) {
  WriteModel("a", "xyz");
  WriteModel("b", "zxyn");
  const ResolvedMerge merge = Resolve(Linear({"a", "b"}, "tokenizer_source: union\n"));
  EXPECT_EQ(RowsOf(merge, 0), "0 1 2 1:3");
  EXPECT_EQ(RowsOf(merge, 1), "1 2 0 r");
  EXPECT_EQ(TensorOf(merge, "model.embed_tokens.weight").shape, (std::vector<uint64_t>{4, 2}));
  EXPECT_EQ(TensorOf(merge, "model.embed_tokens.weight").elements, 8u);
  EXPECT_EQ(merge.tokenizer->rows, 4u);
}

TEST_F(Rows, ThatSomeModelsLackAreTheBasesElseTheMean) {
  WriteModel("a", "xy");
  WriteModel("b", "xn");
  WriteModel("c", "yxn");
  const std::string recipe = Linear({"a", "b", "c"}, "tokenizer_source: union\n");
  const ResolvedMerge first = Resolve(recipe);
  EXPECT_EQ(RowsOf(first, 0), "0 1 1:1+2:2");
  EXPECT_EQ(RowsOf(first, 1), "0 0:1+2:0 1") << "no base_model: the mean of those that have it";
  EXPECT_EQ(RowsOf(first, 2), "1 0 2");
  const ResolvedMerge with_base = Resolve(recipe + "base_model: ~/a\n");
  EXPECT_EQ(RowsOf(with_base, 1), "0 r 1");
  EXPECT_EQ(EntryOf(first, TensorOf(first, "model.embed_tokens.weight").sources[0]).dtype, DType::kF32);
}

TEST_F(Rows, BeyondTheTokensAreDroppedOrPadded) {
  WriteModel("a", "xy", {5, 2});
  WriteModel("b", "yx");
  const ResolvedMerge dropped = Resolve(Linear({"a", "b"}, "tokenizer_source: base\nbase_model: ~/a\n"));
  EXPECT_EQ(RowsOf(dropped, 0), "0 1");
  const ResolvedMerge padded =
      Resolve(Linear({"a", "b"}, "tokenizer: {source: base, pad_to_multiple_of: 4}\n"));
  EXPECT_EQ(RowsOf(padded, 0), "0 1 pad pad");
  EXPECT_EQ(RowsOf(padded, 1), "1 0 pad pad");
  EXPECT_EQ(padded.tokenizer->rows, 4u);
}

TEST_F(Rows, AreSetByTheRecipe) {
  WriteModel("a", "xyz");
  WriteModel("b", "xyz");
  const ResolvedMerge merge = Resolve(Linear({"a", "b"}, R"(tokenizer:
  source: base
  tokens:
    x: {source: ~/b, force: true}
    y: {source: {kind: zero}, force: true}
    n: {source: {kind: model_token, model: ~/b, token_id: 1}}
    z: {source: {kind: model_token, model: ~/b, token: x}}
)"));
  EXPECT_EQ(RowsOf(merge, 0), "1:0 zero 2 1:1");
  EXPECT_EQ(RowsOf(merge, 1), "r r 2 r") << "z is in both models and not forced";
}

TEST_F(Rows, OfOneTypeStayInItUnlessTheyAreComputed) {
  const auto type_with = [&](const std::string& more) {
    const ResolvedMerge merge = Resolve(Linear({"a", "b"}, more));
    return EntryOf(merge, TensorOf(merge, "model.embed_tokens.weight").sources[1]).dtype;
  };
  WriteModel("a", "xy", {2, 2}, DType::kBF16);
  WriteModel("b", "yx", {2, 2}, DType::kBF16);
  EXPECT_EQ(type_with("tokenizer_source: base\n"), DType::kBF16);
  EXPECT_EQ(type_with("tokenizer: {source: base, pad_to_multiple_of: 3}\n"), DType::kF32);
  WriteModel("b", "yx", {2, 2}, DType::kF16);
  EXPECT_EQ(type_with("tokenizer_source: base\n"), DType::kF32);
  WriteModel("b", "yx", {2, 2}, DType::kF64);
  EXPECT_EQ(type_with("tokenizer_source: base\n"), DType::kF64);
}

TEST_F(Rows, FaultsNameBothSides) {
  WriteModel("a", "xy");
  WriteModel("b", "xn", {2, 3});
  EXPECT_THAT(Faults(Linear({"a", "b"}, "tokenizer_source: union\n")),
              HasSubstr("/b: tensor 'model.embed_tokens.weight' has shape [2, 3] but"));
  WriteModel("b", "xn");
  EXPECT_THAT(Faults(Linear({"a", "b"}, "tokenizer: {tokens: {n: {}}}\n")),
              HasSubstr("token 'n' has no 'source'"));
  EXPECT_THAT(Faults(Linear({"a", "b"}, "tokenizer: {tokens: {n: {source: ~/a}}}\n")),
              HasSubstr("does not have it"));
  EXPECT_THAT(
      Faults(Linear({"a", "b"},
                    "tokenizer: {tokens: {q: {source: {kind: model_token, model: ~/a, token_id: 2}}}}\n")),
      HasSubstr("has no row 2"));
  WriteModel("c", "xn");
  EXPECT_THAT(Faults(Linear({"a", "b"}, "tokenizer: {tokens: {n: {source: ~/c}}}\n")),
              HasSubstr("is not part of the merge"));
}

TEST_F(Rows, OfModelsWithoutATokenizerAreTakenToBeTheBases) {
  WriteModel("a", "xy");
  WriteModel("b", "xy");
  std::filesystem::remove(std::filesystem::path(folder_ / "b/tokenizer.json"));
  EXPECT_THAT(Warnings(Linear({"a", "b"}, "tokenizer_source: union\n")),
              HasSubstr("/b: has no tokenizer; its tokens are taken to be"));
  EXPECT_THAT(Faults(Linear({"b", "a"}, "tokenizer_source: union\n")), HasSubstr("has no tokenizer"));
}

}  // namespace
}  // namespace mergepipe
