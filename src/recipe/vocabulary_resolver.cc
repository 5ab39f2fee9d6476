#include "recipe/vocabulary_resolver.h"

#include <algorithm>
#include <limits>

#include "base/try.h"

namespace mergepipe {
namespace {

// What config.json says; nothing where it does not.
std::optional<uint64_t> VocabSizeOf(const Checkpoint& checkpoint) {
  const auto config = checkpoint.Config();
  if (!config || !config->is_object()) return std::nullopt;
  const auto size_in = [](const OrderedJson& object) -> std::optional<uint64_t> {
    const auto found = object.find("vocab_size");
    if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
    return found->get<uint64_t>();
  };
  const auto text_config = config->find("text_config");
  if (const auto size = size_in(*config)) return size;
  return text_config != config->end() && text_config->is_object() ? size_in(*text_config) : std::nullopt;
}

class VocabularyResolver {
 public:
  explicit VocabularyResolver(ResolveState& state) : state_(state), spec_(*state.recipe.tokenizer) {}

  void Run() {
    merged_ = state_.shelf.models().size();
    base_ = state_.base.value_or(state_.merge.donor);
    OpenSource();
    ReadVocabularies();
    if (HasFaults() || NothingToAlign()) return;
    if (!Build()) return;
    FindOwnRows();
    ResolveRules();
    if (!state_.faults.empty()) return;
    Note();
    state_.vocabulary = std::move(plan_);
  }

 private:
  bool HasFaults() const { return !state_.faults.empty() || !state_.shelf.faults().empty(); }

  void OpenSource() {
    if (spec_.source == TokenizerSpec::Source::kModel) source_ = state_.Open(spec_.model);
  }

  void ReadVocabularies() {
    for (size_t m = 0; m < state_.shelf.models().size(); ++m) {
      const Checkpoint& checkpoint = state_.CheckpointOf(m);
      auto read = ReadVocabulary(checkpoint, table_);
      if (!read) {
        if (read.error().code == Code::kUnsupported) state_.unsupported = true;
        state_.faults.push_back(read.error().message);
      }
      vocabularies_.push_back(read ? std::move(*read) : std::nullopt);
      limits_.push_back(VocabSizeOf(checkpoint));
    }
  }

  // mergekit takes 'base' for models that have no tokenizer at all; there is nothing to lay out then.
  bool NothingToAlign() {
    const bool none = std::none_of(vocabularies_.begin(), vocabularies_.end(),
                                   [](const auto& vocabulary) { return vocabulary.has_value(); });
    const bool plain =
        spec_.source == TokenizerSpec::Source::kBase && spec_.tokens.empty() && !spec_.pad_to_multiple_of;
    if (none && plain) {
      state_.merge.warnings.push_back(
          Format("{}: no model has a tokenizer, so no vocabularies are aligned", state_.At(spec_.at)));
      return true;
    }
    for (const size_t needed : {base_, source_.value_or(base_)}) {
      if (vocabularies_[needed]) continue;
      state_.faults.push_back(
          Format("{}: the model '{}' has no tokenizer (tokenizer.json, vocab.json or vocab.txt) to "
                 "make the output's of",
                 state_.At(spec_.at), state_.NameOf(needed)));
      return true;
    }
    for (size_t m = 0; m < merged_; ++m) {
      if (!vocabularies_[m])
        state_.merge.warnings.push_back(Format("{}: has no tokenizer; its tokens are taken to be those of {}",
                                               state_.NameOf(m), state_.NameOf(base_)));
    }
    return false;
  }

  const Vocabulary& VocabularyOf(size_t model) const {
    return *vocabularies_[vocabularies_[model] ? model : base_];
  }
  uint64_t LimitOf(size_t model) const { return limits_[model].value_or(VocabularyOf(model).size()); }

  bool Build() {
    VocabularyRequest request;
    std::vector<size_t> models = {base_};
    for (size_t m = 0; m < state_.shelf.models().size(); ++m) {
      if (m != base_ && (m < merged_ || m == source_)) models.push_back(m);
    }
    for (const size_t m : models) {
      if (m == source_) request.source = request.models.size();
      const Vocabulary* vocabulary = vocabularies_[m] ? &*vocabularies_[m] : nullptr;
      request.models.push_back({state_.NameOf(m), vocabulary, LimitOf(m)});
    }
    request.base = spec_.source == TokenizerSpec::Source::kBase;
    for (const TokenSpec& token : spec_.tokens)
      request.tokens.push_back(table_.Intern(token.token));
    auto built = BuildOutputVocabulary(request, table_);
    if (!built) {
      state_.Unsupported(built.error().message);
      return false;
    }
    output_ = std::move(*built);
    for (const std::string& warning : output_.warnings)
      state_.merge.warnings.push_back(warning);
    plan_.model = models[output_.model];
    plan_.edit = EditOf(output_, table_);
    plan_.tokens = output_.tokens.size();
    if (plan_.tokens == 0) {
      state_.faults.push_back(
          Format("{}: the tokenizer of {} has no tokens", state_.At(spec_.at), state_.NameOf(plan_.model)));
      return false;
    }
    const uint64_t pad = spec_.pad_to_multiple_of.value_or(1);
    plan_.rows = (plan_.tokens + pad - 1) / pad * pad;
    for (const uint32_t token : output_.tokens)
      plan_.texts.push_back(token == TokenTable::kNone ? "" : table_.Text(token));
    return true;
  }

  void FindOwnRows() {
    for (size_t m = 0; m < state_.shelf.models().size(); ++m) {
      const Vocabulary& vocabulary = VocabularyOf(m);
      const uint64_t limit = LimitOf(m);
      std::vector<int32_t> rows(output_.tokens.size(), -1);
      for (size_t id = 0; id < rows.size(); ++id) {
        const uint32_t token = output_.tokens[id];
        const bool same_gap = token == TokenTable::kNone && vocabulary.TokenAt(id) == TokenTable::kNone;
        const auto own = same_gap                     ? std::optional(static_cast<uint32_t>(id))
                         : token == TokenTable::kNone ? std::nullopt
                                                      : vocabulary.IdOf(token);
        if (own && *own < limit) rows[id] = static_cast<int32_t>(*own);
      }
      plan_.own.push_back(std::move(rows));
      plan_.limits.push_back(limit);
    }
  }

  void ResolveRules() {
    for (const TokenSpec& token : spec_.tokens) {
      const uint32_t number = table_.Find(token.token);
      const auto at = std::find(output_.tokens.begin(), output_.tokens.end(), number);
      const auto id = static_cast<uint64_t>(at - output_.tokens.begin());
      TokenRule rule{.spec = &token};
      const bool from_model =
          token.kind == TokenSpec::Kind::kModel || token.kind == TokenSpec::Kind::kModelToken;
      if (from_model && !FindRow(token, id, rule)) continue;
      plan_.rules[id] = rule;
    }
  }

  bool FindRow(const TokenSpec& token, uint64_t id, TokenRule& rule) {
    const auto model = state_.Open(token.model);
    if (!model) return false;
    if (*model >= merged_)
      return Fault(token, Format("the model '{}' is not part of the merge", token.model.Text()));
    rule.model = *model;
    const std::string& name = state_.NameOf(*model);
    if (token.kind == TokenSpec::Kind::kModel) {
      if (plan_.own[*model][id] < 0) return Fault(token, Format("the model '{}' does not have it", name));
      rule.row = static_cast<uint64_t>(plan_.own[*model][id]);
    } else if (token.of_id) {
      rule.row = *token.of_id;
    } else {
      const auto row = VocabularyOf(*model).IdOf(table_.Find(*token.of_token));
      if (!row || *row >= LimitOf(*model))
        return Fault(token, Format("the model '{}' has no token '{}'", name, *token.of_token));
      rule.row = *row;
    }
    return true;
  }

  bool Fault(const TokenSpec& token, const std::string& why) {
    state_.faults.push_back(Format("{}: token '{}': {}", state_.At(token.at), token.token, why));
    return false;
  }

  void Note() {
    std::string text =
        Format("{}: the tokenizer is that of {}", state_.At(spec_.at), state_.NameOf(plan_.model));
    if (output_.added > 0) text += Format(" with {} more tokens", output_.added);
    text += Format("; {} tokens", plan_.tokens);
    if (plan_.rows != plan_.tokens) text += Format(" in {} rows", plan_.rows);
    state_.merge.warnings.push_back(text);
  }

  ResolveState& state_;
  const TokenizerSpec& spec_;
  size_t merged_ = 0;  // models with a higher number only lend their tokenizer
  size_t base_ = 0;
  std::optional<size_t> source_;
  TokenTable table_;
  std::vector<std::optional<Vocabulary>> vocabularies_;  // by model
  std::vector<std::optional<uint64_t>> limits_;          // by model, as config.json says
  OutputVocabulary output_;
  VocabularyPlan plan_;
};

}  // namespace

void ResolveVocabulary(ResolveState& state) {
  if (state.recipe.tokenizer) VocabularyResolver(state).Run();
}

}  // namespace mergepipe
