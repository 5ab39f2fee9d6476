#include "recipe/scope_builder.h"

#include <algorithm>
#include <set>

namespace mergepipe {
namespace {

class ScopeBuilder {
 public:
  explicit ScopeBuilder(ResolveState& state) : state_(state) {}

  void Run() {
    BuildScopes();
    if (!state_.faults.empty()) return;
    for (const Scope& scope : state_.scopes)
      CheckInputs(scope);
  }

 private:
  void BuildScopes() {
    if (!state_.recipe.modules.empty()) return BuildModuleScopes();
    state_.merge.donor = state_.base.value_or(FirstModel());
    if (!state_.recipe.models.empty()) {
      AddWholeScope(state_.recipe.models, nullptr, NameSet{});
    } else {
      BuildSliceScopes(state_.recipe.slices, nullptr, SoleLayerPrefix(state_.merge.donor), true);
    }
  }

  size_t FirstModel() {
    const ModelRef& ref = !state_.recipe.models.empty()   ? state_.recipe.models[0].model
                          : !state_.recipe.slices.empty() ? state_.recipe.slices[0].sources.at(0).model
                          : !state_.recipe.modules[0].second.models.empty()
                              ? state_.recipe.modules[0].second.models[0].model
                              : state_.recipe.modules[0].second.slices.at(0).sources.at(0).model;
    return *state_.Open(ref);
  }

  std::string SoleLayerPrefix(size_t model) {
    const auto counts = CountLayers(state_.CheckpointOf(model));
    if (counts.size() == 1) return counts.begin()->first;
    std::vector<std::string> prefixes;
    for (const auto& [prefix, count] : counts)
      prefixes.push_back(Format("{} ({})", prefix, count));
    state_.faults.push_back(
        Format("{}: 'slices' needs a model with one stack of layers, but {} has {}: {}; use 'modules'",
               state_.recipe.where, state_.NameOf(model), counts.size(), Join(prefixes, ", ")));
    return "";
  }

  void BuildModuleScopes() {
    state_.merge.donor = state_.base.value_or(FirstModel());
    const auto prefixes = CountLayers(state_.CheckpointOf(state_.merge.donor));
    std::set<std::string> taken;
    for (const auto& [name, module] : state_.recipe.modules) {
      const auto prefix = ModulePrefix(name, prefixes);
      if (prefix && !prefix->empty()) taken.insert(*prefix);
    }
    for (const auto& [name, module] : state_.recipe.modules) {
      const auto prefix = ModulePrefix(name, prefixes);
      if (!prefix) {
        std::vector<std::string> known = {"default"};
        for (const auto& [key, count] : prefixes)
          known.push_back(key);
        state_.faults.push_back(Format("{}:{}:{}: there is no module '{}'; the layers' prefixes are: {}",
                                       state_.recipe.where, module.at.line, module.at.column, name,
                                       Join(known, ", ")));
        continue;
      }
      NameSet names;
      names.prefix = *prefix;
      if (prefix->empty()) names.other_prefixes = taken;
      const size_t first_scope = state_.scopes.size();
      if (!module.models.empty()) {
        AddWholeScope(module.models, &module.parameters, names);
      } else {
        const bool outside = prefixes.size() == 1 || prefix->empty();
        BuildSliceScopes(module.slices, &module.parameters,
                         prefix->empty() ? SoleLayerPrefix(state_.merge.donor) : *prefix, outside);
      }
      for (size_t s = first_scope; s < state_.scopes.size(); ++s)
        state_.scopes[s].module_names = names;
    }
    const auto sliced = std::count_if(state_.recipe.modules.begin(), state_.recipe.modules.end(),
                                      [](const auto& module) { return !module.second.slices.empty(); });
    if (sliced > 1) {
      state_.merge.layer_sources.clear();
      state_.merge.warnings.push_back(
          Format("{}: {} modules are sliced; set their layer counts in config.json by hand",
                 state_.recipe.where, sliced));
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
    scope.base = state_.base;
    for (const InputSpec& input : inputs)
      scope.inputs.push_back({*state_.Open(input.model), 0, 0, &input});
    AppendBase(scope);
    for (const auto& [prefix, count] : CountLayers(state_.CheckpointOf(scope.inputs[0].model)))
      scope.layers = std::max(scope.layers, count);
    state_.scopes.push_back(std::move(scope));
  }

  // A base that is not listed joins as the last input, without parameters.
  void AppendBase(Scope& scope) {
    const auto is_base = [&](const ScopeInput& input) { return input.model == scope.base; };
    if (!scope.base || std::any_of(scope.inputs.begin(), scope.inputs.end(), is_base)) return;
    scope.inputs.push_back({*scope.base, 0, 0, nullptr});
    if (!state_.method->base_is_special) {
      state_.merge.warnings.push_back(
          Format("{}: the method '{}' knows no base; the base_model '{}' takes part like any other model",
                 state_.recipe.where, state_.method->name, state_.NameOf(*scope.base)));
    }
  }

  void BuildSliceScopes(const std::vector<SliceSpec>& slices, const Parameters* module_parameters,
                        const std::string& prefix, bool with_outside) {
    if (prefix.empty()) return;
    int64_t next_layer = 0;
    state_.merge.donor_layers = CountLayers(state_.CheckpointOf(state_.merge.donor))[prefix];
    for (size_t s = 0; s < slices.size(); ++s) {
      Scope scope;
      scope.slice = &slices[s];
      scope.module_parameters = module_parameters;
      scope.layer_prefix = prefix;
      scope.first_output_layer = next_layer;
      scope.takes_before = with_outside && s == 0;
      scope.takes_behind = with_outside && s + 1 == slices.size();
      scope.base = slices[s].base_model ? state_.Open(*slices[s].base_model) : state_.base;
      for (const InputSpec& input : slices[s].sources)
        AddSliceInput(scope, input);
      const int64_t length = scope.inputs[0].end_layer - scope.inputs[0].first_layer;
      for (int64_t k = 0; k < length; ++k)
        state_.merge.layer_sources.push_back(scope.inputs[0].first_layer + k);
      next_layer += length;
      scope.layers = length;
      state_.scopes.push_back(std::move(scope));
    }
  }

  void AddSliceInput(Scope& scope, const InputSpec& input) {
    const size_t model = *state_.Open(input.model);
    const auto [first, end] = *input.layer_range;
    const int64_t layers = CountLayers(state_.CheckpointOf(model))[scope.layer_prefix];
    const std::string where = state_.At(input.at);
    if (end > layers) {
      state_.faults.push_back(
          Format("{}: layer_range [{}, {}) reaches beyond '{}', which has the layers [0, {}) under '{}'",
                 where, first, end, state_.NameOf(model), layers, scope.layer_prefix));
    }
    if (!scope.inputs.empty() && end - first != scope.inputs[0].end_layer - scope.inputs[0].first_layer) {
      state_.faults.push_back(
          Format("{}: layer_range [{}, {}) has {} layers but the slice's first source has {}", where, first,
                 end, end - first, scope.inputs[0].end_layer - scope.inputs[0].first_layer));
    }
    scope.inputs.push_back({model, first, end, &input});
  }

  // Number of inputs, presence of the base, and no model twice.
  void CheckInputs(const Scope& scope) {
    const std::string where = scope.slice == nullptr ? state_.recipe.where : state_.At(scope.slice->at);
    std::set<size_t> seen;
    for (const ScopeInput& input : scope.inputs) {
      if (!seen.insert(input.model).second)
        state_.faults.push_back(
            Format("{}: the model '{}' stands twice among the inputs", where, state_.NameOf(input.model)));
    }
    const bool has_base = scope.base && seen.count(*scope.base) > 0;
    const bool wants_base = state_.method->needs_base || (state_.method->base_is_optional() && scope.base);
    if (wants_base && !has_base) {
      state_.faults.push_back(
          scope.base ? Format("{}: the method '{}' needs the base_model '{}' among the slice's sources",
                              where, state_.method->name, state_.NameOf(*scope.base))
                     : Format("{}: the method '{}' needs a 'base_model'", where, state_.method->name));
    }
    const size_t count = scope.inputs.size() - (state_.method->base_is_optional() && has_base ? 1 : 0);
    if (count < state_.method->min_inputs || count > state_.method->max_inputs) {
      const std::string wanted = state_.method->min_inputs == state_.method->max_inputs
                                     ? Format("exactly {}", state_.method->min_inputs)
                                     : Format("at least {}", state_.method->min_inputs);
      state_.faults.push_back(Format("{}: the method '{}' takes {} models{}, but {} are given", where,
                                     state_.method->name, wanted, BaseWords(), count));
    }
  }

  const char* BaseWords() const {
    if (state_.method->needs_base) return ", the base included";
    return state_.method->base_is_optional() ? " beside the base" : "";
  }

  ResolveState& state_;
};

}  // namespace

void BuildScopes(ResolveState& state) {
  ScopeBuilder(state).Run();
}

}  // namespace mergepipe
