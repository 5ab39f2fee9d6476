#include "recipe/tensor_resolver.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/digest.h"
#include "recipe/row_resolver.h"
#include "recipe/settings.h"

namespace mergepipe {
namespace {

constexpr const char* kHead = "lm_head.weight";
// Names of the embedding that a tied head stands for.
constexpr std::array<const char*, 3> kTiedEmbeddings = {
    "model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "transformer.wte.weight"};

class TensorResolver {
 public:
  explicit TensorResolver(ResolveState& state) : state_(state), rows_(state) {}

  void Run() {
    for (Scope& scope : state_.scopes)
      ResolveScope(scope);
    CopyUnlistedModules();
  }

 private:
  void ResolveScope(Scope& scope) {
    if (scope.slice == nullptr) return ResolveWhole(scope);
    const int64_t length = scope.inputs[0].end_layer - scope.inputs[0].first_layer;
    for (int64_t k = 0; k < length; ++k) {
      const double t = length > 1 ? static_cast<double>(k) / static_cast<double>(length - 1) : 1.0;
      for (const std::string& suffix : LayerSuffixes(scope, k)) {
        std::vector<std::string> names;
        for (const ScopeInput& input : scope.inputs)
          names.push_back(JoinLayerName(scope.layer_prefix, input.first_layer + k, suffix));
        AddTensor(scope, JoinLayerName(scope.layer_prefix, scope.first_output_layer + k, suffix), names, t);
      }
    }
    ResolveOutsideLayers(scope);
  }

  std::set<std::string> LayerSuffixes(const Scope& scope, int64_t k) {
    std::set<std::string> suffixes;
    for (const ScopeInput& input : scope.inputs) {
      const std::string start = Format("{}.{}.", scope.layer_prefix, input.first_layer + k);
      const auto& tensors = state_.CheckpointOf(input.model).tensors();
      for (auto it = tensors.lower_bound(start); it != tensors.end() && StartsWith(it->first, start); ++it)
        suffixes.insert(it->first.substr(start.size()));
    }
    return suffixes;
  }

  void ResolveOutsideLayers(Scope& scope) {
    std::set<std::string> outside;
    for (const ScopeInput& input : scope.inputs) {
      for (const auto& [name, place] : state_.CheckpointOf(input.model).tensors()) {
        const bool before = StandsBeforeLayers(name);
        const bool taken = before ? scope.takes_before : scope.takes_behind;
        if (!SplitLayerName(name) && taken && scope.module_names.Holds(name)) outside.insert(name);
      }
    }
    for (const std::string& name : outside)
      AddTensor(scope, name, std::vector<std::string>(scope.inputs.size(), name), 0);
  }

  void ResolveWhole(Scope& scope) {
    const auto layers = CountLayers(state_.CheckpointOf(ReferenceOf(scope)));
    std::set<std::string> all;
    for (const ScopeInput& input : scope.inputs) {
      for (const auto& [name, place] : state_.CheckpointOf(input.model).tensors()) {
        if (scope.module_names.Holds(name)) all.insert(name);
      }
    }
    for (const std::string& name : all) {
      const auto split = SplitLayerName(name);
      const auto count = split ? layers.find(split->prefix) : layers.end();
      double t = 0;
      if (count != layers.end() && !state_.files_alone)
        t = count->second > 1 ? static_cast<double>(split->layer) / static_cast<double>(count->second - 1)
                              : 1.0;
      AddTensor(scope, name, std::vector<std::string>(scope.inputs.size(), name), t);
    }
  }

  static size_t ReferencePosition(const Scope& scope) {
    for (size_t i = 0; i < scope.inputs.size(); ++i) {
      if (scope.inputs[i].model == scope.base) return i;
    }
    return 0;
  }
  Domain DomainOf(const Scope& scope) const { return state_.method->DomainWith(scope.base.has_value()); }
  static size_t ReferenceOf(const Scope& scope) { return scope.inputs[ReferencePosition(scope)].model; }

  // The inputs of a scope that make one tensor.
  struct Parts {
    std::vector<size_t> positions;
    size_t reference = 0;
  };

  // Decides one output tensor from the tensors `names` of the scope's inputs.
  void AddTensor(Scope& scope, const std::string& output, const std::vector<std::string>& names, double t) {
    scope.names.insert(output);
    scope.names.insert(names.begin(), names.end());
    if (IsRedundantHead(scope, ReferencePosition(scope), names))
      return ReferenceLacks(scope, ReferencePosition(scope), output, names);
    const auto parts = PartsOf(scope, output, names);
    if (!parts) return;
    const size_t reference = parts->reference;
    ResolvedTensor tensor;
    tensor.name = output;
    const auto reference_source = FindSource(scope.inputs[reference].model, names[reference]);
    if (!reference_source) return ReferenceLacks(scope, reference, output, names);
    const TensorEntry& entry = EntryOf(*reference_source);
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.elements = entry.elements;
    tensor.sources.push_back(*reference_source);
    const bool by_tokens = rows_.IsIndexedByTokens(output, *reference_source);
    tensor.facts.domain = DomainOf(scope);
    for (const size_t i : parts->positions) {
      if (i == reference) {
        if (tensor.facts.domain == Domain::kDeltas) continue;
        tensor.facts.base_input = tensor.inputs.size();
        tensor.inputs.push_back(0);
      } else if (!AddInput(scope, i, names[i], entry, by_tokens, tensor)) {
        return;
      }
    }
    if (!IsMergeable(entry.dtype)) return AddUnmergeable(std::move(tensor));
    if (by_tokens && !SetRows(tensor)) return;
    tensor.facts.elements = tensor.elements;
    tensor.facts.shape = tensor.shape;
    if (state_.merge.out_dtype) tensor.dtype = *state_.merge.out_dtype;
    if (!Parameterise(scope, names, t, *parts, tensor)) return;
    const bool stands_in = state_.options.stand_ins && AddStandIn(names[reference], by_tokens, tensor);
    if (by_tokens) LayRows(tensor, stands_in);
    state_.merge.tensors.push_back(std::move(tensor));
  }

  // Which inputs make the tensor, by the rule for tensors that only some models have; nothing where it is
  // left out or can not be made.
  std::optional<Parts> PartsOf(const Scope& scope, const std::string& output,
                               const std::vector<std::string>& names) {
    Parts parts;
    parts.reference = ReferencePosition(scope);
    std::vector<size_t> holders;
    for (size_t i = 0; i < scope.inputs.size(); ++i) {
      parts.positions.push_back(i);
      if (FindSource(scope.inputs[i].model, names[i])) holders.push_back(i);
    }
    if (holders.size() == scope.inputs.size()) return parts;
    if (state_.options.missing == MissingTensors::kIntersection) {
      DropAll(scope, holders, names, "not in every model (--tensor-intersection)");
      return std::nullopt;
    }
    if (state_.options.missing != MissingTensors::kUnion) return parts;
    return PartsOfUnion(scope, output, names, std::move(holders), std::move(parts));
  }

  std::optional<Parts> PartsOfUnion(const Scope& scope, const std::string& output,
                                    const std::vector<std::string>& names, std::vector<size_t> holders,
                                    Parts all) {
    const Method& method = *state_.method;
    const auto holds = [&](size_t i) {
      return std::find(holders.begin(), holders.end(), i) != holders.end();
    };
    const bool listed = std::any_of(holders.begin(), holders.end(),
                                    [&](size_t i) { return scope.inputs[i].spec != nullptr; });
    if (!listed) {
      DropAll(scope, holders, names, "only the base has it, which is not listed (--tensor-union)");
      return std::nullopt;
    }
    const bool has_base = holds(all.reference);
    if ((method.needs_base || DomainOf(scope) == Domain::kDeltas) && !has_base) {
      ReferenceLacks(scope, all.reference, output, names);
      return std::nullopt;
    }
    const bool base_counts = !method.base_is_optional() || !scope.base;
    if (holders.size() - (base_counts ? 0 : 1) < method.min_inputs) {
      state_.faults.push_back(
          Format("tensor '{}' is in {} only, but the method '{}' takes at least {} models", output,
                 NamesOf(scope, holders), method.name, method.min_inputs));
      return std::nullopt;
    }
    if (!has_base) all.reference = holders[0];
    all.positions = std::move(holders);
    return all;
  }

  std::string NamesOf(const Scope& scope, const std::vector<size_t>& positions) {
    std::vector<std::string> names;
    for (const size_t i : positions)
      names.push_back(state_.NameOf(scope.inputs[i].model));
    return Join(names, ", ");
  }

  void DropAll(const Scope& scope, const std::vector<size_t>& holders, const std::vector<std::string>& names,
               const std::string& rule) {
    for (const size_t i : holders)
      state_.merge.dropped.push_back({scope.inputs[i].model, names[i], rule});
  }

  // The donor's tensor of the same name becomes the reference where a method without a base takes all from
  // others.
  bool AddStandIn(const std::string& name, bool by_tokens, ResolvedTensor& tensor) {
    const size_t donor = state_.merge.donor;
    if (tensor.facts.domain == Domain::kDeltas || tensor.sources[0].model == donor) return false;
    const auto place = state_.CheckpointOf(donor).tensors().find(name);
    if (place == state_.CheckpointOf(donor).tensors().end()) return false;
    const TensorEntry& entry = state_.CheckpointOf(donor).entry(place->second);
    if (!IsMergeable(entry.dtype) || (!by_tokens && entry.shape != tensor.shape)) return false;
    if (by_tokens && !rows_.Fits({donor, place->second}, tensor.sources[0])) return false;
    tensor.sources.insert(tensor.sources.begin(), TensorSource{donor, place->second});
    for (size_t& input : tensor.inputs)
      ++input;
    tensor.merged = true;
    tensor.rule.clear();
    return true;
  }

  // The output has a row for each of its tokens.
  bool SetRows(ResolvedTensor& tensor) {
    const uint64_t row = tensor.elements / tensor.shape[0];
    tensor.shape = rows_.ShapeOf(tensor.shape);
    constexpr uint64_t kMostElements = uint64_t{1} << 56;
    if (row < kMostElements / tensor.shape[0]) {
      tensor.elements = row * tensor.shape[0];
      return true;
    }
    state_.faults.push_back(Format("tensor '{}' would have the shape {}, which no file holds", tensor.name,
                                   ShapeText(tensor.shape)));
    return false;
  }

  // What is gathered is never copied as bytes.
  void LayRows(ResolvedTensor& tensor, bool stands_in) {
    rows_.Lay(tensor, stands_in);
    if (tensor.sources[0].rows == nullptr || tensor.merged) return;
    tensor.merged = true;
    tensor.rule.clear();
  }

  const TensorEntry& EntryOf(const TensorSource& source) {
    return state_.CheckpointOf(source.model).entry(source.place);
  }

  // A model whose head is tied has no head stored; where another model stores one, the embedding stands in
  // for it.
  std::optional<TensorSource> FindSource(size_t model, const std::string& name) {
    const auto& tensors = state_.CheckpointOf(model).tensors();
    const auto found = tensors.find(name);
    if (found != tensors.end()) return TensorSource{model, found->second};
    if (name != kHead || !TiesEmbeddings(model)) return std::nullopt;
    for (const char* embedding : kTiedEmbeddings) {
      const auto stand_in = tensors.find(embedding);
      if (stand_in == tensors.end()) continue;
      if (noted_ties_.insert(model).second) {
        state_.merge.warnings.push_back(Format("{}: stores no lm_head.weight (tied); its {} stands in for it",
                                               state_.NameOf(model), embedding));
      }
      return TensorSource{model, stand_in->second};
    }
    return std::nullopt;
  }

  // A head that the reference does not store, and that is stored only by models whose config ties it.
  bool IsRedundantHead(const Scope& scope, size_t reference, const std::vector<std::string>& names) {
    if (names[reference] != kHead) return false;
    if (state_.CheckpointOf(scope.inputs[reference].model).Find(kHead) != nullptr) return false;
    for (const ScopeInput& input : scope.inputs) {
      if (state_.CheckpointOf(input.model).Find(kHead) != nullptr && !TiesEmbeddings(input.model))
        return false;
    }
    return true;
  }

  // The copy is left out if it turns out to equal the embedding, which only its bytes can tell.
  bool NoteRedundantHead(size_t model) {
    const auto& tensors = state_.CheckpointOf(model).tensors();
    for (const char* embedding : kTiedEmbeddings) {
      const auto place = tensors.find(embedding);
      if (place == tensors.end()) continue;
      state_.merge.redundant_heads.push_back({{model, tensors.at(kHead)}, {model, place->second}});
      state_.merge.warnings.push_back(Format(
          "{}: stores lm_head.weight although its config ties it to {}; it is dropped when they are equal",
          state_.NameOf(model), embedding));
      return true;
    }
    return false;
  }

  bool TiesEmbeddings(size_t model) {
    const auto config = state_.CheckpointOf(model).Config();
    if (!config || !config->is_object()) return false;
    const auto flag = [](const OrderedJson& object) {
      const auto found = object.find("tie_word_embeddings");
      return found != object.end() && *found == true;
    };
    const auto text_config = config->find("text_config");
    return flag(*config) || (text_config != config->end() && text_config->is_object() && flag(*text_config));
  }

  // A tensor that the reference does not have: an error, or left out under --missing base.
  void ReferenceLacks(const Scope& scope, size_t reference, const std::string& output,
                      const std::vector<std::string>& names) {
    std::vector<std::string> holders;
    for (size_t i = 0; i < scope.inputs.size(); ++i) {
      const size_t model = scope.inputs[i].model;
      if (state_.CheckpointOf(model).Find(names[i]) == nullptr) continue;
      const bool redundant_head = names[i] == kHead && TiesEmbeddings(model) && NoteRedundantHead(model);
      if (state_.options.missing == MissingTensors::kBase || redundant_head) {
        state_.merge.dropped.push_back(
            {model, names[i],
             redundant_head ? "stored although its config ties it" : "not in the base (--missing base)"});
      } else {
        holders.push_back(state_.NameOf(model));
      }
    }
    if (holders.empty()) return;
    state_.incomplete = true;
    state_.faults.push_back(Format("tensor '{}' is in {} but not in {}", output, Join(holders, ", "),
                                   state_.NameOf(scope.inputs[reference].model)));
  }

  bool AddInput(const Scope& scope, size_t i, const std::string& name, const TensorEntry& reference,
                bool by_tokens, ResolvedTensor& tensor) {
    const size_t model = scope.inputs[i].model;
    const auto source = FindSource(model, name);
    if (!source) {
      if (state_.options.missing == MissingTensors::kBase || !IsMergeable(reference.dtype)) {
        tensor.inputs.push_back(0);
        return true;
      }
      state_.incomplete = true;
      state_.faults.push_back(Format("tensor '{}' is in {} but not in {}", name,
                                     state_.NameOf(tensor.sources[0].model), state_.NameOf(model)));
      return false;
    }
    const TensorEntry& entry = EntryOf(*source);
    if (by_tokens && !rows_.Fits(*source, tensor.sources[0])) return false;
    if (!by_tokens && entry.shape != reference.shape) {
      state_.faults.push_back(
          Format("{}: tensor '{}' has shape {} but {} has {}; merge checkpoints of one architecture",
                 state_.NameOf(model), name, ShapeText(entry.shape), state_.NameOf(tensor.sources[0].model),
                 ShapeText(reference.shape)));
      return false;
    }
    if (IsMergeable(entry.dtype) != IsMergeable(reference.dtype)) {
      state_.faults.push_back(Format("{}: tensor '{}' is stored as {} but in {} as {}", state_.NameOf(model),
                                     name, DTypeName(entry.dtype), state_.NameOf(tensor.sources[0].model),
                                     DTypeName(reference.dtype)));
      return false;
    }
    tensor.inputs.push_back(tensor.sources.size());
    tensor.sources.push_back(*source);
    return true;
  }

  // Integers and booleans are copied from the reference; the others are read along to see whether they agree.
  // Codes that need scales are refused.
  void AddUnmergeable(ResolvedTensor tensor) {
    const TensorEntry& reference = EntryOf(tensor.sources[0]);
    if (IsQuantizedFloat(tensor.dtype) && tensor.sources.size() > 1) {
      state_.Unsupported(
          Format("{}: tensor '{}' is stored as {}, codes that mean nothing without their scales; dequantise "
                 "the model first",
                 state_.NameOf(tensor.sources[0].model), tensor.name, DTypeName(tensor.dtype)));
      return;
    }
    for (size_t s = tensor.sources.size(); s-- > 1;) {
      const TensorEntry& entry = EntryOf(tensor.sources[s]);
      if (entry.dtype == reference.dtype) continue;
      state_.merge.warnings.push_back(Format("{}: tensor '{}' is stored as {}, the base's {} is copied",
                                             state_.NameOf(tensor.sources[s].model), tensor.name,
                                             DTypeName(entry.dtype), DTypeName(reference.dtype)));
      tensor.sources.erase(tensor.sources.begin() + static_cast<std::ptrdiff_t>(s));
    }
    tensor.merged = false;
    tensor.rule = Format("{} is never averaged", DTypeName(tensor.dtype));
    tensor.inputs.clear();
    state_.merge.tensors.push_back(std::move(tensor));
  }

  // Looks up every parameter of the tensor and asks the method what statistics it needs with them.
  bool Parameterise(const Scope& scope, const std::vector<std::string>& names, double t, const Parts& parts,
                    ResolvedTensor& tensor) {
    TensorParams params;
    for (const ParamSpec& spec : state_.method->params) {
      if (spec.per_model) continue;
      if (!SetParam(spec, Levels(scope, nullptr, tensor.name), t, tensor.name, "", params.global))
        return false;
    }
    const bool deltas = tensor.facts.domain == Domain::kDeltas;
    for (const size_t i : parts.positions) {
      if (deltas && i == parts.reference) continue;
      auto& values = params.inputs.emplace_back();
      for (const ParamSpec& spec : state_.method->params) {
        if (!spec.per_model) continue;
        if (!SetParam(spec, Levels(scope, scope.inputs[i].spec, names[i]), t, tensor.name,
                      state_.NameOf(scope.inputs[i].model), values))
          return false;
      }
      // Among all experts of the scope, so that one that lacks the tensor changes nothing for the others.
      const std::string position = std::to_string(i - (deltas && i > parts.reference ? 1 : 0));
      tensor.facts.random_streams.push_back(Hash64(tensor.name, Hash64(position, state_.options.seed)));
    }
    if (!AskForStatistics(params, tensor)) return false;
    DecideCopy(params, tensor);
    tensor.params = NumberOf(std::move(params));
    return true;
  }

  bool AskForStatistics(const TensorParams& params, ResolvedTensor& tensor) {
    if (state_.method->request == nullptr) return true;
    auto request = state_.method->request(tensor.facts, params);
    if (!request) {
      const std::string& why = request.error().message;
      if (complained_.insert(why).second)
        state_.faults.push_back(Format("{}: {} (at tensor '{}')", state_.recipe.where, why, tensor.name));
      return false;
    }
    tensor.request = std::move(*request);
    return true;
  }

  // Bytes are copied where nothing but the base is there, or where the method says so, and the type stays.
  void DecideCopy(const TensorParams& params, ResolvedTensor& tensor) {
    const bool same_type = tensor.dtype == EntryOf(tensor.sources[0]).dtype;
    const bool lone = tensor.inputs.empty();
    const bool passes = state_.method->is_copy != nullptr && state_.method->is_copy(params);
    if (!same_type || !(lone || passes)) return;
    tensor.merged = false;
    tensor.rule = lone ? "no model but the base" : "passed through";
    tensor.request = {};
  }

  size_t NumberOf(TensorParams params) {
    const auto [at, inserted] = param_numbers_.try_emplace(params, state_.merge.params.size());
    if (inserted) state_.merge.params.push_back(std::move(params));
    return at->second;
  }

  std::vector<SettingLevel> Levels(const Scope& scope, const InputSpec* input,
                                   const std::string& tensor) const {
    return {{input == nullptr ? nullptr : &input->parameters, tensor},
            {scope.slice == nullptr ? nullptr : &scope.slice->parameters, tensor},
            {scope.module_parameters, tensor},
            {&state_.recipe.parameters, tensor}};
  }

  bool SetParam(const ParamSpec& spec, const std::vector<SettingLevel>& levels, double t,
                const std::string& tensor, const std::string& model, std::map<std::string, double>& values) {
    const auto value = LookUp(spec, levels, t);
    if (!value) {
      const std::string& why = value.error().message;  // starts with line and column
      if (complained_.insert(why).second)
        state_.faults.push_back(Format("{}:{} (at tensor '{}')", state_.recipe.where, why, tensor));
      return false;
    }
    if (value->has_value()) {
      values[spec.name] = **value;
    } else if (spec.required) {
      const std::string of = model.empty() ? "" : Format(" of model '{}'", model);
      if (complained_.insert(spec.name + "\n" + model).second) {
        state_.faults.push_back(
            Format("{}: the method '{}' needs the parameter '{}'{}, and nothing sets it for tensor '{}'",
                   state_.recipe.where, state_.method->name, spec.name, of, tensor));
      }
      return false;
    }
    return true;
  }

  // Modules that the recipe does not list are the donor's, unchanged.
  void CopyUnlistedModules() {
    if (state_.recipe.modules.empty()) return;
    std::set<std::string> made;
    for (const ResolvedTensor& tensor : state_.merge.tensors)
      made.insert(tensor.name);
    for (const auto& [name, place] : state_.CheckpointOf(state_.merge.donor).tensors()) {
      const bool listed =
          std::any_of(state_.scopes.begin(), state_.scopes.end(),
                      [&, &name = name](const Scope& scope) { return scope.module_names.Holds(name); });
      if (listed || made.count(name) > 0) continue;
      CopyFromDonor(name, place);
    }
  }

  void CopyFromDonor(const std::string& name, const TensorPlace& place) {
    const TensorEntry& entry = state_.CheckpointOf(state_.merge.donor).entry(place);
    ResolvedTensor tensor{.name = name,
                          .dtype = entry.dtype,
                          .shape = entry.shape,
                          .elements = entry.elements,
                          .merged = false,
                          .rule = "its module is not in the recipe",
                          .sources = {{state_.merge.donor, place}}};
    if (rows_.IsIndexedByTokens(name, tensor.sources[0]) && SetRows(tensor)) rows_.Lay(tensor, false);
    if (tensor.sources[0].rows != nullptr) {
      state_.faults.push_back(Format(
          "{}: tensor '{}' gets other rows by the tokenizer, but its module is not in the recipe; list it",
          state_.recipe.where, name));
    }
    state_.merge.tensors.push_back(std::move(tensor));
  }

  ResolveState& state_;
  RowResolver rows_;
  std::map<TensorParams, size_t> param_numbers_;
  std::set<std::string> complained_;  // parameters that have been reported once
  std::set<size_t> noted_ties_;       // models whose tied head has been noted
};

}  // namespace

void ResolveTensors(ResolveState& state) {
  TensorResolver(state).Run();
}

}  // namespace mergepipe
