#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/verify_report.h"

namespace mergepipe {
namespace {

constexpr size_t kShownTensors = 12;

// A ratio, or null where there is nothing to relate to.
Json Ratio(double part, double whole) {
  return whole > 0 ? Json(part / whole) : Json();
}

std::string RatioText(double part, double whole) {
  return whole > 0 ? Format("{:.6g}", part / whole) : "-";
}

// Norms over all tensors.
struct Sums {
  double difference = 0, weight = 0, update = 0, max_abs = 0;
  uint64_t elements = 0, differing = 0;
};

Sums Total(const DiffFindings& findings) {
  Sums sums;
  for (const TensorDifference& t : findings.tensors) {
    sums.difference += t.difference_norm * t.difference_norm;
    sums.weight += t.weight_norm * t.weight_norm;
    sums.update += t.update_norm * t.update_norm;
    if (!(t.max_abs <= sums.max_abs)) sums.max_abs = t.max_abs;
    sums.elements += t.elements;
    sums.differing += t.differing_elements;
  }
  sums.difference = std::sqrt(sums.difference);
  sums.weight = std::sqrt(sums.weight);
  sums.update = std::sqrt(sums.update);
  return sums;
}

Json Row(double max_abs, double difference, double weight, double update, bool has_base) {
  return {{"max_abs", max_abs},
          {"l2", difference},
          {"relative_to_weights", Ratio(difference, weight)},
          {"relative_to_update", has_base ? Ratio(difference, update) : Json()}};
}

}  // namespace

Json DiffReportJson(const DiffFindings& findings, bool has_base) {
  Json tensors = Json::array();
  for (const TensorDifference& t : findings.tensors) {
    Json row = Row(t.max_abs, t.difference_norm, t.weight_norm, t.update_norm, has_base);
    row["name"] = t.name;
    row["elements"] = t.elements;
    row["differing_elements"] = t.differing_elements;
    if (!t.note.empty()) row["note"] = t.note;
    tensors.push_back(std::move(row));
  }
  const Sums sums = Total(findings);
  Json json = Row(sums.max_abs, sums.difference, sums.weight, sums.update, has_base);
  json["elements"] = sums.elements;
  json["differing_elements"] = sums.differing;
  json["identical"] = sums.differing == 0 && findings.only_in_a.empty() && findings.only_in_b.empty();
  json["tensors"] = std::move(tensors);
  json["only_in_a"] = findings.only_in_a;
  json["only_in_b"] = findings.only_in_b;
  json["missing_in_base"] = findings.missing_in_base;
  return json;
}

std::string DiffReportText(const DiffFindings& findings, bool has_base) {
  std::vector<const TensorDifference*> rows;
  for (const TensorDifference& t : findings.tensors) {
    if (t.differing_elements > 0) rows.push_back(&t);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->difference_norm > b->difference_norm; });
  std::string text =
      Format("{:>12} {:>12} {:>12} {:>9}  {}\n", "max |a-b|", "to weights", "to update", "differ", "tensor");
  const auto line = [&](double max_abs, double difference, double weight, double update, double share,
                        const std::string& name) {
    text += Format("{:>12.6g} {:>12} {:>12} {:>8.2f}%  {}\n", max_abs, RatioText(difference, weight),
                   has_base ? RatioText(difference, update) : "-", share * 100, name);
  };
  for (size_t i = 0; i < std::min(rows.size(), kShownTensors); ++i) {
    const TensorDifference& t = *rows[i];
    line(t.max_abs, t.difference_norm, t.weight_norm, t.update_norm,
         static_cast<double>(t.differing_elements) / static_cast<double>(std::max<uint64_t>(1, t.elements)),
         t.note.empty() ? t.name : Format("{} ({})", t.name, t.note));
  }
  if (rows.size() > kShownTensors)
    text += Format("{:>49}  … and {} more tensors\n", "", rows.size() - kShownTensors);
  const Sums sums = Total(findings);
  line(sums.max_abs, sums.difference, sums.weight, sums.update,
       static_cast<double>(sums.differing) / static_cast<double>(std::max<uint64_t>(1, sums.elements)),
       Format("all {} tensors, {} of them differ", findings.tensors.size(), rows.size()));
  for (const std::string& name : findings.only_in_a)
    text += Format("only in a: {}\n", name);
  for (const std::string& name : findings.only_in_b)
    text += Format("only in b: {}\n", name);
  return text;
}

}  // namespace mergepipe
