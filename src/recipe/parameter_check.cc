#include "recipe/parameter_check.h"

#include <algorithm>

#include "base/text.h"

namespace mergepipe {
namespace {

const ParamSpec* FindParam(const Method& method, const std::string& name) {
  for (const ParamSpec& spec : method.params) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

bool AnyMethodHas(const std::string& name) {
  return std::any_of(AllMethods().begin(), AllMethods().end(),
                     [&](const Method* m) { return FindParam(*m, name) != nullptr; });
}

// This method's parameters first, so that they win among equally near ones.
std::vector<std::string> KnownParams(const Method& method) {
  std::vector<std::string> names;
  for (const ParamSpec& spec : method.params)
    names.push_back(spec.name);
  for (const Method* other : AllMethods()) {
    for (const ParamSpec& spec : other->params)
      names.push_back(spec.name);
  }
  return names;
}

std::vector<std::string> Split(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Every run of `length` parts that a tensor's name has, each once, layer numbers left out.
std::vector<std::string> PartsOfNames(const std::set<std::string>& names, size_t length) {
  std::set<std::string> runs;
  for (const std::string& name : names) {
    const std::vector<std::string> parts = Split(name);
    for (size_t first = 0; first + length <= parts.size(); ++first) {
      const std::vector<std::string> run(parts.begin() + static_cast<ptrdiff_t>(first),
                                         parts.begin() + static_cast<ptrdiff_t>(first + length));
      const bool is_number = length == 1 && run[0].find_first_not_of("0123456789") == std::string::npos;
      if (!is_number) runs.insert(Join(run, "."));
    }
  }
  return {runs.begin(), runs.end()};
}

// What a filter that matches nothing may have meant.
std::string NearestParts(const std::string& filter, const std::set<std::string>& names) {
  constexpr size_t kMostNamed = 24;
  std::string meant = DidYouMean(filter, PartsOfNames(names, Split(filter).size()));
  if (!meant.empty()) return meant;
  std::vector<std::string> parts = PartsOfNames(names, 1);
  if (parts.empty()) return "";
  const bool more = parts.size() > kMostNamed;
  parts.resize(std::min(parts.size(), kMostNamed));
  return Format("; their names have the parts {}{}", Join(parts, ", "), more ? ", …" : "");
}

bool Contains(const std::set<std::string>& names, const std::string& part) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

}  // namespace

std::string ParameterCheck::At(const RecipePlace& place) const {
  return Format("{}:{}:{}", recipe_.where, place.line, place.column);
}

void ParameterCheck::CheckNames() {
  CheckLevel(recipe_.parameters, false);
  CheckInputs(recipe_.models);
  CheckSlices(recipe_.slices);
  for (const auto& [name, module] : recipe_.modules) {
    CheckLevel(module.parameters, false);
    CheckInputs(module.models);
    CheckSlices(module.slices);
  }
}

void ParameterCheck::CheckInputs(const std::vector<InputSpec>& inputs) {
  for (const InputSpec& input : inputs)
    CheckLevel(input.parameters, true);
}

void ParameterCheck::CheckSlices(const std::vector<SliceSpec>& slices) {
  for (const SliceSpec& slice : slices) {
    CheckLevel(slice.parameters, false);
    CheckInputs(slice.sources);
  }
}

void ParameterCheck::CheckLevel(const Parameters& parameters, bool model_level) {
  for (const auto& [name, setting] : parameters) {
    const ParamSpec* spec = FindParam(method_, name);
    const bool unused = std::find(method_.unused_params.begin(), method_.unused_params.end(), name) !=
                        method_.unused_params.end();
    if (spec == nullptr && !AnyMethodHas(name)) {
      faults_.push_back(Format("{}: no method has a parameter '{}'{}", At(setting.at), name,
                               DidYouMean(name, KnownParams(method_))));
    } else if (spec == nullptr || unused) {
      warnings_.push_back(
          Format("{}: the method '{}' does not use '{}'; it is ignored", At(setting.at), method_.name, name));
    } else if (model_level && !spec->per_model) {
      warnings_.push_back(Format("{}: '{}' is a parameter of the whole merge; under one model it is ignored",
                                 At(setting.at), name));
    }
  }
}

void ParameterCheck::CheckReach(const std::vector<Scope>& scopes, bool knows_layers) {
  knows_layers_ = knows_layers;
  std::set<std::string> all;
  for (const Scope& scope : scopes)
    all.insert(scope.names.begin(), scope.names.end());
  int64_t most_layers = 0;
  for (const Scope& scope : scopes)
    most_layers = std::max(most_layers, scope.layers);
  CheckEntries(recipe_.parameters, {all, all, most_layers});
  for (const Scope& scope : scopes) {
    const Reach reach{scope.names, all, scope.layers};
    if (scope.module_parameters != nullptr) CheckEntries(*scope.module_parameters, {all, all, scope.layers});
    if (scope.slice != nullptr) CheckEntries(scope.slice->parameters, reach);
    for (const ScopeInput& input : scope.inputs) {
      if (input.spec != nullptr) CheckEntries(input.spec->parameters, reach);
      const bool unheard = method_.DomainWith(scope.base.has_value()) == Domain::kDeltas &&
                           input.model == scope.base && input.spec != nullptr &&
                           !input.spec->parameters.empty();
      if (unheard) {
        warnings_.push_back(Format("{}: the parameters of the base model '{}' are ignored",
                                   At(input.spec->at), input.spec->model.Text()));
      }
    }
  }
}

void ParameterCheck::CheckEntries(const Parameters& parameters, const Reach& reach) {
  for (const auto& [name, setting] : parameters) {
    for (const Setting::Entry& entry : setting.entries) {
      CheckFilter(name, entry, reach);
      const auto anchors = static_cast<int64_t>(entry.value.anchors.size());
      if (!knows_layers_ && anchors > 1) {
        warnings_.push_back(
            Format("{}: a merge of single files knows no layers; of the gradient of '{}' the first "
                   "value counts",
                   At(entry.at), name));
      } else if (reach.layers > 0 && anchors > std::max<int64_t>(1, reach.layers)) {
        warnings_.push_back(
            Format("{}: the gradient of '{}' has {} values for {} layers; some are never reached",
                   At(entry.at), name, anchors, reach.layers));
      }
    }
  }
}

void ParameterCheck::CheckFilter(const std::string& name, const Setting::Entry& entry, const Reach& reach) {
  if (!entry.filter || Contains(reach.names, *entry.filter)) return;
  if (Contains(reach.all, *entry.filter)) {
    warnings_.push_back(Format("{}: the filter '{}' of '{}' matches no tensor of its slice, only of another",
                               At(entry.at), *entry.filter, name));
  } else {
    faults_.push_back(Format("{}: the filter '{}' of '{}' matches no tensor of the merge{}", At(entry.at),
                             *entry.filter, name, NearestParts(*entry.filter, reach.all)));
  }
}

}  // namespace mergepipe
