#include <filesystem>

#include "api/saved_plan.h"
#include "base/text.h"
#include "base/try.h"
#include "mergepipe/mergepipe.h"
#include "report/explain_report.h"
#include "txn/manifest.h"

namespace mergepipe {
namespace {

Result<Explanation> Load(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    return Fail(
        Code::kInvalidInput,
        Format("{}: is no file or folder here; give a plan that mergepipe plan -o wrote, or an output",
               path));
  if (!std::filesystem::is_directory(status)) return ExplanationOfPlan(MP_TRY(ReadPlanJson(path)));
  auto manifest = ReadManifest(path);
  if (!manifest) return Fail(Code::kInvalidInput, manifest.error().message);
  return ExplanationOfManifest(*manifest);
}

}  // namespace

Result<Report> Explain(const std::string& plan_or_output, const std::string& tensor) {
  auto explanation = Load(plan_or_output);
  if (!explanation)
    return Fail(explanation.error().code,
                StartsWith(explanation.error().message, plan_or_output)
                    ? explanation.error().message
                    : Format("{}: {}", plan_or_output, explanation.error().message));
  Json json = ExplainReportJson(*explanation);
  json["path"] = plan_or_output;
  json["why"] = nullptr;
  if (tensor.empty()) return Report{JsonText(json), ExplainReportText(*explanation, plan_or_output), {}};
  const ExplainedTensor* found = MP_TRY(FindTensor(*explanation, tensor));
  json["why"] = WhyJson(*explanation, *found);
  return Report{JsonText(json), WhyText(*explanation, *found), {}};
}

}  // namespace mergepipe
