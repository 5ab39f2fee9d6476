#pragma once

#include <string>

#include "executor/diff_scan.h"
#include "executor/verify_scan.h"
#include "format/checkpoint.h"
#include "format/json.h"

namespace mergepipe {

Json VerifyReportJson(const std::string& output, const Json& manifest, const VerifyFindings& findings);
std::string VerifyReportText(const std::string& output, const VerifyFindings& findings);

Json DiffReportJson(const DiffFindings& findings);
std::string DiffReportText(const DiffFindings& findings);

Result<Json> InspectReportJson(const Checkpoint& checkpoint, const std::string& path);
Result<std::string> InspectReportText(const Checkpoint& checkpoint);

}  // namespace mergepipe
