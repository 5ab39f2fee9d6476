#pragma once

#include <string>
#include <vector>

#include "format/json.h"
#include "methods/method.h"

namespace mergepipe {

/// {"methods": [...]}: the record of each.
Json MethodsReportJson(const std::vector<const Method*>& methods);

/// One line for each method and one for each of its parameters.
std::string MethodsReportText(const std::vector<const Method*>& methods);

/// All that the record of one method says.
std::string MethodReportText(const Method& method);

}  // namespace mergepipe
