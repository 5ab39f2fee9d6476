#include "recipe/resolve.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "recipe/layers.h"
#include "recipe/model_shelf.h"
#include "recipe/parameter_check.h"
#include "recipe/scope.h"
#include "recipe/settings.h"

namespace mergepipe {
namespace {

std::string FolderOf(const std::string& recipe_path) {
  const std::string folder = std::filesystem::path(recipe_path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Turns a Recipe and opened headers into output tensors, collecting every fault on the way.
class Resolver {
 public:
  Resolver(const Recipe& recipe, const ResolveOptions& options, Ledger& ledger)
      : recipe_(recipe), options_(options), shelf_(FolderOf(recipe.where), options.paths, ledger) {}

  Result<ResolvedMerge> Run() {
    MP_TRY(ReadMethodAndTypes());
    OpenModels();
    if (!shelf_.faults().empty() || !faults_.empty()) return Verdict();
    BuildScopes();
    if (!faults_.empty()) return Verdict();
    for (Scope& scope : scopes_)
      CheckInputs(scope);
    ParameterCheck check(*method_, recipe_);
    check.CheckNames();
    Take(check);
    if (!faults_.empty()) return Verdict();
    for (Scope& scope : scopes_)
      ResolveScope(scope);
    CopyUnlistedModules();
    check.CheckFilters(scopes_);
    Take(check);
    if (!faults_.empty()) return Verdict();
    return Finish();
  }

 private:
  Result<void> ReadMethodAndTypes() {
    method_ = FindMethod(recipe_.merge_method);
    merge_.method = method_;
    merge_.seed = options_.seed;
    if (method_ == nullptr) {
      return Fail(Code::kUsage, Format("{}: there is no merge_method '{}'{}; known: {}", recipe_.where,
                                       recipe_.merge_method, DidYouMean(recipe_.merge_method, MethodNames()),
                                       Join(MethodNames(), ", ")));
    }
    for (const auto& [key, name] :
         {std::pair("dtype", &recipe_.dtype), std::pair("out_dtype", &recipe_.out_dtype)}) {
      if (!name->has_value() || (*name)->empty()) continue;
      const auto dtype = DTypeFromTorchName(**name);
      if (!dtype || !IsMergeable(*dtype)) {
        return Fail(Code::kUsage, Format("{}: {} '{}' is none of float32, float16, bfloat16, float64",
                                         recipe_.where, key, **name));
      }
      merge_.out_dtype = dtype;  // out_dtype comes last and wins
    }
    return {};
  }

  // --- models
  // -----------------------------------------------------------------------------------------------

  void OpenModels() {
    if (recipe_.base_model) base_ = Open(*recipe_.base_model);
    for (const InputSpec& input : recipe_.models)
      Open(input.model);
    for (const SliceSpec& slice : recipe_.slices)
      OpenSlice(slice);
    for (const auto& [name, module] : recipe_.modules) {
      for (const InputSpec& input : module.models)
        Open(input.model);
      for (const SliceSpec& slice : module.slices)
        OpenSlice(slice);
    }
    if (method_->needs_base && !recipe_.base_model && recipe_.slices.empty() && recipe_.modules.empty()) {
      faults_.push_back(Format("{}: the method '{}' needs a 'base_model'", recipe_.where, method_->name));
    }
    for (const ResolvedModel& model : shelf_.models())
      RefuseQuantized(model);
  }

  void OpenSlice(const SliceSpec& slice) {
    if (slice.base_model) Open(*slice.base_model);
    for (const InputSpec& input : slice.sources)
      Open(input.model);
  }

  std::optional<size_t> Open(const ModelRef& ref) {
    return shelf_.Open(ref, Format("{}:{}:{}", recipe_.where, ref.at.line, ref.at.column));
  }

  void RefuseQuantized(const ResolvedModel& model) {
    const auto config = model.checkpoint->Config();
    if (!config) {
      faults_.push_back(config.error().message);
    } else if (config->is_object() && config->contains("quantization_config") &&
               method_->name != "passthrough") {
      Unsupported(
          Format("{}: its config.json has a quantization_config; blending quantised codes means nothing, "
                 "dequantise the model first",
                 model.name));
    }
  }

  // --- scopes
  // -----------------------------------------------------------------------------------------------

  void BuildScopes() {
    if (!recipe_.modules.empty()) return BuildModuleScopes();
    merge_.donor = base_.value_or(FirstModel());
    if (!recipe_.models.empty()) {
      AddWholeScope(recipe_.models, nullptr, NameSet{});
    } else {
      BuildSliceScopes(recipe_.slices, nullptr, SoleLayerPrefix(merge_.donor), true);
    }
  }

  size_t FirstModel() {
    const ModelRef& ref = !recipe_.models.empty()   ? recipe_.models[0].model
                          : !recipe_.slices.empty() ? recipe_.slices[0].sources.at(0).model
                          : !recipe_.modules[0].second.models.empty()
                              ? recipe_.modules[0].second.models[0].model
                              : recipe_.modules[0].second.slices.at(0).sources.at(0).model;
    return *Open(ref);
  }

  const Checkpoint& CheckpointOf(size_t model) { return *shelf_.models()[model].checkpoint; }
  const std::string& NameOf(size_t model) { return shelf_.models()[model].name; }

  std::string SoleLayerPrefix(size_t model) {
    const auto counts = CountLayers(CheckpointOf(model));
    if (counts.size() == 1) return counts.begin()->first;
    std::vector<std::string> prefixes;
    for (const auto& [prefix, count] : counts)
      prefixes.push_back(Format("{} ({})", prefix, count));
    faults_.push_back(
        Format("{}: 'slices' needs a model with one stack of layers, but {} has {}: {}; use 'modules'",
               recipe_.where, NameOf(model), counts.size(), Join(prefixes, ", ")));
    return "";
  }

  void BuildModuleScopes() {
    merge_.donor = base_.value_or(FirstModel());
    const auto prefixes = CountLayers(CheckpointOf(merge_.donor));
    std::set<std::string> taken;
    for (const auto& [name, module] : recipe_.modules) {
      const auto prefix = ModulePrefix(name, prefixes);
      if (prefix && !prefix->empty()) taken.insert(*prefix);
    }
    for (const auto& [name, module] : recipe_.modules) {
      const auto prefix = ModulePrefix(name, prefixes);
      if (!prefix) {
        std::vector<std::string> known = {"default"};
        for (const auto& [key, count] : prefixes)
          known.push_back(key);
        faults_.push_back(Format("{}:{}:{}: there is no module '{}'; the layers' prefixes are: {}",
                                 recipe_.where, module.at.line, module.at.column, name, Join(known, ", ")));
        continue;
      }
      NameSet names;
      names.prefix = *prefix;
      if (prefix->empty()) names.other_prefixes = taken;
      const size_t first_scope = scopes_.size();
      if (!module.models.empty()) {
        AddWholeScope(module.models, &module.parameters, names);
      } else {
        const bool outside = prefixes.size() == 1 || prefix->empty();
        BuildSliceScopes(module.slices, &module.parameters,
                         prefix->empty() ? SoleLayerPrefix(merge_.donor) : *prefix, outside);
      }
      for (size_t s = first_scope; s < scopes_.size(); ++s)
        scopes_[s].module_names = names;
    }
  }

  // "default" is what no other module takes (""); else the layer prefix with this name, or the only one that
  // has it as a part.
  static std::optional<std::string> ModulePrefix(const std::string& name,
                                                 const std::map<std::string, int64_t>& prefixes) {
    if (name == "default") return "";
    if (prefixes.count(name) > 0) return name;
    std::vector<std::string> found;
    for (const auto& [prefix, count] : prefixes) {
      if (("." + prefix + ".").find("." + name + ".") != std::string::npos) found.push_back(prefix);
    }
    if (found.size() == 1) return found[0];
    return std::nullopt;
  }

  void AddWholeScope(const std::vector<InputSpec>& inputs, const Parameters* module_parameters,
                     NameSet names) {
    Scope scope;
    scope.module_parameters = module_parameters;
    scope.module_names = std::move(names);
    scope.base = base_;
    for (const InputSpec& input : inputs)
      scope.inputs.push_back({*Open(input.model), 0, 0, &input});
    AppendBase(scope);
    scopes_.push_back(std::move(scope));
  }

  // A base that is not listed joins as the last input, without parameters.
  void AppendBase(Scope& scope) {
    const auto is_base = [&](const ScopeInput& input) { return input.model == scope.base; };
    if (!scope.base || std::any_of(scope.inputs.begin(), scope.inputs.end(), is_base)) return;
    scope.inputs.push_back({*scope.base, 0, 0, nullptr});
    if (!method_->base_is_special) {
      merge_.warnings.push_back(
          Format("{}: the method '{}' knows no base; the base_model '{}' takes part like any other model",
                 recipe_.where, method_->name, NameOf(*scope.base)));
    }
  }

  void BuildSliceScopes(const std::vector<SliceSpec>& slices, const Parameters* module_parameters,
                        const std::string& prefix, bool with_outside) {
    if (prefix.empty()) return;
    int64_t next_layer = 0;
    merge_.donor_layers = CountLayers(CheckpointOf(merge_.donor))[prefix];
    for (size_t s = 0; s < slices.size(); ++s) {
      Scope scope;
      scope.slice = &slices[s];
      scope.module_parameters = module_parameters;
      scope.layer_prefix = prefix;
      scope.first_output_layer = next_layer;
      scope.takes_before = with_outside && s == 0;
      scope.takes_behind = with_outside && s + 1 == slices.size();
      scope.base = slices[s].base_model ? Open(*slices[s].base_model) : base_;
      for (const InputSpec& input : slices[s].sources)
        AddSliceInput(scope, input);
      if (scope.inputs.empty()) {
        faults_.push_back(Format("{}:{}:{}: a slice has no sources", recipe_.where, slices[s].at.line,
                                 slices[s].at.column));
        continue;
      }
      const int64_t length = scope.inputs[0].end_layer - scope.inputs[0].first_layer;
      for (int64_t k = 0; k < length; ++k)
        merge_.layer_sources.push_back(scope.inputs[0].first_layer + k);
      next_layer += length;
      scopes_.push_back(std::move(scope));
    }
    merge_.keeps_layout = false;
  }

  void AddSliceInput(Scope& scope, const InputSpec& input) {
    const size_t model = *Open(input.model);
    const auto [first, end] = *input.layer_range;
    const int64_t layers = CountLayers(CheckpointOf(model))[scope.layer_prefix];
    const std::string where = Format("{}:{}:{}", recipe_.where, input.at.line, input.at.column);
    if (end > layers) {
      faults_.push_back(
          Format("{}: layer_range [{}, {}) reaches beyond '{}', which has the layers [0, {}) under '{}'",
                 where, first, end, NameOf(model), layers, scope.layer_prefix));
    }
    if (!scope.inputs.empty() && end - first != scope.inputs[0].end_layer - scope.inputs[0].first_layer) {
      faults_.push_back(Format("{}: layer_range [{}, {}) has {} layers but the slice's first source has {}",
                               where, first, end, end - first,
                               scope.inputs[0].end_layer - scope.inputs[0].first_layer));
    }
    scope.inputs.push_back({model, first, end, &input});
  }

  // Number of inputs, presence of the base, and no model twice.
  void CheckInputs(const Scope& scope) {
    const std::string where = scope.slice == nullptr ? recipe_.where
                                                     : Format("{}:{}:{}", recipe_.where, scope.slice->at.line,
                                                              scope.slice->at.column);
    std::set<size_t> seen;
    for (const ScopeInput& input : scope.inputs) {
      if (!seen.insert(input.model).second)
        faults_.push_back(
            Format("{}: the model '{}' stands twice among the inputs", where, NameOf(input.model)));
    }
    const bool has_base = scope.base && seen.count(*scope.base) > 0;
    if (method_->needs_base && !has_base) {
      faults_.push_back(
          scope.base ? Format("{}: the method '{}' needs the base_model '{}' among the slice's sources",
                              where, method_->name, NameOf(*scope.base))
                     : Format("{}: the method '{}' needs a 'base_model'", where, method_->name));
    }
    const size_t count = scope.inputs.size();
    if (count < method_->min_inputs || count > method_->max_inputs) {
      const std::string wanted = method_->min_inputs == method_->max_inputs
                                     ? Format("exactly {}", method_->min_inputs)
                                     : Format("at least {}", method_->min_inputs);
      faults_.push_back(Format("{}: the method '{}' takes {} models{}, but {} are given", where,
                               method_->name, wanted, method_->needs_base ? ", the base included" : "",
                               count));
    }
  }

  // --- tensors
  // ----------------------------------------------------------------------------------------------

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
      const auto& tensors = CheckpointOf(input.model).tensors();
      for (auto it = tensors.lower_bound(start); it != tensors.end() && StartsWith(it->first, start); ++it)
        suffixes.insert(it->first.substr(start.size()));
    }
    return suffixes;
  }

  void ResolveOutsideLayers(Scope& scope) {
    std::set<std::string> outside;
    for (const ScopeInput& input : scope.inputs) {
      for (const auto& [name, place] : CheckpointOf(input.model).tensors()) {
        const bool before = StandsBeforeLayers(name);
        if (!SplitLayerName(name) && (before ? scope.takes_before : scope.takes_behind)) outside.insert(name);
      }
    }
    for (const std::string& name : outside)
      AddTensor(scope, name, std::vector<std::string>(scope.inputs.size(), name), 0);
  }

  void ResolveWhole(Scope& scope) {
    const auto layers = CountLayers(CheckpointOf(ReferenceOf(scope)));
    std::set<std::string> all;
    for (const ScopeInput& input : scope.inputs) {
      for (const auto& [name, place] : CheckpointOf(input.model).tensors()) {
        if (scope.module_names.Holds(name)) all.insert(name);
      }
    }
    for (const std::string& name : all) {
      const auto split = SplitLayerName(name);
      const auto count = split ? layers.find(split->prefix) : layers.end();
      double t = 0;
      if (count != layers.end())
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
  static size_t ReferenceOf(const Scope& scope) { return scope.inputs[ReferencePosition(scope)].model; }

  // Decides one output tensor from the tensors `names` of the scope's inputs.
  void AddTensor(Scope& scope, const std::string& output, const std::vector<std::string>& names, double t) {
    scope.names.insert(output);
    scope.names.insert(names.begin(), names.end());
    const size_t reference = ReferencePosition(scope);
    ResolvedTensor tensor;
    tensor.name = output;
    const auto reference_source = FindSource(scope.inputs[reference].model, names[reference]);
    if (!reference_source) return ReferenceLacks(scope, reference, output, names);
    const TensorEntry& entry = EntryOf(*reference_source);
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.elements = entry.elements;
    tensor.sources.push_back(*reference_source);
    for (size_t i = 0; i < scope.inputs.size(); ++i) {
      if (i == reference) {
        if (method_->domain == Domain::kDeltas) continue;
        tensor.facts.base_input = tensor.inputs.size();
        tensor.inputs.push_back(0);
      } else if (!AddInput(scope, i, names[i], entry, tensor)) {
        return;
      }
    }
    if (!IsMergeable(entry.dtype)) return AddUnmergeable(std::move(tensor));
    tensor.facts.elements = tensor.elements;
    tensor.facts.shape = tensor.shape;
    if (merge_.out_dtype) tensor.dtype = *merge_.out_dtype;
    if (!Parameterise(scope, names, t, tensor)) return;
    DecideCopy(tensor, entry);
    merge_.tensors.push_back(std::move(tensor));
  }

  const TensorEntry& EntryOf(const TensorSource& source) {
    return CheckpointOf(source.model).entry(source.place);
  }

  // A model whose head is tied has no head stored; where another model stores one, the embedding stands in
  // for it.
  std::optional<TensorSource> FindSource(size_t model, const std::string& name) {
    const auto& tensors = CheckpointOf(model).tensors();
    const auto found = tensors.find(name);
    if (found != tensors.end()) return TensorSource{model, found->second, name};
    if (name != "lm_head.weight" || !TiesEmbeddings(model)) return std::nullopt;
    for (const char* embedding : {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
                                  "transformer.wte.weight"}) {
      const auto stand_in = tensors.find(embedding);
      if (stand_in == tensors.end()) continue;
      if (noted_ties_.insert(model).second) {
        merge_.warnings.push_back(
            Format("{}: stores no lm_head.weight (tied); its {} stands in for it", NameOf(model), embedding));
      }
      return TensorSource{model, stand_in->second, embedding};
    }
    return std::nullopt;
  }

  bool TiesEmbeddings(size_t model) {
    const auto config = CheckpointOf(model).Config();
    if (!config || !config->is_object()) return false;
    const auto flag = [](const OrderedJson& object) { return object.value("tie_word_embeddings", false); };
    return flag(*config) || (config->contains("text_config") && (*config)["text_config"].is_object() &&
                             flag((*config)["text_config"]));
  }

  // A tensor that the reference does not have: an error, or left out under --missing base.
  void ReferenceLacks(const Scope& scope, size_t reference, const std::string& output,
                      const std::vector<std::string>& names) {
    std::vector<std::string> holders;
    for (size_t i = 0; i < scope.inputs.size(); ++i) {
      const size_t model = scope.inputs[i].model;
      if (CheckpointOf(model).Find(names[i]) == nullptr) continue;
      const bool redundant_head = names[i] == "lm_head.weight" && TiesEmbeddings(model);
      if (options_.missing_is_base || redundant_head) {
        merge_.dropped.push_back(
            {model, names[i],
             redundant_head ? "stored although its config ties it" : "not in the base (--missing base)"});
      } else {
        holders.push_back(NameOf(model));
      }
    }
    if (holders.empty()) return;
    incomplete_ = true;
    faults_.push_back(Format("tensor '{}' is in {} but not in {}", output, Join(holders, ", "),
                             NameOf(scope.inputs[reference].model)));
  }

  bool AddInput(const Scope& scope, size_t i, const std::string& name, const TensorEntry& reference,
                ResolvedTensor& tensor) {
    const size_t model = scope.inputs[i].model;
    const auto source = FindSource(model, name);
    if (!source) {
      if (options_.missing_is_base || !IsMergeable(reference.dtype)) {
        tensor.inputs.push_back(0);
        return true;
      }
      incomplete_ = true;
      faults_.push_back(
          Format("tensor '{}' is in {} but not in {}", name, NameOf(tensor.sources[0].model), NameOf(model)));
      return false;
    }
    const TensorEntry& entry = EntryOf(*source);
    if (entry.shape != reference.shape) {
      faults_.push_back(Format(
          "{}: tensor '{}' has shape {} but {} has {}; merge checkpoints of one architecture", NameOf(model),
          name, ShapeText(entry.shape), NameOf(tensor.sources[0].model), ShapeText(reference.shape)));
      return false;
    }
    if (IsMergeable(entry.dtype) != IsMergeable(reference.dtype)) {
      faults_.push_back(Format("{}: tensor '{}' is stored as {} but in {} as {}", NameOf(model), name,
                               DTypeName(entry.dtype), NameOf(tensor.sources[0].model),
                               DTypeName(reference.dtype)));
      return false;
    }
    tensor.inputs.push_back(tensor.sources.size());
    tensor.sources.push_back(*source);
    return true;
  }

  // Integers and booleans are copied from the reference; codes that need scales are refused.
  void AddUnmergeable(ResolvedTensor tensor) {
    if (IsQuantizedFloat(tensor.dtype) && tensor.sources.size() > 1) {
      Unsupported(
          Format("{}: tensor '{}' is stored as {}, codes that mean nothing without their scales; dequantise "
                 "the model first",
                 NameOf(tensor.sources[0].model), tensor.name, DTypeName(tensor.dtype)));
      return;
    }
    tensor.merged = false;
    tensor.rule = Format("{} is never averaged", DTypeName(tensor.dtype));
    tensor.sources.resize(1);
    tensor.inputs.clear();
    merge_.tensors.push_back(std::move(tensor));
  }

  bool Parameterise(const Scope& scope, const std::vector<std::string>& names, double t,
                    ResolvedTensor& tensor) {
    for (const ParamSpec& spec : method_->params) {
      if (spec.per_model) continue;
      if (!SetParam(spec, Levels(scope, nullptr, tensor.name), t, tensor.name, "", tensor.params.global))
        return false;
    }
    size_t position = 0;
    for (size_t i = 0; i < scope.inputs.size(); ++i) {
      const bool is_base = method_->domain == Domain::kDeltas && i == ReferencePosition(scope);
      if (is_base) continue;
      auto& values = tensor.params.inputs.emplace_back();
      for (const ParamSpec& spec : method_->params) {
        if (!spec.per_model) continue;
        if (!SetParam(spec, Levels(scope, scope.inputs[i].spec, names[i]), t, tensor.name,
                      NameOf(scope.inputs[i].model), values))
          return false;
      }
      tensor.facts.random_streams.push_back(
          Hash64(tensor.name, Hash64(std::to_string(position++), options_.seed)));
    }
    if (method_->request == nullptr) return true;
    auto request = method_->request(tensor.facts, tensor.params);
    if (!request) {
      faults_.push_back(Format("{}: tensor '{}': {}", recipe_.where, tensor.name, request.error().message));
      return false;
    }
    tensor.request = std::move(*request);
    return true;
  }

  std::vector<SettingLevel> Levels(const Scope& scope, const InputSpec* input,
                                   const std::string& tensor) const {
    return {{input == nullptr ? nullptr : &input->parameters, tensor},
            {scope.slice == nullptr ? nullptr : &scope.slice->parameters, tensor},
            {scope.module_parameters, tensor},
            {&recipe_.parameters, tensor}};
  }

  bool SetParam(const ParamSpec& spec, const std::vector<SettingLevel>& levels, double t,
                const std::string& tensor, const std::string& model, std::map<std::string, double>& values) {
    const auto value = LookUp(spec, levels, t);
    const std::string of = model.empty() ? "" : Format(" of model '{}'", model);
    if (!value) {
      if (complained_.insert(value.error().message).second)
        faults_.push_back(
            Format("{}: {}{} (at tensor '{}')", recipe_.where, value.error().message, of, tensor));
      return false;
    }
    if (value->has_value()) {
      values[spec.name] = **value;
    } else if (spec.required) {
      if (complained_.insert(spec.name + "\n" + model).second) {
        faults_.push_back(
            Format("{}: the method '{}' needs the parameter '{}'{}, and nothing sets it for tensor '{}'",
                   recipe_.where, method_->name, spec.name, of, tensor));
      }
      return false;
    }
    return true;
  }

  void DecideCopy(ResolvedTensor& tensor, const TensorEntry& reference) {
    const bool same_type = tensor.dtype == reference.dtype;
    const bool lone = tensor.inputs.empty();
    const bool passes = method_->is_copy != nullptr && method_->is_copy(tensor.params);
    if (!same_type || !(lone || passes)) return;
    tensor.merged = false;
    tensor.rule = lone ? "no model but the base" : "passed through";
    tensor.request = {};
  }

  // Modules that the recipe does not list are the donor's, unchanged.
  void CopyUnlistedModules() {
    if (recipe_.modules.empty()) return;
    std::set<std::string> made;
    for (const ResolvedTensor& tensor : merge_.tensors)
      made.insert(tensor.name);
    for (const auto& [name, place] : CheckpointOf(merge_.donor).tensors()) {
      const bool listed = std::any_of(scopes_.begin(), scopes_.end(),
                                      [&](const Scope& scope) { return scope.module_names.Holds(name); });
      if (listed || made.count(name) > 0) continue;
      const TensorEntry& entry = CheckpointOf(merge_.donor).entry(place);
      merge_.tensors.push_back({.name = name,
                                .dtype = entry.dtype,
                                .shape = entry.shape,
                                .elements = entry.elements,
                                .merged = false,
                                .rule = "its module is not in the recipe",
                                .sources = {{merge_.donor, place, name}}});
    }
  }

  // --- the end
  // ----------------------------------------------------------------------------------------------

  Result<ResolvedMerge> Finish() {
    std::sort(merge_.tensors.begin(), merge_.tensors.end(),
              [](const ResolvedTensor& a, const ResolvedTensor& b) { return a.name < b.name; });
    for (size_t i = 1; i < merge_.tensors.size(); ++i) {
      if (merge_.tensors[i].name == merge_.tensors[i - 1].name) {
        return Fail(Code::kInternal, Format("{}: two rules make the output tensor '{}'", recipe_.where,
                                            merge_.tensors[i].name));
      }
    }
    if (merge_.tensors.empty())
      return Fail(Code::kUsage, Format("{}: the merge has no output tensor", recipe_.where));
    const auto& donor = CheckpointOf(merge_.donor).tensors();
    const auto in_donor = [&](const ResolvedTensor& tensor) { return donor.count(tensor.name) > 0; };
    merge_.keeps_layout = merge_.keeps_layout && merge_.tensors.size() == donor.size() &&
                          std::all_of(merge_.tensors.begin(), merge_.tensors.end(), in_donor);
    for (const ResolvedModel& model : shelf_.models()) {
      for (const std::string& note : model.checkpoint->notes())
        merge_.warnings.push_back(note);
    }
    merge_.models = std::move(shelf_.models());
    return std::move(merge_);
  }

  void Take(ParameterCheck& check) {
    for (std::string& fault : check.TakeFaults())
      faults_.push_back(std::move(fault));
    for (std::string& warning : check.TakeWarnings())
      merge_.warnings.push_back(std::move(warning));
  }

  void Unsupported(std::string text) {
    unsupported_ = true;
    faults_.push_back(std::move(text));
  }

  Failure Verdict() {
    std::vector<std::string> all = shelf_.faults();
    all.insert(all.end(), faults_.begin(), faults_.end());
    const Code code = !shelf_.faults().empty() ? shelf_.code()
                      : unsupported_           ? Code::kUnsupported
                                               : Code::kInvalidInput;
    const std::string advice =
        incomplete_ ? " (--missing base takes the base's tensor where a model lacks it)" : "";
    if (all.size() == 1) return Fail(code, all[0] + advice);
    return Fail(Error{code, Format("{}: {} faults{}", recipe_.where, all.size(), advice), all});
  }

  const Recipe& recipe_;
  const ResolveOptions& options_;
  ModelShelf shelf_;
  const Method* method_ = nullptr;
  std::optional<size_t> base_;
  std::vector<Scope> scopes_;
  ResolvedMerge merge_;
  std::vector<std::string> faults_;
  std::set<std::string> complained_;
  std::set<size_t> noted_ties_;
  bool unsupported_ = false;
  bool incomplete_ = false;
};

}  // namespace

Result<ResolvedMerge> ResolveRecipe(const Recipe& recipe, const ResolveOptions& options, Ledger& ledger) {
  return Resolver(recipe, options, ledger).Run();
}

}  // namespace mergepipe
