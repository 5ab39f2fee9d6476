#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/json.h"
#include "mergepipe/result.h"
#include "tokenizer/token_table.h"

namespace mergepipe {

/// A token that stands beside the model of a tokenizer, with how it is matched.
struct AddedToken {
  uint32_t token = 0;
  uint32_t id = 0;
  OrderedJson settings;  ///< lstrip, rstrip, single_word, normalized, special
};

/// The tokens of one model and their ids.
class Vocabulary {
 public:
  /// Sets a token's id; the last one counts.
  void Set(uint32_t token, uint32_t id);
  /// Ends the filling. Fails with kInvalidInput where two tokens have one id.
  Result<void> Finish(const TokenTable& table, const std::string& where);

  /// The id of a token of the table, or nothing.
  std::optional<uint32_t> IdOf(uint32_t token) const {
    if (token >= ids_.size() || ids_[token] == TokenTable::kNone) return std::nullopt;
    return ids_[token];
  }
  /// The token with an id, or TokenTable::kNone.
  uint32_t TokenAt(uint64_t id) const { return id < tokens_.size() ? tokens_[id] : TokenTable::kNone; }
  /// The largest id + 1.
  uint64_t size() const { return tokens_.size(); }

  std::vector<AddedToken> added;  ///< by id
  std::string model_type;         ///< of tokenizer.json: BPE, WordPiece, …; "" without one

 private:
  std::vector<uint32_t> ids_;     // by token
  std::vector<uint32_t> tokens_;  // by id
};

/// Reads a model's vocabulary: tokenizer.json, else vocab.json or vocab.txt with added_tokens.json, and the
/// added_tokens_decoder of tokenizer_config.json. Nothing where the model has no tokenizer at all. Fails with
/// kInvalidInput on files that are damaged, with kUnsupported where there is only a SentencePiece model.
Result<std::optional<Vocabulary>> ReadVocabulary(const Checkpoint& model, TokenTable& table);

/// How a token is matched that nobody said anything about.
OrderedJson PlainTokenSettings();

/// Files above this size are no tokenizer's.
inline constexpr uint64_t kMaxTokenizerBytes = 256u << 20;
/// Ids from here on are damage: the table of rows would be larger than any model's.
inline constexpr uint64_t kMaxTokenId = 1u << 24;

}  // namespace mergepipe
