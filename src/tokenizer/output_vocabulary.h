#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace mergepipe {

/// Where the tokens of a merge's output come from.
struct VocabularyRequest {
  struct Model {
    std::string name;
    const Vocabulary* vocabulary = nullptr;  ///< null: counts as equal to the base's
    uint64_t limit = 0;                      ///< ids from here on are not used
  };
  std::vector<Model> models;     ///< in the order in which their tokens are looked at, the base first
  std::optional<size_t> source;  ///< a position in `models`: its tokenizer as it is; nothing: union
  bool base = false;             ///< the base's alone
  std::vector<uint32_t> tokens;  ///< to be there in any case
};

/// The tokens of an output and the changes that make its tokenizer from a model's.
struct OutputVocabulary {
  size_t model = 0;                  ///< position in VocabularyRequest::models
  uint64_t kept = 0;                 ///< that tokenizer's ids from here on are removed
  std::vector<uint32_t> removed;     ///< the tokens that go with them
  uint64_t added = 0;                ///< tokens that were not there
  std::vector<AddedToken> appended;  ///< entries for added_tokens, by id where they are new
  std::vector<uint32_t> tokens;      ///< by id; TokenTable::kNone where the tokenizer has a gap
  std::vector<std::string> warnings;
  bool changed() const { return !removed.empty() || !appended.empty(); }
};

/// The base's tokens below its limit, for a union those of the other models in the order of their ids, then
/// the tokens of `tokens` that are missing. Fails with kUnsupported where a tokenizer that has to change has
/// no tokenizer.json.
Result<OutputVocabulary> BuildOutputVocabulary(const VocabularyRequest& request, const TokenTable& table);

}  // namespace mergepipe
