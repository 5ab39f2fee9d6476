#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "methods/method.h"
#include "recipe/recipe.h"

namespace mergepipe {

/// Converts a written value by its parameter's type: numbers from text, booleans as 1 and 0
/// (yes/no/on/off/t/f/y/n too). Fails with kUsage.
Result<double> ConvertScalar(const ParamSpec& spec, const std::string& text);

/// The value of a gradient at t in [0, 1]: linear between anchors for numbers, the anchor before t for
/// booleans. Fails with kUsage when an integer parameter would get a fraction.
Result<double> EvaluateValue(const ParamSpec& spec, const SettingValue& value, double t);

/// The first entry whose filter is part of `tensor`, or null where the setting has no value for it.
const Setting::Entry* MatchEntry(const Setting& setting, const std::string& tensor);

/// One level of the look-up: the parameters that are written there and the name that filters see.
struct SettingLevel {
  const Parameters* parameters = nullptr;
  std::string tensor;
};

/// (Failures start with line and column.) Looks a parameter up level by level; the first level that yields a
/// value wins. Nothing: no level does and there is no default.
Result<std::optional<double>> LookUp(const ParamSpec& spec, const std::vector<SettingLevel>& levels,
                                     double t);

}  // namespace mergepipe
