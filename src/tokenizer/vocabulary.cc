#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/text.h"
#include "base/try.h"
#include "format/json_cursor.h"

namespace mergepipe {
namespace {

constexpr std::array<const char*, 5> kSettings = {"single_word", "lstrip", "rstrip", "normalized", "special"};

// What is said of an added token, all settings present.
OrderedJson SettingsOf(const OrderedJson& entry) {
  OrderedJson settings = PlainTokenSettings();
  for (const char* key : kSettings) {
    if (entry.contains(key) && entry[key].is_boolean()) settings[key] = entry[key];
  }
  if (!entry.contains("normalized")) settings["normalized"] = settings["special"] != true;
  return settings;
}

class VocabularyReader {
 public:
  VocabularyReader(const Checkpoint& model, TokenTable& table) : model_(model), table_(table) {}

  Result<std::optional<Vocabulary>> Run() {
    if (Has("tokenizer.json")) {
      MP_TRY(ReadTokenizerJson());
    } else if (Has("vocab.json")) {
      MP_TRY(ReadTokenMap("vocab.json"));
    } else if (Has("vocab.txt")) {
      MP_TRY(ReadLines());
    } else if (HasSentencePiece()) {
      return Fail(
          Code::kUnsupported,
          Format("{}: has a SentencePiece model and no tokenizer.json; convert it first: python -c \"from "
                 "transformers import AutoTokenizer; "
                 "AutoTokenizer.from_pretrained('{}').save_pretrained('{}')\"",
                 model_.name(), model_.name(), model_.name()));
    } else {
      return std::optional<Vocabulary>();
    }
    if (!Has("tokenizer.json") && Has("added_tokens.json")) MP_TRY(ReadAddedTokens());
    if (Has("tokenizer_config.json")) MP_TRY(ReadDecoder());
    MP_TRY(vocabulary_.Finish(table_, model_.name()));
    return std::optional(std::move(vocabulary_));
  }

 private:
  bool Has(const char* file) const { return model_.OriginOf(file).has_value(); }
  bool HasSentencePiece() const {
    return Has("tokenizer.model") || Has("spiece.model") || Has("sentencepiece.bpe.model");
  }
  std::string Where(const char* file) const { return model_.name() + "/" + file; }

  Result<std::string> Read(const char* file) const {
    auto text = model_.ReadSideFile(file, kMaxTokenizerBytes);
    if (!text) return Fail(Code::kInvalidInput, Format("{}: {}", Where(file), text.error().message));
    return std::move(**text);
  }

  // Vocabularies are large: the document is walked through, not built.
  Result<void> ReadTokenizerJson() {
    const std::string text = MP_TRY(Read("tokenizer.json"));
    JsonCursor cursor(text, Where("tokenizer.json"));
    std::string_view added;
    bool has_vocabulary = false;
    cursor.Members([&](const std::string& key) {
      if (key == "model" && cursor.Peek() == '{') {
        has_vocabulary = ReadModel(cursor);
      } else {
        const std::string_view value = cursor.Raw();
        if (key == "added_tokens") added = value;
      }
    });
    MP_TRY(cursor.Verdict());
    if (!has_vocabulary)
      return Fail(Code::kInvalidInput,
                  Format("{}: has no vocabulary (model.vocab)", Where("tokenizer.json")));
    if (added.empty() || added == "null") return {};
    const OrderedJson tokens = MP_TRY(ParseOrderedJson(added, Where("tokenizer.json") + " (added_tokens)"));
    if (!tokens.is_array()) return Misshapen("tokenizer.json", "added_tokens");
    for (const OrderedJson& entry : tokens) {
      if (!entry.is_object() || !entry.contains("id")) return Misshapen("tokenizer.json", "added_tokens");
      MP_TRY(AddEntry("tokenizer.json", entry["id"], entry));
    }
    return {};
  }

  bool ReadModel(JsonCursor& cursor) {
    bool has_vocabulary = false;
    cursor.Members([&](const std::string& key) {
      if (key == "type" && cursor.Peek() == '"') {
        vocabulary_.model_type = cursor.String().value_or("");
      } else if (key == "vocab" && cursor.Peek() == '{') {
        has_vocabulary = true;
        ReadPieces(cursor);
      } else if (key == "vocab" && cursor.Peek() == '[') {
        has_vocabulary = true;
        ReadScoredPieces(cursor);
      } else {
        cursor.Raw();
      }
    });
    return has_vocabulary;
  }

  // {"piece": id, …}
  void ReadPieces(JsonCursor& cursor) {
    cursor.Members([&](const std::string& piece) {
      const auto id = cursor.Unsigned();
      if (id) AddPiece(cursor, piece, *id);
    });
  }

  // [["piece", score], …] as Unigram models have it: the id is the position.
  void ReadScoredPieces(JsonCursor& cursor) {
    uint64_t id = 0;
    cursor.Items([&] {
      std::optional<std::string> piece;
      cursor.Items([&] {
        if (!piece && cursor.Peek() == '"') {
          piece = cursor.String();
        } else {
          cursor.Raw();
        }
      });
      if (!piece) return cursor.Fault("an entry of the vocabulary has no text");
      AddPiece(cursor, *piece, id++);
    });
  }

  void AddPiece(JsonCursor& cursor, const std::string& piece, uint64_t id) {
    if (id >= kMaxTokenId)
      return cursor.Fault(Format("the token '{}' has the id {}, which is no token's", piece, id));
    vocabulary_.Set(table_.Intern(piece), static_cast<uint32_t>(id));
  }

  // {"piece": id, …} as a file of its own.
  Result<void> ReadTokenMap(const char* file) {
    const std::string text = MP_TRY(Read(file));
    JsonCursor cursor(text, Where(file));
    ReadPieces(cursor);
    return cursor.Verdict();
  }

  Result<void> ReadLines() {
    const std::string text = MP_TRY(Read("vocab.txt"));
    uint32_t id = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      size_t length = end - at;
      if (length > 0 && text[end - 1] == '\r') --length;
      vocabulary_.Set(table_.Intern(text.substr(at, length)), id++);
      at = end + 1;
    }
    return {};
  }

  Result<void> ReadAddedTokens() {
    const char* file = "added_tokens.json";
    const std::string text = MP_TRY(Read(file));
    const OrderedJson tokens = MP_TRY(ParseOrderedJson(text, Where(file)));
    if (!tokens.is_object()) return Misshapen(file, "the document");
    for (const auto& [content, id] : tokens.items())
      MP_TRY(AddEntry(file, id, {{"content", content}}));
    return {};
  }

  // Tokens of older checkpoints that stand in the configuration alone.
  Result<void> ReadDecoder() {
    const char* file = "tokenizer_config.json";
    const std::string text = MP_TRY(Read(file));
    const OrderedJson config = MP_TRY(ParseOrderedJson(text, Where(file)));
    if (!config.is_object() || !config.contains("added_tokens_decoder")) return {};
    const OrderedJson& decoder = config["added_tokens_decoder"];
    if (!decoder.is_object()) return Misshapen(file, "added_tokens_decoder");
    for (const auto& [number, entry] : decoder.items()) {
      const auto id = ParseUnsigned(number);
      if (!id) return Misshapen(file, "added_tokens_decoder");
      const bool known = entry.is_object() && entry.contains("content") && entry["content"].is_string() &&
                         added_.count(table_.Intern(entry["content"].get<std::string>())) > 0;
      if (!known) MP_TRY(AddEntry(file, OrderedJson(*id), entry));
    }
    return {};
  }

  Result<void> AddEntry(const char* file, const OrderedJson& id, const OrderedJson& entry) {
    const bool sound = entry.is_object() && entry.contains("content") && entry["content"].is_string() &&
                       id.is_number_unsigned();
    if (!sound) return Misshapen(file, "an added token");
    if (id.get<uint64_t>() >= kMaxTokenId)
      return Fail(Code::kInvalidInput,
                  Format("{}: the token '{}' has the id {}, which is no token's", Where(file),
                         entry["content"].get<std::string>(), id.get<uint64_t>()));
    const uint32_t token = table_.Intern(entry["content"].get<std::string>());
    const auto number = id.get<uint32_t>();
    vocabulary_.Set(token, number);
    vocabulary_.added.push_back({token, number, SettingsOf(entry)});
    added_.insert(token);
    return {};
  }

  Failure Misshapen(const char* file, const char* part) const {
    return Fail(Code::kInvalidInput, Format("{}: {} is not what a tokenizer has there", Where(file), part));
  }

  const Checkpoint& model_;
  TokenTable& table_;
  Vocabulary vocabulary_;
  std::unordered_set<uint32_t> added_;  // the tokens of vocabulary_.added
};

}  // namespace

void Vocabulary::Set(uint32_t token, uint32_t id) {
  if (token >= ids_.size()) ids_.resize(token + 1, TokenTable::kNone);
  ids_[token] = id;
}

Result<void> Vocabulary::Finish(const TokenTable& table, const std::string& where) {
  for (uint32_t token = 0; token < ids_.size(); ++token) {
    const uint32_t id = ids_[token];
    if (id == TokenTable::kNone) continue;
    if (id >= tokens_.size()) tokens_.resize(id + 1, TokenTable::kNone);
    if (tokens_[id] != TokenTable::kNone)
      return Fail(Code::kInvalidInput, Format("{}: the tokens '{}' and '{}' have the same id {}", where,
                                              table.Text(tokens_[id]), table.Text(token), id));
    tokens_[id] = token;
  }
  std::stable_sort(added.begin(), added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return {};
}

OrderedJson PlainTokenSettings() {
  OrderedJson settings = OrderedJson::object();
  for (const char* key : kSettings)
    settings[key] = false;
  settings["normalized"] = true;
  return settings;
}

Result<std::optional<Vocabulary>> ReadVocabulary(const Checkpoint& model, TokenTable& table) {
  return VocabularyReader(model, table).Run();
}

}  // namespace mergepipe
