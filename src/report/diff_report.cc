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

// Norms over all tensors whose values can be compared; `update_difference` over those that the base has too.
struct Sums {
  double difference = 0, weight = 0, update = 0, update_difference = 0, max_abs = 0;
  uint64_t elements = 0, differing = 0;
};

Sums Total(const DiffFindings& findings) {
  Sums sums;
  for (const TensorDifference& t : findings.tensors) {
    sums.elements += t.elements;
    sums.differing += t.differing_elements;
    if (!t.comparable) continue;
    const double square = t.difference_norm * t.difference_norm;
    sums.difference += square;
    sums.weight += t.weight_norm * t.weight_norm;
    sums.update += t.update_norm * t.update_norm;
    if (t.has_base) sums.update_difference += square;
    if (!(t.max_abs <= sums.max_abs)) sums.max_abs = t.max_abs;
  }
  for (double* sum : {&sums.difference, &sums.weight, &sums.update, &sums.update_difference})
    *sum = std::sqrt(*sum);
  return sums;
}

std::vector<std::string> Incomparable(const DiffFindings& findings) {
  std::vector<std::string> names;
  for (const TensorDifference& t : findings.tensors) {
    if (!t.comparable) names.push_back(t.name);
  }
  return names;
}

// One row of the report: of a tensor, or of all.
struct Measures {
  double max_abs = 0, difference = 0, weight = 0, update_difference = 0, update = 0;
};

Measures Of(const TensorDifference& t) {
  return {t.max_abs, t.difference_norm, t.weight_norm, t.has_base ? t.difference_norm : 0, t.update_norm};
}
Measures Of(const Sums& s) {
  return {s.max_abs, s.difference, s.weight, s.update_difference, s.update};
}

Json Row(const Measures& m) {
  return {{"max_abs", m.max_abs},
          {"l2", m.difference},
          {"relative_to_weights", Ratio(m.difference, m.weight)},
          {"relative_to_update", Ratio(m.update_difference, m.update)}};
}

std::string Line(const Measures& m, bool comparable, double share, const std::string& name) {
  return Format("{:>12} {:>12} {:>12} {:>8.2f}%  {}\n", comparable ? Format("{:.6g}", m.max_abs) : "-",
                RatioText(m.difference, m.weight), RatioText(m.update_difference, m.update), share * 100,
                name);
}

double Share(uint64_t part, uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(1, whole));
}

}  // namespace

Json DiffReportJson(const DiffFindings& findings) {
  Json tensors = Json::array();
  for (const TensorDifference& t : findings.tensors) {
    Json row = t.comparable ? Row(Of(t))
                            : Json{{"max_abs", nullptr},
                                   {"l2", nullptr},
                                   {"relative_to_weights", nullptr},
                                   {"relative_to_update", nullptr}};
    row["name"] = t.name;
    row["elements"] = t.elements;
    row["differing_elements"] = t.differing_elements;
    if (!t.note.empty()) row["note"] = t.note;
    tensors.push_back(std::move(row));
  }
  const Sums sums = Total(findings);
  Json json = Row(Of(sums));
  json["elements"] = sums.elements;
  json["differing_elements"] = sums.differing;
  json["identical"] = sums.differing == 0 && findings.only_in_a.empty() && findings.only_in_b.empty();
  json["tensors"] = std::move(tensors);
  json["incomparable"] = Incomparable(findings);
  json["only_in_a"] = findings.only_in_a;
  json["only_in_b"] = findings.only_in_b;
  json["missing_in_base"] = findings.missing_in_base;
  return json;
}

std::string DiffReportText(const DiffFindings& findings) {
  std::vector<const TensorDifference*> rows;
  for (const TensorDifference& t : findings.tensors) {
    if (t.differing_elements > 0) rows.push_back(&t);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto* a, const auto* b) {
    return std::pair(!a->comparable, a->difference_norm) > std::pair(!b->comparable, b->difference_norm);
  });
  std::string text =
      Format("{:>12} {:>12} {:>12} {:>9}  {}\n", "max |a-b|", "to weights", "to update", "differ", "tensor");
  for (size_t i = 0; i < std::min(rows.size(), kShownTensors); ++i) {
    const TensorDifference& t = *rows[i];
    text += Line(Of(t), t.comparable, Share(t.differing_elements, t.elements),
                 t.note.empty() ? t.name : Format("{} ({})", t.name, t.note));
  }
  if (rows.size() > kShownTensors)
    text += Format("{:>49}  … and {} more tensors\n", "", rows.size() - kShownTensors);
  const Sums sums = Total(findings);
  text += Line(Of(sums), true, Share(sums.differing, sums.elements),
               Format("all {} tensors, {} of them differ", findings.tensors.size(), rows.size()));
  const size_t incomparable = Incomparable(findings).size();
  if (incomparable > 0)
    text += Format("{} tensor(s) have other shapes or types and are in no number but the last column\n",
                   incomparable);
  for (const std::string& name : findings.only_in_a)
    text += Format("only in a: {}\n", name);
  for (const std::string& name : findings.only_in_b)
    text += Format("only in b: {}\n", name);
  return text;
}

}  // namespace mergepipe
