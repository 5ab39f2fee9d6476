#include "report/sweep_report.h"

#include "base/text.h"
#include "planner/decision.h"
#include "report/merge_report.h"

namespace mergepipe {
namespace {

Json PointJson(const SweepPoint& point) {
  return {{"budget", point.budget},
          {"budget_bytes", *point.planned.bytes},
          {"read_bytes", point.read_bytes},
          {"policy", PolicyName(point.planned.request.policy)},
          {"statistics", StrengthName(point.planned.strength)},
          {"predicted_deviation", DeviationJson(point.planned.predicted)},
          {"deviation", DeviationJson(point.measured)},
          {"certificate", CertificateJson(point.planned.certificate)},
          {"random", {{"read_bytes", point.random_read_bytes}, {"deviation", DeviationJson(point.random)}}}};
}

std::string Percent(const std::optional<double>& share) {
  return share ? Format("{:.3f} %", *share * 100) : "-";
}

struct Row {
  std::string budget, read, statistics;
  std::string update[3], weights[3];  // predicted, measured, random
};

// The cells of a line, without the blanks that an empty last one leaves.
std::string Line(const Row& row) {
  std::string line = Format("{:>10} {:>10} {:>10} | {:>11} {:>11} {:>11} | {:>11} {:>11} {:>11}", row.budget,
                            row.read, row.statistics, row.update[0], row.update[1], row.update[2],
                            row.weights[0], row.weights[1], row.weights[2]);
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

Row RowOf(const SweepPoint& point) {
  const Deviation& predicted = point.planned.predicted;
  return {.budget = point.budget,
          .read = HumanBytes(point.read_bytes),
          .statistics = StrengthName(point.planned.strength),
          .update = {Percent(predicted.of_update), Percent(point.measured.of_update),
                     Percent(point.random.of_update)},
          .weights = {Percent(predicted.of_weights), Percent(point.measured.of_weights),
                      Percent(point.random.of_weights)}};
}

}  // namespace

Json SweepReportJson(const SweepFacts& facts, const Ledger& ledger) {
  Json points = Json::array();
  for (const SweepPoint& point : facts.points)
    points.push_back(PointJson(point));
  return {{"method", facts.method},
          {"points", points},
          {"do_nothing", {{"deviation", DeviationJson(facts.do_nothing)}}},
          {"io", LedgerJson(ledger)},
          {"seconds", facts.seconds},
          {"peak_memory_bytes", facts.peak_memory_bytes},
          {"warnings", facts.warnings}};
}

std::string SweepReportText(const SweepFacts& facts, const Ledger& ledger) {
  const std::string policy = PolicyName(facts.points.front().planned.request.policy);
  std::string text = Format("{} of {} models, policy {}: deviation from the full read\n\n", facts.method,
                            facts.models, policy);
  text += Format("{:>32} | {:^35} | {:>29}\n", "", "relative to the update", "relative to the weights");
  text += Line({.budget = "budget",
                .read = "read",
                .statistics = "statistics",
                .update = {"predicted", "measured", "random"},
                .weights = {"predicted", "measured", "random"}});
  for (const SweepPoint& point : facts.points)
    text += Line(RowOf(point));
  text += Line({.budget = "do nothing",
                .read = HumanBytes(0),
                .statistics = "",
                .update = {"", Percent(facts.do_nothing.of_update), ""},
                .weights = {"", Percent(facts.do_nothing.of_weights), ""}});
  const uint64_t experts = ledger.TotalRead(Purpose::kExpertData) + ledger.TotalRead(Purpose::kSample);
  text += Format("\nthis sweep read {} of experts and {} of the base in {:.2f} s, peak memory {}\n",
                 HumanBytes(experts), HumanBytes(ledger.TotalRead(Purpose::kBaseData)), facts.seconds,
                 HumanBytes(facts.peak_memory_bytes));
  return text;
}

}  // namespace mergepipe
