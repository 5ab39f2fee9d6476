#include "tokenizer/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/text.h"
#include "base/try.h"
#include "format/json_cursor.h"

namespace mergepipe {
namespace {

constexpr std::array<const char*, 13> kTokenizerFiles = {"tokenizer.json",
                                                         "tokenizer_config.json",
                                                         "tokenizer.model",
                                                         "special_tokens_map.json",
                                                         "added_tokens.json",
                                                         "vocab.json",
                                                         "vocab.txt",
                                                         "merges.txt",
                                                         "tekken.json",
                                                         "spiece.model",
                                                         "sentencepiece.bpe.model",
                                                         "chat_template.jinja",
                                                         "chat_template.json"};

// A part of the text that is replaced.
struct Splice {
  size_t begin = 0, end = 0;
  std::string text;
};

std::string WithSplices(const std::string& text, std::vector<Splice> splices) {
  std::sort(splices.begin(), splices.end(),
            [](const Splice& a, const Splice& b) { return a.begin < b.begin; });
  std::string out;
  out.reserve(text.size() + 4096);
  size_t at = 0;
  for (const Splice& splice : splices) {
    out.append(text, at, splice.begin - at);
    out += splice.text;
    at = splice.end;
  }
  return out.append(text, at, std::string::npos);
}

// Changes the parts of tokenizer.json that hold tokens and leaves all other bytes alone.
class TokenizerJsonEditor {
 public:
  TokenizerJsonEditor(const TokenizerEdit& edit, const std::string& text, std::string where)
      : edit_(edit), text_(text), where_(std::move(where)) {}

  Result<std::string> Run() {
    JsonCursor cursor(text_, where_);
    size_t first_member = 0;
    bool has_added = false;
    cursor.Members([&](const std::string& key) {
      if (first_member == 0) first_member = text_.find('{') + 1;
      const size_t begin = cursor.Offset();
      if (key == "model" && cursor.Peek() == '{' && edit_.strips) return FindRemovals(cursor);
      const std::string_view value = cursor.Raw();
      if (key != "added_tokens") return;
      has_added = true;
      added_ = value;
      added_at_ = {begin, cursor.End(), ""};
    });
    MP_TRY(cursor.Verdict());
    if (!has_added && first_member > 0) added_at_ = {first_member, first_member, "\"added_tokens\": "};
    MP_TRY(RewriteAdded(has_added));
    MP_TRY(RewriteModel());
    return WithSplices(text_, std::move(splices_));
  }

 private:
  Result<void> RewriteAdded(bool has_added) {
    OrderedJson tokens = OrderedJson::array();
    if (has_added && added_ != "null") tokens = MP_TRY(ParseOrderedJson(added_, where_));
    OrderedJson kept = OrderedJson::array();
    for (OrderedJson& entry : tokens) {
      if (!edit_.strips || entry.at("id").get<uint64_t>() < edit_.kept) kept.push_back(std::move(entry));
    }
    for (const OrderedJson& entry : edit_.appended)
      kept.push_back(entry);
    added_at_.text += kept.dump(2) + (has_added ? "" : ",");
    splices_.push_back(added_at_);
    return {};
  }

  // Where the vocabulary and the merges stand, and which pieces go.
  void FindRemovals(JsonCursor& cursor) {
    cursor.Members([&](const std::string& key) {
      const size_t begin = cursor.Offset();
      const char kind = cursor.Peek();
      const std::string_view value = cursor.Raw();
      if (key == "type") type_ = value;
      if (key == "vocab") vocab_ = {begin, cursor.End(), std::string(1, kind)};
      if (key == "merges" && kind == '[') merges_ = {begin, cursor.End(), ""};
    });
  }

  Result<void> RewriteModel() {
    if (!edit_.strips || vocab_.end == 0) return {};
    if (vocab_.text != "{")
      return Fail(Code::kUnsupported,
                  Format("{}: tokens beyond vocab_size can not be removed from a {} tokenizer; give "
                         "config.json the vocab_size that the tokenizer has",
                         where_, type_));
    RewriteVocabulary();
    if (merges_.end > 0) RewriteMerges();
    return {};
  }

  void RewriteVocabulary() {
    JsonCursor cursor(std::string_view(text_).substr(vocab_.begin, vocab_.end - vocab_.begin), where_);
    std::string kept = "{";
    cursor.Members([&](const std::string& piece) {
      const auto id = cursor.Unsigned();
      if (!id) return;
      if (*id >= edit_.kept) {
        removed_.insert(piece);
        return;
      }
      kept += Format("{}{}:{}", kept.size() > 1 ? "," : "", JsonText(Json(piece)), *id);
    });
    vocab_.text = kept + "}";
    splices_.push_back(vocab_);
  }

  // Merges are "a b", or ["a", "b"].
  void RewriteMerges() {
    JsonCursor cursor(std::string_view(text_).substr(merges_.begin, merges_.end - merges_.begin), where_);
    std::string kept = "[";
    cursor.Items([&] {
      std::vector<std::string> parts;
      const size_t begin = cursor.Offset();
      if (cursor.Peek() == '[') {
        cursor.Items([&] { parts.push_back(cursor.String().value_or("")); });
      } else {
        const std::string merge = cursor.String().value_or("");
        const size_t space = merge.find(' ', 1);
        parts = {merge.substr(0, space), space == std::string::npos ? "" : merge.substr(space + 1)};
      }
      std::string whole;
      for (const std::string& part : parts)
        whole += part;
      parts.push_back(whole);
      if (std::any_of(parts.begin(), parts.end(),
                      [&](const std::string& p) { return removed_.count(p) > 0; }))
        return;
      kept += Format("{}{}", kept.size() > 1 ? "," : "",
                     std::string_view(text_).substr(merges_.begin + begin, cursor.End() - begin));
    });
    merges_.text = kept + "]";
    splices_.push_back(merges_);
  }

  const TokenizerEdit& edit_;
  const std::string& text_;
  std::string where_;
  std::string type_;
  std::string_view added_;
  Splice added_at_, vocab_, merges_;
  std::unordered_set<std::string> removed_;
  std::vector<Splice> splices_;
};

bool IsRemoved(const TokenizerEdit& edit, const OrderedJson& token) {
  const OrderedJson& content = token.is_object() && token.contains("content") ? token["content"] : token;
  return content.is_string() && std::find(edit.removed.begin(), edit.removed.end(),
                                          content.get<std::string>()) != edit.removed.end();
}

// Special tokens that a configuration names although they are removed: a loader would add them anew. True
// where there were any.
bool DropNamesOfRemoved(const TokenizerEdit& edit, OrderedJson& config) {
  OrderedJson kept = OrderedJson::object();
  for (auto& [key, value] : config.items()) {
    if (EndsWith(key, "_token") && IsRemoved(edit, value)) continue;
    OrderedJson& member = kept[key] = value;
    if (!EndsWith(key, "special_tokens") || !value.is_array()) continue;
    member = OrderedJson::array();
    for (const OrderedJson& token : value) {
      if (!IsRemoved(edit, token)) member.push_back(token);
    }
  }
  const bool dropped = kept != config;
  config = std::move(kept);
  return dropped;
}

// added_tokens_decoder: {"id": {content, …}}.
OrderedJson EditedDecoder(const TokenizerEdit& edit, const OrderedJson& decoder) {
  OrderedJson edited = OrderedJson::object();
  for (const auto& [id, entry] : decoder.items()) {
    const auto number = ParseUnsigned(id);
    if (!edit.strips || (number && *number < edit.kept)) edited[id] = entry;
  }
  for (OrderedJson entry : edit.appended) {
    const std::string id = std::to_string(entry.at("id").get<uint64_t>());
    entry.erase("id");
    edited[id] = std::move(entry);
  }
  return edited;
}

Result<std::string> EditConfig(const TokenizerEdit& edit, const std::string& text, const std::string& where) {
  OrderedJson config = MP_TRY(ParseOrderedJson(text, where));
  if (!config.is_object()) return text;
  const bool has_decoder =
      config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object();
  if (has_decoder) config["added_tokens_decoder"] = EditedDecoder(edit, config["added_tokens_decoder"]);
  const bool dropped = DropNamesOfRemoved(edit, config);
  return has_decoder || dropped ? config.dump(2) + "\n" : text;
}

// added_tokens.json: {"content": id}.
Result<std::string> EditAddedTokens(const TokenizerEdit& edit, const std::string& text,
                                    const std::string& where) {
  const OrderedJson tokens = MP_TRY(ParseOrderedJson(text, where));
  OrderedJson kept = OrderedJson::object();
  for (const auto& [content, id] : tokens.items()) {
    if (!edit.strips || (id.is_number_unsigned() && id.get<uint64_t>() < edit.kept)) kept[content] = id;
  }
  for (const OrderedJson& entry : edit.appended)
    kept[entry.at("content").get<std::string>()] = entry.at("id");
  return kept.dump(2) + "\n";
}

}  // namespace

TokenizerEdit EditOf(const OutputVocabulary& vocabulary, const TokenTable& table) {
  TokenizerEdit edit{.kept = vocabulary.kept,
                     .strips = !vocabulary.removed.empty(),
                     .removed = {},
                     .appended = OrderedJson::array()};
  for (const uint32_t token : vocabulary.removed)
    edit.removed.push_back(table.Text(token));
  for (const AddedToken& added : vocabulary.appended) {
    OrderedJson entry = {{"id", added.id}, {"content", table.Text(added.token)}};
    entry.update(added.settings);
    edit.appended.push_back(std::move(entry));
  }
  return edit;
}

bool IsTokenizerFile(const std::string& path) {
  return StartsWith(path, "additional_chat_templates/") ||
         std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), path) != kTokenizerFiles.end();
}

bool FollowsTokenizer(const std::string& path) {
  return IsTokenizerFile(path) || path == "generation_config.json";
}

bool IsEditedFile(const std::string& path) {
  return path == "tokenizer.json" || path == "tokenizer_config.json" || path == "added_tokens.json" ||
         path == "special_tokens_map.json";
}

Result<std::string> EditTokenizerFile(const TokenizerEdit& edit, const std::string& path, std::string text,
                                      const std::string& where) {
  if (path == "tokenizer.json") return TokenizerJsonEditor(edit, text, where).Run();
  if (path == "tokenizer_config.json" || path == "special_tokens_map.json")
    return EditConfig(edit, text, where);
  if (path == "added_tokens.json") return EditAddedTokens(edit, text, where);
  return text;
}

}  // namespace mergepipe
