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
      AddWholeScope(state_.recipe.models, nullptr, ModuleNames());
    } else {
      BuildSliceScopes(state_.recipe.slices, nullptr,
                       SoleStack(ModuleNames(), state_.NameOf(state_.merge.donor)));
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

  // The one stack of layers that slices of a module cut.
  std::string SoleStack(const ModuleNames& names, const std::string& whose) {
    const auto stacks = StacksOf(names, state_.CheckpointOf(state_.merge.donor));
    if (stacks.size() == 1) return stacks.begin()->first;
    std::vector<std::string> prefixes;
    for (const auto& [prefix, count] : stacks)
      prefixes.push_back(Format("{} ({})", prefix, count));
    state_.faults.push_back(
        Format("{}: 'slices' needs a model with one stack of layers, but {} has {}: {}; use 'modules'",
               state_.recipe.where, whose, stacks.size(), Join(prefixes, ", ")));
    return "";
  }

  void BuildModuleScopes() {
    state_.merge.donor = state_.base.value_or(FirstModel());
    const Checkpoint& donor = state_.CheckpointOf(state_.merge.donor);
    std::map<std::string, ModuleNames> found;
    for (const auto& [name, module] : state_.recipe.modules) {
      const auto names = FindModule(name, donor);
      if (names) {
        found[name] = *names;
      } else if (name != "default") {
        TellUnknownModule(name, module);
      }
    }
    if (!state_.faults.empty()) return;
    std::vector<ModuleNames> others;
    for (const auto& [name, names] : found)
      others.push_back(names);
    for (const auto& [name, module] : state_.recipe.modules) {
      const auto names = found.find(name);
      AddModule(name, module, names == found.end() ? ModuleNames::AllBut(others) : names->second);
    }
  }

  void TellUnknownModule(const std::string& name, const ModuleSpec& module) {
    std::vector<std::string> known = {"default"};
    for (const auto& [prefix, count] : CountLayers(state_.CheckpointOf(state_.merge.donor)))
      known.push_back(prefix);
    state_.faults.push_back(
        Format("{}: there is no module '{}' in '{}' that is one part of it; its stacks of layers are: {}",
               state_.At(module.at), name, state_.NameOf(state_.merge.donor), Join(known, ", ")));
  }

  void AddModule(const std::string& name, const ModuleSpec& module, const ModuleNames& names) {
    const size_t first_scope = state_.scopes.size();
    if (!module.models.empty()) {
      AddWholeScope(module.models, &module.parameters, names);
    } else {
      BuildSliceScopes(module.slices, &module.parameters, SoleStack(names, Format("module '{}'", name)));
    }
    for (size_t s = first_scope; s < state_.scopes.size(); ++s)
      state_.scopes[s].module_names = names;
  }

  void AddWholeScope(const std::vector<InputSpec>& inputs, const Parameters* module_parameters,
                     ModuleNames names) {
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
                        const std::string& prefix) {
    if (prefix.empty()) return;
    int64_t next_layer = 0;
    SlicedStack stack{.prefix = prefix,
                      .donor_layers = CountLayers(state_.CheckpointOf(state_.merge.donor))[prefix],
                      .sources = {}};
    for (size_t s = 0; s < slices.size(); ++s) {
      Scope scope;
      scope.slice = &slices[s];
      scope.module_parameters = module_parameters;
      scope.layer_prefix = prefix;
      scope.first_output_layer = next_layer;
      scope.takes_before = s == 0;
      scope.takes_behind = s + 1 == slices.size();
      scope.base = slices[s].base_model ? state_.Open(*slices[s].base_model) : state_.base;
      for (const InputSpec& input : slices[s].sources)
        AddSliceInput(scope, input);
      const int64_t length = scope.inputs[0].end_layer - scope.inputs[0].first_layer;
      for (int64_t k = 0; k < length; ++k)
        stack.sources.push_back(scope.inputs[0].first_layer + k);
      next_layer += length;
      scope.layers = length;
      state_.scopes.push_back(std::move(scope));
    }
    state_.merge.sliced.push_back(std::move(stack));
    CheckLastSlice(slices);
  }

  // What stands behind the layers is made by the last slice. mergekit drops its sources beyond the number
  // that the first slice has, which nobody can have meant.
  void CheckLastSlice(const std::vector<SliceSpec>& slices) {
    const size_t first = slices.front().sources.size();
    const size_t last = slices.back().sources.size();
    if (last <= first) return;
    for (const auto& [name, place] : state_.CheckpointOf(state_.scopes.back().inputs[0].model).tensors()) {
      if (SplitLayerName(name) || StandsBeforeLayers(name)) continue;
      state_.faults.push_back(
          Format("{}: tensors behind the layers, such as '{}', would be made of the last slice's {} sources, "
                 "but of only "
                 "{} by mergekit, as many as the first slice has; give the first slice as many (with a "
                 "weight of 0, say)",
                 state_.At(slices.back().at), name, last, first));
      return;
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
