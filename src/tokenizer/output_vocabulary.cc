#include "tokenizer/output_vocabulary.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace {

class OutputBuilder {
 public:
  OutputBuilder(const VocabularyRequest& request, const TokenTable& table)
      : request_(request), table_(table) {}

  Result<OutputVocabulary> Run() {
    out_.model = request_.source.value_or(0);
    const bool whole = request_.source.has_value();
    Start(Model(out_.model), whole);
    if (!whole && !request_.base) Unite();
    for (const uint32_t token : request_.tokens) {
      if (present_.count(token) == 0) Append(token, PlainTokenSettings());
    }
    if (out_.changed() && Model(out_.model).vocabulary->model_type.empty()) {
      return Fail(
          Code::kUnsupported,
          Format(
              "{}: the merge changes its tokenizer, which needs a tokenizer.json; make one first: python -c "
              "\"from transformers import AutoTokenizer; "
              "AutoTokenizer.from_pretrained('{}').save_pretrained('{}')\"",
              Model(out_.model).name, Model(out_.model).name, Model(out_.model).name));
    }
    return std::move(out_);
  }

 private:
  const VocabularyRequest::Model& Model(size_t model) const { return request_.models[model]; }

  // The tokens of the model whose tokenizer is taken.
  void Start(const VocabularyRequest::Model& model, bool whole) {
    const Vocabulary& vocabulary = *model.vocabulary;
    out_.kept = whole ? vocabulary.size() : std::min(vocabulary.size(), model.limit);
    for (uint64_t id = 0; id < vocabulary.size(); ++id) {
      const uint32_t token = vocabulary.TokenAt(id);
      if (id < out_.kept) {
        out_.tokens.push_back(token);
        if (token != TokenTable::kNone) present_.insert(token);
      } else if (token != TokenTable::kNone) {
        out_.removed.push_back(token);
      }
    }
    while (!out_.tokens.empty() && out_.tokens.back() == TokenTable::kNone)
      out_.tokens.pop_back();
    if (!out_.removed.empty())
      out_.warnings.push_back(
          Format("{}: {} tokens of its tokenizer have ids beyond its vocab_size of {}; they are "
                 "removed",
                 model.name, out_.removed.size(), model.limit));
  }

  // Ordinary tokens first, model by model, then those that stand beside a tokenizer's model.
  void Unite() {
    std::map<uint32_t, OrderedJson> settings;  // of added tokens, as first seen
    std::vector<uint32_t> order;
    for (const auto& model : request_.models) {
      if (model.vocabulary != nullptr) NoteSettings(model, settings, order);
    }
    for (size_t m = 1; m < request_.models.size(); ++m) {
      if (Model(m).vocabulary != nullptr) AppendOrdinary(Model(m), settings);
    }
    std::unordered_set<uint32_t> beside;  // of the first model's
    for (const AddedToken& added : Model(0).vocabulary->added)
      beside.insert(added.token);
    for (const uint32_t token : order) {
      if (present_.count(token) == 0) {
        Append(token, settings[token]);
      } else if (beside.count(token) == 0) {
        const uint32_t id = *Model(0).vocabulary->IdOf(token);
        out_.appended.push_back({token, id, settings[token]});
      }
    }
  }

  void NoteSettings(const VocabularyRequest::Model& model, std::map<uint32_t, OrderedJson>& settings,
                    std::vector<uint32_t>& order) {
    for (const AddedToken& added : model.vocabulary->added) {
      if (added.id >= model.limit) continue;
      const auto [at, inserted] = settings.try_emplace(added.token, added.settings);
      if (inserted) {
        order.push_back(added.token);
      } else if (at->second != added.settings && warned_.insert(added.token).second) {
        out_.warnings.push_back(
            Format("{}: the added token '{}' has other settings than in a model before it, whose "
                   "settings are taken",
                   model.name, table_.Text(added.token)));
      }
    }
  }

  void AppendOrdinary(const VocabularyRequest::Model& model,
                      const std::map<uint32_t, OrderedJson>& settings) {
    const uint64_t end = std::min(model.vocabulary->size(), model.limit);
    for (uint64_t id = 0; id < end; ++id) {
      const uint32_t token = model.vocabulary->TokenAt(id);
      const bool ordinary = token != TokenTable::kNone && settings.count(token) == 0;
      if (ordinary && present_.count(token) == 0) Append(token, PlainTokenSettings());
    }
  }

  void Append(uint32_t token, OrderedJson settings) {
    present_.insert(token);
    ++out_.added;
    out_.appended.push_back({token, static_cast<uint32_t>(out_.tokens.size()), std::move(settings)});
    out_.tokens.push_back(token);
  }

  const VocabularyRequest& request_;
  const TokenTable& table_;
  OutputVocabulary out_;
  std::unordered_set<uint32_t> present_, warned_;
};

}  // namespace

Result<OutputVocabulary> BuildOutputVocabulary(const VocabularyRequest& request, const TokenTable& table) {
  return OutputBuilder(request, table).Run();
}

}  // namespace mergepipe
