#include "report/verify_report.h"

#include "base/text.h"

namespace mergepipe {

Json VerifyReportJson(const std::string& output, const Json& manifest, const VerifyFindings& findings) {
  Json differences = Json::array();
  for (const Difference& d : findings.differences) {
    Json row = {
        {"file", d.file}, {"what", d.what}, {"tensor", nullptr}, {"element", nullptr}, {"elements", nullptr}};
    if (!d.tensor.empty()) row["tensor"] = d.tensor;
    if (d.elements > 0) row["element"] = d.element;
    if (d.elements > 0) row["elements"] = d.elements;
    differences.push_back(std::move(row));
  }
  return {{"output", output},
          {"ok", findings.differences.empty()},
          {"differences", differences},
          {"notes", findings.notes},
          {"tensors", findings.tensors},
          {"checked_bytes", findings.checked_bytes},
          {"root_digest", manifest.at("root_digest")}};
}

std::string VerifyReportText(const std::string& output, const VerifyFindings& findings) {
  std::string text;
  for (const Difference& d : findings.differences)
    text += Format("{}: {}\n", d.file, d.what);
  for (const std::string& note : findings.notes)
    text += Format("note: {}\n", note);
  text += findings.differences.empty()
              ? Format("{}: {} tensors, {} are what the manifest says\n", output, findings.tensors,
                       HumanBytes(findings.checked_bytes))
              : Format("{}: {} difference(s) from the manifest\n", output, findings.differences.size());
  return text;
}

}  // namespace mergepipe
