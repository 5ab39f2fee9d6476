#include "api/planning.h"
#include "api/session.h"
#include "base/text.h"
#include "base/try.h"
#include "executor/equal_check.h"
#include "executor/sweep_scan.h"
#include "mergepipe/mergepipe.h"
#include "planner/choose.h"
#include "report/sweep_report.h"

namespace mergepipe {
namespace {

// Plans every budget twice, by the policy and at random, and measures all of them in one scan.
class SweepRun {
 public:
  SweepRun(const SweepRequest& request, Drafted draft)
      : request_(request), draft_(std::move(draft)), policy_(draft_.budget.policy) {
    facts_.method = draft_.merge->method->name;
    facts_.models = draft_.merge->models.size();
    facts_.warnings = draft_.warnings;
    if (draft_.budget.kind != Budget::Kind::kNone)
      facts_.warnings.push_back("the recipe's budget is not looked at: a sweep has its own");
  }

  Result<Report> Execute() {
    const Stopwatch watch;
    for (const std::string& text : request_.budgets)
      MP_TRY(AddBudget(text));
    if (facts_.points.empty()) return Fail(Code::kUsage, facts_.warnings.back());
    MP_TRY(Measure());
    facts_.seconds = watch.Seconds();
    facts_.peak_memory_bytes = PeakMemoryBytes();
    return Report{JsonText(SweepReportJson(facts_, *draft_.ledger)), SweepReportText(facts_, *draft_.ledger),
                  facts_.warnings};
  }

 private:
  // A budget below what can not be left out has no point on the frontier.
  Result<void> AddBudget(const std::string& text) {
    const Budget budget = MP_TRY(ParseBudget(text));
    auto added = AddPoint(text, budget);
    if (added || added.error().code != Code::kUsage) return added;
    facts_.warnings.push_back(Format("no point at {}: {}", text, added.error().message));
    return {};
  }

  Result<void> AddPoint(const std::string& text, Budget budget) {
    budget.policy = policy_;
    Plan plan = MP_TRY(PlanUnder(budget));
    budget.policy = Policy::kRandom;
    Plan random = MP_TRY(PlanUnder(budget));
    facts_.points.push_back({.budget = text,
                             .planned = plan.budget,
                             .read_bytes = ReadBytes(plan),
                             .measured = {},
                             .random_read_bytes = ReadBytes(random),
                             .random = {}});
    facts_.points.back().planned.sources.clear();
    masks_.push_back(std::move(plan.masks));
    masks_.push_back(std::move(random.masks));
    return {};
  }

  Result<Plan> PlanUnder(const Budget& budget) {
    const auto evidence = MP_TRY(EvidenceFor(budget));
    Plan plan = draft_.plan;
    MP_TRY(ChooseUnder(budget, *evidence, plan));
    return plan;
  }

  // Budgets that take the same samples share them.
  Result<std::shared_ptr<Evidence>> EvidenceFor(const Budget& budget) {
    if (!WantsSamples(draft_.plan, budget, *draft_.evidence)) return draft_.evidence;
    const uint64_t limit = SampleLimit(draft_.plan, budget);
    if (sampled_ == nullptr || limit != sampled_limit_)
      sampled_ = MP_TRY(EvidenceUnder(budget, draft_, request_.merge.run));
    sampled_limit_ = limit;
    return sampled_;
  }

  static uint64_t ReadBytes(const Plan& plan) {
    return plan.costs.expert_read_bytes + plan.budget.sample_bytes;
  }

  Result<void> Measure() {
    MP_TRY(CheckEqualPairs(draft_.plan, *draft_.ledger));
    const RunOptions& run = request_.merge.run;
    const kernels::Kernels* kernels = MP_TRY(KernelsFromEnvironment());
    ProgressCounters progress;
    const ProgressReporter reporter(run, progress);
    const ScanLimits limits{
        .threads = ThreadsOf(run), .memory_bytes = MemoryOf(run), .stop_signal = run.stop_signal};
    const SweepFindings found =
        MP_TRY(ScanSweep(draft_.plan, masks_, *kernels, limits, *draft_.ledger, progress));
    for (size_t p = 0; p < facts_.points.size(); ++p) {
      facts_.points[p].measured = found.Of(found.error_norms[2 * p]);
      facts_.points[p].random = found.Of(found.error_norms[2 * p + 1]);
    }
    facts_.do_nothing = found.Of(found.update_norm);
    return {};
  }

  const SweepRequest& request_;
  Drafted draft_;
  const Policy policy_;
  std::shared_ptr<Evidence> sampled_;
  uint64_t sampled_limit_ = 0;
  std::vector<SweepMasks> masks_;  // by point: the policy's, random
  SweepFacts facts_;
};

}  // namespace

Result<Report> Sweep(const SweepRequest& request) {
  if (request.budgets.empty())
    return Fail(Code::kUsage, "--budgets is empty; write shares or sizes by commas, such as 2%,10%,8GiB");
  RecipeText recipe = MP_TRY(LoadRecipe(request.merge));
  Drafted draft = MP_TRY(DraftRequest(request.merge, std::move(recipe), /*under_budget=*/true));
  return SweepRun(request, std::move(draft)).Execute();
}

}  // namespace mergepipe
