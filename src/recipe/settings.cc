#include "recipe/settings.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace {

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::optional<bool> ParseBool(const std::string& text) {
  static const std::set<std::string> kTrue = {"true", "yes", "on", "t", "y", "1", "1.0"};
  static const std::set<std::string> kFalse = {"false", "no", "off", "f", "n", "0", "0.0"};
  const std::string word = Lower(text);
  if (kTrue.count(word) > 0) return true;
  if (kFalse.count(word) > 0) return false;
  return std::nullopt;
}

const char* TypeText(ParamType type) {
  switch (type) {
    case ParamType::kNumber:
      return "a number";
    case ParamType::kInteger:
      return "a whole number";
    case ParamType::kBool:
      return "true or false";
  }
  return "";
}

}  // namespace

Result<double> ConvertScalar(const ParamSpec& spec, const std::string& text) {
  const auto wrong = [&] {
    return Fail(Code::kUsage, Format("'{}' is '{}', which is not {}", spec.name, text, TypeText(spec.type)));
  };
  const auto truth = ParseBool(text);
  if (spec.type == ParamType::kBool) {
    if (!truth) return wrong();
    return *truth ? 1.0 : 0.0;
  }
  const auto number = ParseDouble(text);
  if (!number && !truth) return wrong();
  const double value = number ? *number : (*truth ? 1.0 : 0.0);
  if (spec.type == ParamType::kInteger && value != std::floor(value)) return wrong();
  if (spec.minimum && value < *spec.minimum) {
    return Fail(Code::kUsage, Format("'{}' is {}, below its least value {}", spec.name, text, *spec.minimum));
  }
  return value;
}

Result<double> EvaluateValue(const ParamSpec& spec, const SettingValue& value, double t) {
  std::vector<double> anchors;
  for (const std::string& anchor : value.anchors)
    anchors.push_back(MP_TRY(ConvertScalar(spec, anchor)));
  if (anchors.size() == 1) return anchors[0];
  const double scaled = t * static_cast<double>(anchors.size() - 1);
  const auto lower = static_cast<size_t>(scaled);
  if (spec.type == ParamType::kBool) return anchors[lower];
  const size_t upper = std::min(anchors.size() - 1, lower + 1);
  const double fraction = scaled - static_cast<double>(lower);
  const double result = (1 - fraction) * anchors[lower] + fraction * anchors[upper];
  if (spec.type == ParamType::kInteger && result != std::floor(result)) {
    return Fail(Code::kUsage,
                Format("'{}' is a whole number, but its gradient gives {} at one layer", spec.name, result));
  }
  return result;
}

const Setting::Entry* MatchEntry(const Setting& setting, const std::string& tensor) {
  for (const Setting::Entry& entry : setting.entries) {
    if (!entry.filter || tensor.find(*entry.filter) != std::string::npos)
      return entry.value.anchors.empty() ? nullptr : &entry;
  }
  return nullptr;
}

Result<std::optional<double>> LookUp(const ParamSpec& spec, const std::vector<SettingLevel>& levels,
                                     double t) {
  for (const SettingLevel& level : levels) {
    if (level.parameters == nullptr) continue;
    const auto found = level.parameters->find(spec.name);
    if (found == level.parameters->end()) continue;
    const Setting::Entry* entry = MatchEntry(found->second, level.tensor);
    if (entry == nullptr) continue;
    const std::string where = Format("{}:{}", entry->at.line, entry->at.column);
    return std::optional(MP_TRY(During(EvaluateValue(spec, entry->value, t), where)));
  }
  return spec.default_value;
}

}  // namespace mergepipe
