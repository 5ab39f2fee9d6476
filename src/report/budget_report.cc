#include "report/budget_report.h"

#include "base/text.h"
#include "planner/decision.h"

namespace mergepipe {
namespace {

std::string PercentText(const std::optional<double>& share) {
  return share ? Format("{:.2f} %", *share * 100) : "unknown";
}

}  // namespace

std::vector<ExpertSummary> ExpertSummaries(const Plan& plan) {
  std::vector<ExpertSummary> by_model(plan.merge->models.size());
  std::vector<double> errors(by_model.size(), 0);
  double whole = 0;
  for (size_t t = 0; t < plan.budget.sources.size(); ++t) {
    for (size_t s = 0; s < plan.budget.sources[t].size(); ++s) {
      const SourceOutcome& outcome = plan.budget.sources[t][s];
      ExpertSummary& expert = by_model[plan.merge->tensors[t].sources[s].model];
      expert.available_bytes += outcome.available_bytes;
      expert.read_bytes += outcome.read_bytes;
      expert.lossless_bytes += outcome.lossless_bytes;
      errors[plan.merge->tensors[t].sources[s].model] += outcome.error;
      whole += outcome.error;
    }
  }
  std::vector<ExpertSummary> experts;
  for (size_t m = 0; m < by_model.size(); ++m) {
    if (plan.reference_model[m]) continue;
    by_model[m].model = m;
    if (plan.budget.complete) by_model[m].omitted_error_share = 0.0;
    if (whole > 0) by_model[m].omitted_error_share = errors[m] / whole;
    experts.push_back(by_model[m]);
  }
  return experts;
}

void AddBudgetFields(const Plan& plan, const Ledger& ledger, bool measured, Json& report) {
  report["budget_bytes"] = plan.budget.bytes ? Json(*plan.budget.bytes) : Json();
  report["full_expert_bytes"] = plan.costs.full_expert_bytes;
  report["policy"] = PolicyName(plan.budget.request.policy);
  report["lossless_skipped_bytes"] = plan.budget.lossless_bytes;
  report["predicted_deviation"] = DeviationJson(plan.budget.predicted);
  report["certificate"] = CertificateJson(plan.budget.certificate);
  report["statistics"] = StrengthName(plan.budget.strength);
  Json experts = Json::array();
  for (const ExpertSummary& expert : ExpertSummaries(plan)) {
    const size_t account = plan.merge->models[expert.model].checkpoint->account();
    const uint64_t sampled = ledger.Read(account, Purpose::kSample);
    experts.push_back(
        {{"model", plan.merge->models[expert.model].name},
         {"available_bytes", expert.available_bytes},
         {"sample_read_bytes", sampled},
         {"read_bytes",
          sampled + (measured ? ledger.Read(account, Purpose::kExpertData) : expert.read_bytes)},
         {"lossless_skipped_bytes", expert.lossless_bytes},
         {"omitted_error_share", expert.omitted_error_share ? Json(*expert.omitted_error_share) : Json()}});
  }
  report["experts"] = experts;
}

std::string BudgetText(const Plan& plan) {
  const BudgetOutcome& budget = plan.budget;
  std::string text;
  if (budget.bytes) {
    text += Format("  budget   {} of {}, policy {}, statistics {}\n", HumanBytes(*budget.bytes),
                   HumanBytes(plan.costs.full_expert_bytes), PolicyName(budget.request.policy),
                   StrengthName(budget.strength));
  }
  if (budget.lossless_bytes > 0)
    text += Format("  skipped  {} that change nothing\n", HumanBytes(budget.lossless_bytes));
  if (!budget.complete) {
    text += Format("  error    predicted {} of the update, {} of the weights\n",
                   PercentText(budget.predicted.of_update), PercentText(budget.predicted.of_weights));
  }
  if (!budget.complete && budget.certificate) {
    text += Format("  proved   at most {:.4g} in L2 norm, and {:.4g} by rounding\n", budget.certificate->l2,
                   budget.certificate->rounding_l2);
  }
  return text;
}

}  // namespace mergepipe
