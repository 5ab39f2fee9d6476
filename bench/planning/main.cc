#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>

#include "api/session.h"
#include "base/text.h"
#include "base/try.h"
#include "family.h"
#include "planner/catalog_evidence.h"
#include "planner/choose.h"
#include "recipe/resolve.h"

namespace mergepipe::bench {
namespace {

// Seconds of one plan, by stage. `load` is spent within the stages that ask for evidence, `cpu` by all
// threads.
struct Stages {
  double resolve = 0, consult = 0, draft = 0, choose = 0, seal = 0, load = 0, cpu = 0;
  double total() const { return consult + draft + choose + seal; }
};

class TimedEvidence final : public Evidence {
 public:
  TimedEvidence(std::unique_ptr<Evidence> evidence, double& seconds)
      : evidence_(std::move(evidence)), seconds_(seconds) {}
  Result<TensorEvidence> Of(size_t tensor) override {
    const Timer timer(seconds_);
    return evidence_->Of(tensor);
  }
  Result<TensorEvidence> ThresholdsOf(size_t tensor) override {
    const Timer timer(seconds_);
    return evidence_->ThresholdsOf(tensor);
  }
  std::string Identity(size_t model) const override { return evidence_->Identity(model); }
  bool Knows(size_t model) const override { return evidence_->Knows(model); }
  Strength strength() const override { return evidence_->strength(); }

 private:
  struct Timer {
    explicit Timer(double& sum) : seconds(sum) {}
    ~Timer() { seconds += watch.Seconds(); }
    double& seconds;
    Stopwatch watch;
  };

  std::unique_ptr<Evidence> evidence_;
  double& seconds_;
};

struct Run {
  std::string folder, method, policy;
  size_t experts = 0, threads = 1;
};

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Seconds since the last call.
double Lap(Stopwatch& watch) {
  const double seconds = watch.Seconds();
  watch = Stopwatch();
  return seconds;
}

Result<std::shared_ptr<const ResolvedMerge>> Resolve(const Run& run, Ledger& ledger) {
  RecipeFlags flags{.base = BasePath(run.folder), .method = run.method, .experts = {}, .settings = {kWeight}};
  if (run.method == "ties") flags.settings.push_back(kDensity);
  for (size_t i = 0; i < run.experts; ++i)
    flags.experts.push_back(ExpertPath(run.folder, i));
  const std::string text = MP_TRY(RecipeFromFlags(flags));
  const Recipe recipe = MP_TRY(ParseRecipe(text, "benchmark"));
  ResolvedMerge merge = MP_TRY(ResolveRecipe(recipe, {.stand_ins = true}, ledger));
  return std::make_shared<const ResolvedMerge>(std::move(merge));
}

Result<Plan> MakeOnePlan(const Run& run, Stages& stages) {
  Ledger ledger;
  Stopwatch watch;
  const auto merge = MP_TRY(Resolve(run, ledger));
  stages.resolve = Lap(watch);
  const double processor = ProcessorSeconds();
  const PlanOptions options{.memory_bytes = uint64_t{2} << 30, .threads = run.threads};
  const auto catalog = MP_TRY(Catalog::OpenExisting(CatalogFilePath(run.folder)));
  auto known = MP_TRY(EvidenceFromCatalog(*merge, *catalog, options.block_bytes));
  TimedEvidence evidence(std::move(known), stages.load);
  stages.consult = Lap(watch);
  KnownConstants constants = MP_TRY(FindConstants(*merge, evidence));
  Plan plan = MP_TRY(DraftPlan(merge, options, std::move(constants)));
  stages.draft = Lap(watch);
  Budget budget = MP_TRY(ParseBudget("10%"));
  budget.policy = MP_TRY(ParsePolicy(run.policy));
  MP_TRY(ChooseReads(plan, budget, evidence));
  stages.choose = Lap(watch);
  std::vector<std::string> identities;
  for (size_t m = 0; m < merge->models.size(); ++m)
    identities.push_back(evidence.Identity(m));
  SealPlan(plan, std::move(identities));
  stages.seal = Lap(watch);
  stages.cpu = ProcessorSeconds() - processor;
  return plan;
}

double Median(std::vector<Stages>& runs, double Stages::*stage) {
  std::sort(runs.begin(), runs.end(), [&](const Stages& a, const Stages& b) { return a.*stage < b.*stage; });
  return runs[runs.size() / 2].*stage;
}

// Expert blocks that the plan decides on.
size_t Pairs(const Plan& plan) {
  size_t pairs = 0;
  for (const TensorMask& mask : plan.masks)
    pairs += mask.reads_all() ? 0 : mask.blocks() * (mask.sources() - 1);
  return pairs;
}

Result<void> Measure(const Run& run, size_t repeats) {
  std::vector<Stages> runs(repeats);
  std::string digest;
  size_t pairs = 0;
  for (Stages& stages : runs) {
    const Plan plan = MP_TRY(MakeOnePlan(run, stages));
    digest = plan.digest;
    pairs = Pairs(plan);
  }
  std::sort(runs.begin(), runs.end(), [](const Stages& a, const Stages& b) { return a.total() < b.total(); });
  const double total = runs[repeats / 2].total();
  fmt::print(
      R"({{"total": {}, "resolve": {}, "consult": {}, "draft": {}, "choose": {}, "seal": {}, "load": {}, "cpu": {}, )"
      R"("pairs": {}, "peak_bytes": {}, "digest": "{}"}})"
      "\n",
      total, Median(runs, &Stages::resolve), Median(runs, &Stages::consult), Median(runs, &Stages::draft),
      Median(runs, &Stages::choose), Median(runs, &Stages::seal), Median(runs, &Stages::load),
      Median(runs, &Stages::cpu), pairs, PeakMemoryBytes(), digest);
  return {};
}

Result<void> Main(const std::vector<std::string>& arguments) {
  const auto number = [&](size_t i) { return ParseUnsigned(arguments[i]); };
  if (arguments.size() == 4 && arguments[0] == "make") {
    FamilySize size;
    size.experts = MP_TRY(number(2));
    size.layers = MP_TRY(number(3));
    return MakeFamily(arguments[1], size);
  }
  if (arguments.size() == 7 && arguments[0] == "plan") {
    Run run{.folder = arguments[1], .method = arguments[2], .policy = arguments[3]};
    run.experts = MP_TRY(number(4));
    run.threads = MP_TRY(number(5));
    const size_t repeats = MP_TRY(number(6));
    return Measure(run, repeats);
  }
  return Fail(Code::kUsage, "make FOLDER EXPERTS LAYERS, or plan FOLDER METHOD POLICY EXPERTS THREADS RUNS");
}

}  // namespace
}  // namespace mergepipe::bench

int main(int argc, char** argv) {
  const auto done = mergepipe::bench::Main({argv + 1, argv + argc});
  if (!done) fmt::print(stderr, "{}\n", done.error().message);
  return done ? 0 : 1;
}
