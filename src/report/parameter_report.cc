#include "report/parameter_report.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "recipe/layers.h"

namespace mergepipe {
namespace {

/// Tensors that are treated alike: the first of them stands for all.
struct Group {
  size_t example = 0;
  size_t tensors = 0;
  std::map<std::pair<std::string, std::string>, std::vector<int64_t>> layers;  ///< by what stands around them
  std::vector<std::string> others;                                             ///< outside the layers
};

// What decides how a tensor is treated.
auto Treatment(const ResolvedTensor& tensor) {
  std::vector<size_t> models;
  if (!tensor.merged) {
    models.push_back(tensor.sources[0].model);
  } else {
    for (const size_t input : tensor.inputs)
      models.push_back(tensor.sources[input].model);
  }
  return std::tuple(tensor.merged, tensor.rule, tensor.merged ? tensor.params : 0, models);
}

std::vector<Group> GroupsOf(const ResolvedMerge& merge) {
  std::map<decltype(Treatment(merge.tensors[0])), size_t> numbers;
  std::vector<Group> groups;
  for (size_t t = 0; t < merge.tensors.size(); ++t) {
    const ResolvedTensor& tensor = merge.tensors[t];
    const auto [at, is_new] = numbers.try_emplace(Treatment(tensor), groups.size());
    if (is_new) groups.push_back({.example = t});
    Group& group = groups[at->second];
    ++group.tensors;
    const auto split = SplitLayerName(tensor.name);
    if (split) {
      group.layers[{split->prefix, split->suffix}].push_back(split->layer);
    } else {
      group.others.push_back(tensor.name);
    }
  }
  return groups;
}

// "0-3,8"
std::string RangesText(std::vector<int64_t> layers) {
  std::sort(layers.begin(), layers.end());
  std::vector<std::string> ranges;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1)
      ++end;
    ranges.push_back(end == i + 1 ? Format("{}", layers[i]) : Format("{}-{}", layers[i], layers[end - 1]));
    i = end;
  }
  return Join(ranges, ",");
}

std::vector<std::string> Patterns(const Group& group) {
  std::vector<std::string> patterns = group.others;
  for (const auto& [around, layers] : group.layers) {
    const auto& [prefix, suffix] = around;
    patterns.push_back(layers.size() == 1 ? JoinLayerName(prefix, layers[0], suffix)
                                          : Format("{}.{{{}}}.{}", prefix, RangesText(layers), suffix));
  }
  return patterns;
}

Json ValueJson(const Method& method, const std::string& name, double value) {
  for (const ParamSpec& spec : method.params) {
    if (spec.name == name && spec.type == ParamType::kBool) return value != 0;
    if (spec.name == name && spec.type == ParamType::kInteger) return static_cast<int64_t>(value);
  }
  return value;
}

Json ValuesJson(const Method& method, const std::map<std::string, double>& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values)
    json[name] = ValueJson(method, name, value);
  return json;
}

Json ModelsJson(const ResolvedMerge& merge, const ResolvedTensor& tensor) {
  Json models = Json::array();
  const auto& inputs = merge.params[tensor.params].inputs;
  for (size_t i = 0; i < tensor.inputs.size(); ++i) {
    models.push_back(
        {{"model", merge.models[tensor.sources[tensor.inputs[i]].model].name},
         {"parameters", i < inputs.size() ? ValuesJson(*merge.method, inputs[i]) : Json::object()}});
  }
  return models;
}

Json GroupJson(const ResolvedMerge& merge, const Group& group) {
  const ResolvedTensor& tensor = merge.tensors[group.example];
  Json json = {{"tensors", Patterns(group)}, {"count", group.tensors}, {"merged", tensor.merged}};
  if (tensor.merged) {
    json["parameters"] = ValuesJson(*merge.method, merge.params[tensor.params].global);
    json["models"] = ModelsJson(merge, tensor);
  } else {
    json["rule"] = tensor.rule;
    json["model"] = merge.models[tensor.sources[0].model].name;
  }
  return json;
}

std::string ValuesText(const Json& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values.items())
    parts.push_back(Format("{} {}", name, value.dump()));
  return Join(parts, ", ");
}

}  // namespace

Json ParameterReportJson(const ResolvedMerge& merge) {
  Json groups = Json::array();
  for (const Group& group : GroupsOf(merge))
    groups.push_back(GroupJson(merge, group));
  return groups;
}

void AddParameterReport(const ResolvedMerge& merge, Json& json, std::string& text) {
  json["tensor_parameters"] = ParameterReportJson(merge);
  text += "\nparameters by tensor:\n\n" + ParameterReportText(merge);
}

std::string ParameterReportText(const ResolvedMerge& merge) {
  std::string text;
  for (const Json& group : ParameterReportJson(merge)) {
    for (const Json& pattern : group["tensors"])
      text += pattern.get<std::string>() + "\n";
    if (!group["merged"].get<bool>()) {
      text += Format("    copied from {}: {}\n\n", group["model"].get<std::string>(),
                     group["rule"].get<std::string>());
      continue;
    }
    if (!group["parameters"].empty()) text += Format("    {}\n", ValuesText(group["parameters"]));
    for (const Json& model : group["models"]) {
      const std::string values = ValuesText(model["parameters"]);
      text += Format("    {}{}{}\n", model["model"].get<std::string>(), values.empty() ? "" : ": ", values);
    }
    text += "\n";
  }
  return text;
}

}  // namespace mergepipe
