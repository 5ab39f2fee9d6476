#include "recipe/row_resolver.h"

#include <algorithm>
#include <array>

#include "recipe/layers.h"

namespace mergepipe {
namespace {

// How the tensors end that loaders index by tokens: embeddings, heads and their biases.
constexpr std::array<std::string_view, 21> kIndexedByTokens = {"embed_tokens.weight",
                                                               "tok_embeddings.weight",
                                                               "word_embeddings.weight",
                                                               "wte.weight",
                                                               "embed_in.weight",
                                                               "shared.weight",
                                                               "backbone.embedding.weight",
                                                               "backbone.embeddings.weight",
                                                               "model.embeddings.weight",
                                                               "embed_out.weight",
                                                               "embed_out.bias",
                                                               "lm_head.weight",
                                                               "lm_head.bias",
                                                               "lm_head.decoder.weight",
                                                               "lm_head.decoder.bias",
                                                               "output_layer.weight",
                                                               "cls.predictions.bias",
                                                               "cls.predictions.decoder.weight",
                                                               "cls.predictions.decoder.bias",
                                                               "vocab_projector.weight",
                                                               "vocab_projector.bias"};

bool EndsLike(const std::string& name, std::string_view ending) {
  return EndsWith(name, ending) &&
         (name.size() == ending.size() || name[name.size() - ending.size() - 1] == '.');
}

bool IsKnownName(const std::string& name) {
  if (SplitLayerName(name)) return false;
  if (name == "output.weight") return true;  // InternLM2's head
  return std::any_of(kIndexedByTokens.begin(), kIndexedByTokens.end(),
                     [&](std::string_view ending) { return EndsLike(name, ending); });
}

}  // namespace

const TensorEntry& RowResolver::StoredEntry(size_t model, const TensorPlace& place) const {
  return state_.CheckpointOf(model).entry(place);
}

void RowResolver::Fault(std::string text) {
  if (told_.insert(text).second) state_.faults.push_back(std::move(text));
}

bool RowResolver::IsIndexedByTokens(const std::string& name, const TensorSource& reference) {
  if (!state_.vocabulary || !IsKnownName(name)) return false;
  const TensorEntry& entry = StoredEntry(reference.model, reference.place);
  const uint64_t limit = state_.vocabulary->limits[reference.model];
  if (entry.elements > 0 && !entry.shape.empty() && entry.shape[0] >= limit && IsMergeable(entry.dtype))
    return true;
  state_.merge.warnings.push_back(
      Format("{}: tensor '{}' ({}, {}) is not taken to be indexed by tokens: the vocab_size is {}",
             state_.NameOf(reference.model), name, DTypeName(entry.dtype), ShapeText(entry.shape), limit));
  return false;
}

bool RowResolver::Fits(const TensorSource& source, const TensorSource& reference) {
  const TensorEntry& entry = StoredEntry(source.model, source.place);
  const TensorEntry& first = StoredEntry(reference.model, reference.place);
  const uint64_t limit = state_.vocabulary->limits[source.model];
  if (entry.shape.size() != first.shape.size() ||
      !std::equal(entry.shape.begin() + 1, entry.shape.end(), first.shape.begin() + 1)) {
    Fault(Format("{}: tensor '{}' has shape {} but {} has {}; only the number of rows may differ",
                 state_.NameOf(source.model), entry.name, ShapeText(entry.shape),
                 state_.NameOf(reference.model), ShapeText(first.shape)));
    return false;
  }
  if (entry.shape[0] >= limit) return true;
  Fault(Format("{}: tensor '{}' has {} rows but the vocab_size is {}; repair config.json or the tensor",
               state_.NameOf(source.model), entry.name, entry.shape[0], limit));
  return false;
}

std::vector<uint64_t> RowResolver::ShapeOf(const std::vector<uint64_t>& reference) const {
  std::vector<uint64_t> shape = reference;
  shape[0] = state_.vocabulary->rows;
  return shape;
}

void RowResolver::Lay(ResolvedTensor& tensor, bool stand_in) {
  const Maps* maps = MapsFor(tensor, stand_in);
  if (maps == nullptr || !RowsExist(tensor, *maps)) return;
  bool as_stored = true;
  for (size_t s = 0; s < tensor.sources.size(); ++s)
    as_stored = as_stored && maps->of[s]->IsIdentity() &&
                StoredEntry(tensor.sources[s].model, tensor.sources[s].place).shape[0] == tensor.shape[0];
  if (as_stored) return;
  state_.merge.warnings.push_back(Format("tensor '{}': {}", tensor.name, maps->note));
  GatheredRows common;
  common.entry.dtype = TypeOf(tensor, *maps);
  common.entry.shape = tensor.shape;
  common.entry.elements = tensor.elements;
  common.entry.end = tensor.elements * DTypeBytes(common.entry.dtype);
  common.row_elements = tensor.elements / tensor.shape[0];
  for (const TensorSource& source : tensor.sources)
    common.stored.emplace_back(source.model, source.place);
  for (size_t s = 0; s < tensor.sources.size(); ++s) {
    auto rows = std::make_shared<GatheredRows>(common);
    rows->entry.name = StoredEntry(tensor.sources[s].model, tensor.sources[s].place).name;
    rows->map = maps->of[s];
    rows->digest = rows->map->Digest();
    tensor.sources[s].rows = std::move(rows);
  }
}

const RowResolver::Maps* RowResolver::MapsFor(const ResolvedTensor& tensor, bool stand_in) {
  std::vector<size_t> models;
  for (const TensorSource& source : tensor.sources)
    models.push_back(source.model);
  const auto key = std::pair(models, stand_in);
  const auto found = known_.find(key);
  if (found != known_.end()) return &found->second;
  std::vector<RowMap> maps(models.size());
  Counts counts;
  bool sound = true;
  for (uint64_t id = 0; id < state_.vocabulary->tokens; ++id)
    sound = AddRow(id, models, stand_in, tensor.name, maps, counts) && sound;
  if (!sound) return nullptr;
  for (RowMap& map : maps) {
    while (map.size() < state_.vocabulary->rows)
      map.Add(RowMap::kPadding);
  }
  Maps result;
  const uint64_t padding = state_.vocabulary->rows - state_.vocabulary->tokens;
  result.note = Format("{} rows", state_.vocabulary->rows);
  for (const auto& [count, what] : {std::pair(counts.shared, "in every model"),
                                    {counts.lone, "of the one model that has them"},
                                    {counts.of_base, "of the base where others lack them"},
                                    {counts.means, "means of those that have them"},
                                    {counts.zero, "zero, as no model has them"},
                                    {counts.told, "set by the recipe"},
                                    {padding, "padding"}}) {
    if (count > 0) result.note += Format(", {} {}", count, what);
  }
  for (RowMap& map : maps)
    result.of.push_back(std::make_shared<const RowMap>(std::move(map)));
  return &known_.emplace(key, std::move(result)).first->second;
}

// One token in every source: its own row, or the one that stands for it.
bool RowResolver::AddRow(uint64_t id, const std::vector<size_t>& models, bool stand_in,
                         const std::string& tensor, std::vector<RowMap>& maps, Counts& counts) {
  const auto own = [&](size_t s) { return state_.vocabulary->own[models[s]][id]; };
  const auto rule = state_.vocabulary->rules.find(id);
  const bool force = rule != state_.vocabulary->rules.end() && rule->second.spec->force;
  std::vector<size_t> owners;  // sources that have it
  bool all = true;
  for (size_t s = 0; s < models.size(); ++s) {
    all = all && own(s) >= 0;
    if (own(s) >= 0 && !(stand_in && s == 0)) owners.push_back(models[s]);
  }
  if (all && !force) {
    ++counts.shared;
    for (size_t s = 0; s < models.size(); ++s)
      maps[s].Add(own(s));
    return true;
  }
  const auto rows = DefaultOf(id, owners, models, tensor, counts);
  if (!rows) return false;
  const auto is_default = [&](size_t s) { return force || own(s) < 0; };
  const auto equals_default = [&](size_t s) {
    return rows->size() == 1 && (*rows)[0] == StoredRow{models[s], static_cast<uint64_t>(own(s))};
  };
  for (size_t s = 0; s < models.size(); ++s) {
    const bool of_reference = is_default(0) || equals_default(0);
    if (s > 0 && of_reference && (is_default(s) || equals_default(s))) {
      maps[s].Add(RowMap::kReference);
    } else if (!is_default(s)) {
      maps[s].Add(own(s));
    } else if (rows->empty()) {
      maps[s].Add(RowMap::kZero);
    } else {
      maps[s].AddMixture(*rows);
    }
  }
  return true;
}

// The rows whose mean stands for a token where a model lacks it; empty is zero. Nothing after a fault.
std::optional<std::vector<StoredRow>> RowResolver::DefaultOf(uint64_t id, const std::vector<size_t>& owners,
                                                             const std::vector<size_t>& models,
                                                             const std::string& tensor, Counts& counts) {
  const auto row_of = [&](size_t model) {
    return StoredRow{model, static_cast<uint64_t>(state_.vocabulary->own[model][id])};
  };
  const auto rule = state_.vocabulary->rules.find(id);
  if (rule != state_.vocabulary->rules.end()) {
    const TokenSpec& spec = *rule->second.spec;
    const std::string where = Format("{}: token '{}'", state_.At(spec.at), spec.token);
    ++counts.told;
    if (spec.kind == TokenSpec::Kind::kZero) return std::vector<StoredRow>();
    if (spec.kind == TokenSpec::Kind::kDefault) {
      Fault(Format("{} has no 'source', but {}; say where its row comes from", where,
                   spec.force ? "'force' needs one" : "not every model has it"));
      return std::nullopt;
    }
    if (std::find(models.begin(), models.end(), rule->second.model) == models.end()) {
      Fault(Format("{}: the model '{}' has no tensor '{}' to take the row from", where,
                   state_.NameOf(rule->second.model), tensor));
      return std::nullopt;
    }
    return std::vector<StoredRow>{{rule->second.model, rule->second.row}};
  }
  if (owners.empty()) {
    ++counts.zero;
    return std::vector<StoredRow>();
  }
  if (owners.size() == 1) {
    ++counts.lone;
    return std::vector<StoredRow>{row_of(owners[0])};
  }
  if (state_.base && std::find(owners.begin(), owners.end(), *state_.base) != owners.end()) {
    ++counts.of_base;
    return std::vector<StoredRow>{row_of(*state_.base)};
  }
  ++counts.means;
  std::vector<StoredRow> rows;
  for (const size_t model : owners)
    rows.push_back(row_of(model));
  return rows;
}

// The stored type where nothing is computed and all have it, else the narrowest that holds the values of all.
DType RowResolver::TypeOf(const ResolvedTensor& tensor, const Maps& maps) const {
  const DType first = StoredEntry(tensor.sources[0].model, tensor.sources[0].place).dtype;
  bool computes = false, same = true, wide = false;
  for (size_t s = 0; s < maps.of.size(); ++s) {
    const DType dtype = StoredEntry(tensor.sources[s].model, tensor.sources[s].place).dtype;
    computes = computes || maps.of[s]->has_means() || maps.of[s]->padding_rows() > 0;
    same = same && dtype == first;
    wide = wide || dtype == DType::kF64;
  }
  if (same && !computes) return first;
  return wide ? DType::kF64 : DType::kF32;
}

// Rows that the recipe names by number may lie beyond the tensor.
bool RowResolver::RowsExist(const ResolvedTensor& tensor, const Maps& maps) {
  for (const auto& map : maps.of) {
    for (uint64_t id = 0; id < state_.vocabulary->tokens; ++id) {
      if (!RowMap::IsMixture(map->At(id))) continue;
      for (const StoredRow& part : map->Mixture(map->At(id))) {
        const auto source = std::find_if(tensor.sources.begin(), tensor.sources.end(),
                                         [&](const TensorSource& s) { return s.model == part.model; });
        const TensorEntry& entry = StoredEntry(part.model, source->place);
        if (part.row < entry.shape[0]) continue;
        const auto rule = state_.vocabulary->rules.find(id);
        const RecipePlace at = rule == state_.vocabulary->rules.end() ? RecipePlace{} : rule->second.spec->at;
        Fault(Format("{}: token '{}': the model '{}' has no row {}: its tensor '{}' has {}", state_.At(at),
                     state_.vocabulary->texts[id], state_.NameOf(part.model), part.row, entry.name,
                     entry.shape[0]));
        return false;
      }
    }
  }
  return true;
}

}  // namespace mergepipe
