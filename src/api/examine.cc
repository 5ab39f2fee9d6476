#include "api/open_model.h"
#include "api/session.h"
#include "base/text.h"
#include "base/try.h"
#include "executor/diff_scan.h"
#include "executor/verify_scan.h"
#include "format/checkpoint.h"
#include "mergepipe/mergepipe.h"
#include "methods/method.h"
#include "report/methods_report.h"
#include "report/verify_report.h"
#include "txn/manifest.h"

namespace mergepipe {
namespace {

ScanLimits LimitsOf(const RunOptions& options) {
  return {
      .threads = ThreadsOf(options), .memory_bytes = MemoryOf(options), .stop_signal = options.stop_signal};
}

}  // namespace

Result<uint64_t> ParseByteCount(const std::string& text) {
  return ParseBytes(text);
}

std::string ByteCountText(uint64_t bytes) {
  return HumanBytes(bytes);
}

std::string ErrorJson(const Error& error) {
  const std::vector<std::string> faults = error.faults.empty() ? std::vector{error.message} : error.faults;
  return JsonText(
      {{"error", {{"kind", CodeName(error.code)}, {"message", error.message}, {"faults", faults}}}});
}

Result<Report> DescribeMethods(const std::string& name) {
  if (name.empty()) {
    const auto& all = AllMethods();
    return Report{JsonText(MethodsReportJson(all)), MethodsReportText(all), {}};
  }
  const Method* method = FindMethod(name);
  if (method != nullptr) return Report{JsonText(MethodsReportJson({method})), MethodReportText(*method), {}};
  return Fail(Code::kUsage, Format("there is no method '{}'{}; there are: {}", name,
                                   DidYouMean(name, MethodNames()), Join(MethodNames(), ", ")));
}

Result<Report> Inspect(const std::string& model) {
  Ledger ledger;
  const auto checkpoint = MP_TRY(OpenModel(model, ledger));
  const Json json = MP_TRY(InspectReportJson(*checkpoint, model));
  return Report{JsonText(json), MP_TRY(InspectReportText(*checkpoint)), checkpoint->notes()};
}

Result<Report> Diff(const std::string& a, const std::string& b, const std::string& base,
                    const RunOptions& options) {
  Ledger ledger;
  const auto first = MP_TRY(OpenModel(a, ledger));
  const auto second = MP_TRY(OpenModel(b, ledger));
  std::unique_ptr<Checkpoint> reference;
  if (!base.empty()) reference = MP_TRY(OpenModel(base, ledger));
  const kernels::Kernels* kernels = MP_TRY(KernelsFromEnvironment());
  ProgressCounters progress;
  const ProgressReporter reporter(options, progress);
  const DiffFindings findings =
      MP_TRY(ScanDifference(*first, *second, reference.get(), *kernels, LimitsOf(options), progress));
  Json json = DiffReportJson(findings);
  json["a"] = a;
  json["b"] = b;
  json["base"] = base.empty() ? Json() : Json(base);
  return Report{JsonText(json), DiffReportText(findings), {}};
}

Result<VerifyOutcome> Verify(const std::string& output, const RunOptions& options) {
  auto manifest = ReadManifest(output);
  if (!manifest && manifest.error().code == Code::kDifference) {
    const VerifyFindings changed{.differences = {{kManifestName, manifest.error().message, "", 0, 0}},
                                 .notes = {}};
    return VerifyOutcome{false,
                         {JsonText(VerifyReportJson(output, {{"root_digest", nullptr}}, changed)),
                          VerifyReportText(output, changed),
                          {}}};
  }
  if (!manifest) return Fail(std::move(manifest).error());
  ProgressCounters progress;
  const ProgressReporter reporter(options, progress);
  const VerifyFindings findings = MP_TRY(ScanAgainstManifest(output, *manifest, LimitsOf(options), progress));
  return VerifyOutcome{findings.differences.empty(),
                       {JsonText(VerifyReportJson(output, *manifest, findings)),
                        VerifyReportText(output, findings), findings.notes}};
}

}  // namespace mergepipe
