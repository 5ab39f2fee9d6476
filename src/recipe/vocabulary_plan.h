#pragma once

#include <map>
#include <string>
#include <vector>

#include "recipe/recipe.h"
#include "tokenizer/tokenizer_files.h"

namespace mergepipe {

/// What the recipe says of one token of the output, with its model found.
struct TokenRule {
  const TokenSpec* spec = nullptr;
  size_t model = 0;  ///< where the row comes from another model
  uint64_t row = 0;
};

/// The output's tokens and where the models of a merge have them.
struct VocabularyPlan {
  size_t model = 0;  ///< whose tokenizer is taken
  TokenizerEdit edit;
  uint64_t tokens = 0;                    ///< rows that are no padding
  uint64_t rows = 0;                      ///< of the output
  std::vector<std::vector<int32_t>> own;  ///< by model and token: its row there, or −1
  std::vector<std::string> texts;         ///< of tokens, for messages; "" for a gap
  std::map<uint64_t, TokenRule> rules;    ///< by token
  std::vector<uint64_t> limits;           ///< by model: its vocab_size
};

}  // namespace mergepipe
