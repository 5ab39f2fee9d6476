#include "report/methods_report.h"

#include <algorithm>

#include "base/text.h"

namespace mergepipe {
namespace {

const char* TypeName(ParamType type) {
  switch (type) {
    case ParamType::kNumber:
      return "number";
    case ParamType::kInteger:
      return "integer";
    case ParamType::kBool:
      return "boolean";
  }
  return "";
}

std::string DefaultText(const ParamSpec& spec) {
  if (!spec.default_value) return spec.required ? "required" : "optional";
  if (spec.type == ParamType::kBool) return *spec.default_value != 0 ? "default true" : "default false";
  return Format("default {}", *spec.default_value);
}

std::string RangeText(const ParamSpec& spec) {
  return spec.minimum ? Format(", at least {}", *spec.minimum) : "";
}

Json DefaultJson(const ParamSpec& spec) {
  if (!spec.default_value) return Json();
  return spec.type == ParamType::kBool ? Json(*spec.default_value != 0) : Json(*spec.default_value);
}

// "1", "any number of", "2 or more".
std::string CountText(size_t least, size_t most) {
  if (least == most) return Format("{}", least);
  return least == 0 ? "any number of" : Format("{} or more", least);
}

// What a recipe lists: the base counts among `min_inputs` where the method can not do without it.
std::string ModelsText(const Method& method) {
  const size_t base = method.needs_base ? 1 : 0;
  const size_t least = std::max(method.min_inputs, base) - base;
  const size_t most = method.max_inputs == SIZE_MAX ? SIZE_MAX : method.max_inputs - base;
  const std::string count = CountText(least, most);
  if (method.needs_base) return Format("a base and {} other{}", count, most == 1 ? "" : "s");
  return count + (method.base_is_special ? ", beside a base or without" : "; a base is one of them");
}

Json ParameterJson(const ParamSpec& spec) {
  return {{"name", spec.name},
          {"type", TypeName(spec.type)},
          {"per_model", spec.per_model},
          {"required", spec.required},
          {"default", DefaultJson(spec)},
          {"minimum", spec.minimum ? Json(*spec.minimum) : Json()},
          {"doc", spec.doc}};
}

Json MethodJson(const Method& method) {
  Json parameters = Json::array();
  for (const ParamSpec& spec : method.params)
    parameters.push_back(ParameterJson(spec));
  return {{"name", method.name},
          {"summary", method.summary},
          {"paper", method.paper},
          {"formula", method.formula},
          {"models", ModelsText(method)},
          {"parameters", parameters},
          {"unused_parameters", method.unused_params}};
}

}  // namespace

Json MethodsReportJson(const std::vector<const Method*>& methods) {
  Json list = Json::array();
  for (const Method* method : methods)
    list.push_back(MethodJson(*method));
  return {{"methods", list}};
}

std::string MethodsReportText(const std::vector<const Method*>& methods) {
  std::string text;
  for (const Method* method : methods) {
    text += Format("  {:<16} {}\n", method->name, method->summary);
    for (const ParamSpec& spec : method->params)
      text += Format("      {:<12} {}{} ({})\n", spec.name, spec.per_model ? "per model: " : "", spec.doc,
                     DefaultText(spec));
  }
  return text;
}

std::string MethodReportText(const Method& method) {
  std::string text = Format("{}: {}\n\n  formula   {}\n  models    {}\n", method.name, method.summary,
                            method.formula, ModelsText(method));
  if (!method.paper.empty()) text += "  paper     " + method.paper + "\n";
  text += method.params.empty() ? "\nno parameters\n" : "\nparameters:\n";
  for (const ParamSpec& spec : method.params)
    text += Format("  {:<18} {}{} ({}, {}{})\n", spec.name, spec.per_model ? "per model: " : "", spec.doc,
                   TypeName(spec.type), DefaultText(spec), RangeText(spec));
  if (!method.unused_params.empty())
    text += "\naccepted and not used: " + Join(method.unused_params, ", ") + "\n";
  return text;
}

}  // namespace mergepipe
