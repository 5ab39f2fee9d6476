#pragma once

#include <string>

#include "format/json.h"
#include "recipe/resolve.h"

namespace mergepipe {

/// What every parameter is for every tensor. Tensors with the same models and values are one group, and those
/// that differ in their layer alone one line: "model.layers.{0-11}.mlp.up_proj.weight".
Json ParameterReportJson(const ResolvedMerge& merge);
std::string ParameterReportText(const ResolvedMerge& merge);
/// Adds both to a plan's report.
void AddParameterReport(const ResolvedMerge& merge, Json& json, std::string& text);

}  // namespace mergepipe
