#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mergepipe/result.h"

namespace mergepipe {

/// Where something stands in a recipe; counted from 1, 0 where nobody knows.
struct RecipePlace {
  int line = 0;
  int column = 0;
};

/// A model as a recipe names it: `path[@revision][+lora]`.
struct ModelRef {
  std::string path;
  std::string revision;
  std::string lora;
  std::string override_architecture;  ///< class name for the output's config; "": the model's own
  RecipePlace at;
  std::string Text() const;
};

/// A value as written; it is converted by the type of its parameter.
struct SettingValue {
  std::vector<std::string> anchors;  ///< one: a scalar; several: a gradient over the layers
  bool is_list = false;
};

/// The setting of one parameter: entries are tried in order, the first whose filter is part of the tensor's
/// name counts.
struct Setting {
  struct Entry {
    std::optional<std::string> filter;
    SettingValue value;
    RecipePlace at;
  };
  std::vector<Entry> entries;
  RecipePlace at;
};
using Parameters = std::map<std::string, Setting>;

/// One model of a `models` or `sources` list.
struct InputSpec {
  ModelRef model;
  std::optional<std::pair<int64_t, int64_t>> layer_range;  ///< [first, end)
  Parameters parameters;
  RecipePlace at;
};

struct SliceSpec {
  std::vector<InputSpec> sources;
  std::optional<ModelRef> base_model;
  Parameters parameters;
  RecipePlace at;
};

struct ModuleSpec {
  std::vector<InputSpec> models;
  std::vector<SliceSpec> slices;
  Parameters parameters;
  RecipePlace at;
};

/// What a recipe says of the embedding of one token.
struct TokenSpec {
  enum class Kind { kDefault, kModel, kModelToken, kZero };
  std::string token;
  Kind kind = Kind::kDefault;
  ModelRef model;                       ///< kModel, kModelToken
  std::optional<std::string> of_token;  ///< kModelToken: this one or of_id
  std::optional<uint64_t> of_id;
  bool force = false;  ///< also in models that have the token
  RecipePlace at;
};

/// The tokenizer of the output: `tokenizer`, or `tokenizer_source`.
struct TokenizerSpec {
  enum class Source { kUnion, kBase, kModel };
  Source source = Source::kUnion;
  ModelRef model;  ///< kModel
  std::vector<TokenSpec> tokens;
  std::optional<uint64_t> pad_to_multiple_of;
  RecipePlace at;
};

/// How a conversation becomes one text: "auto", a name, or a template itself.
struct ChatTemplateSpec {
  std::string text;
  RecipePlace at;
};

/// A recipe as written: mergekit's YAML, nothing resolved yet.
struct Recipe {
  std::string where;  ///< file name for messages
  std::string text;   ///< verbatim
  RecipePlace at;     ///< of its first key
  std::string name;   ///< by which later recipes of the same file know the result; "": none
  RecipePlace name_at;
  std::string merge_method;
  std::optional<ModelRef> base_model;
  std::optional<std::string> dtype, out_dtype;
  std::optional<std::string> budget;  ///< as written
  std::optional<TokenizerSpec> tokenizer;
  std::optional<ChatTemplateSpec> chat_template;
  std::vector<InputSpec> models;
  std::vector<SliceSpec> slices;
  std::vector<std::pair<std::string, ModuleSpec>> modules;  ///< in file order
  Parameters parameters;
  std::vector<std::string> faults;    ///< unknown keys: told together with what resolving finds
  std::vector<std::string> warnings;  ///< keys that mergekit accepts and that mean nothing here
};

/// Parses a recipe. All faults at once, each with line and column: kUsage; kUnsupported for what this version
/// does not do.
/// `first_line` is the number of the text's first line in the file.
Result<Recipe> ParseRecipe(const std::string& text, const std::string& where, int first_line = 1);

/// All models that a recipe names, the base first, then in the order of the recipe; repeated ones repeatedly.
std::vector<const ModelRef*> ModelRefs(const Recipe& recipe);

/// A merge described by flags instead of YAML.
struct RecipeFlags {
  std::string base;
  std::string method;
  std::vector<std::string>
      experts;  ///< "PATH" or "PATH:WEIGHT"; the number after the last colon is the weight
  std::vector<std::string> settings;  ///< "key=value"
};
/// Writes the recipe that the flags stand for. Fails with kUsage.
Result<std::string> RecipeFromFlags(const RecipeFlags& flags);

}  // namespace mergepipe
