#pragma once

#include <map>
#include <string>
#include <vector>

#include "tokenizer/output_vocabulary.h"

namespace mergepipe {

/// What a tokenizer's files become in the output.
struct TokenizerEdit {
  uint64_t kept = 0;                 ///< ids from here on are removed
  bool strips = false;               ///< there are such
  std::vector<std::string> removed;  ///< their texts
  OrderedJson appended;              ///< entries for added_tokens: id, content, settings
  bool changed() const { return strips || !appended.empty(); }
};
TokenizerEdit EditOf(const OutputVocabulary& vocabulary, const TokenTable& table);

/// True for files that belong to a tokenizer, so that they come from the model whose tokenizer is taken.
bool IsTokenizerFile(const std::string& relative_path);
/// True for those and for files that speak of its tokens by number.
bool FollowsTokenizer(const std::string& relative_path);

/// True for files that an edit rewrites; all others are copied.
bool IsEditedFile(const std::string& relative_path);

/// The text of a tokenizer file after an edit. What the edit does not touch keeps its bytes in
/// tokenizer.json. Fails with kInvalidInput on damage, with kUnsupported where tokens can not be removed from
/// this kind of tokenizer.
Result<std::string> EditTokenizerFile(const TokenizerEdit& edit, const std::string& relative_path,
                                      std::string text, const std::string& where);

}  // namespace mergepipe
