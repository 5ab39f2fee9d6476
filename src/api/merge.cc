#include <algorithm>
#include <ctime>
#include <iterator>

#include "api/chain.h"
#include "api/merge_run.h"
#include "api/output_form.h"
#include "api/planning.h"
#include "api/saved_plan.h"
#include "api/session.h"
#include "api/stage_reuse.h"
#include "base/text.h"
#include "base/try.h"
#include "executor/engine.h"
#include "executor/equal_check.h"
#include "mergepipe/mergepipe.h"
#include "recipe/documents.h"
#include "recipe/resolve.h"
#include "report/merge_report.h"
#include "report/parameter_report.h"
#include "txn/journal.h"
#include "txn/manifest.h"
#include "txn/side_files.h"
#include "txn/staging.h"

namespace mergepipe {
namespace {

class MergeRun {
 public:
  // `expected` may be null; `stage_key` is empty where this is no stage of a larger recipe.
  MergeRun(const MergeRequest& request, Planned planned, const Expectation* expected,
           std::string stage_key = "")
      : request_(request),
        expected_(expected),
        stage_key_(std::move(stage_key)),
        recipe_(std::move(planned.recipe)),
        shared_ledger_(std::move(planned.ledger)),
        ledger_(*shared_ledger_),
        plan_(std::move(planned.plan)),
        merge_(plan_.merge),
        warnings_(std::move(planned.warnings)) {}

  Result<void> CheckOutput() const {
    std::vector<std::string> inputs;
    for (const ResolvedModel& model : merge_->models)
      inputs.push_back(model.path);
    const uint64_t side_files = MP_TRY(EstimateSideFileBytes(plan_));
    return CheckTarget(request_.output, inputs, plan_.costs.write_bytes + side_files, request_.force);
  }

  Result<MergeOutcome> Execute() {
    const Stopwatch watch;
    kernels_ = MP_TRY(KernelsFromEnvironment());
    MP_TRY(CheckOutput());
    auto staging = MP_TRY(Staging::Open(request_.output, request_.resume, ledger_));
    if (staging->discards())
      warnings_.push_back(Format(
          "{}: the unfinished work of an earlier run was thrown away; --resume would have continued it",
          staging->folder()));
    resumed_ = staging->resumed();
    auto root = Build(*staging, watch);
    if (!root) return Fail(KeepForResuming(std::move(root).error(), *staging));
    const std::string root_digest = MP_TRY(std::move(root));
    MP_TRY(staging->Publish(request_.force));
    const RunFacts facts{.output = request_.output,
                         .seconds = watch.Seconds(),
                         .peak_memory_bytes = PeakMemoryBytes(),
                         .root_digest = root_digest,
                         .target = kernels_->target,
                         .warnings = warnings_,
                         .resumed = resumed_};
    return MergeOutcome{MergeReportJson(plan_, ledger_, facts), MergeReportText(plan_, ledger_, facts),
                        warnings_};
  }

  const Plan& plan() const { return plan_; }
  const Ledger& ledger() const { return ledger_; }
  const RecipeText& recipe() const { return recipe_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // An interruption or a storage error may pass: what is finished stays for --resume. A full disk is freed
  // instead. A run that was refused before it read the journal leaves alone what it was not made for.
  Error KeepForResuming(Error error, Staging& staging) const {
    if (journal_ == nullptr && staging.resumed()) staging.Keep();
    if (error.code == Code::kDiskFull)
      error.message += Format("; the unfinished output was removed, {} must be free for it",
                              HumanBytes(plan_.costs.write_bytes));
    const bool may_pass =
        error.code == Code::kInterrupted || error.code == Code::kTransient || error.code == Code::kIo;
    if (!may_pass || journal_ == nullptr || journal_->entries() == 0) return error;
    staging.Keep();
    error.message += Format("; {} finished tensors are kept in {}, continue with --resume",
                            journal_->entries(), staging.folder());
    return error;
  }

  // Fills the staging folder and returns the root digest.
  Result<std::string> Build(Staging& staging, const Stopwatch& watch) {
    if (plan_.budget.bytes) ledger_.LimitExpertBytes(*plan_.budget.bytes);
    if (plan_.checks_pairs) MP_TRY(CheckEqualPairs(plan_, ledger_));
    journal_ = MP_TRY(Journal::Open(staging, plan_, ledger_));
    ProgressCounters progress;
    progress.total_bytes =
        plan_.costs.base_read_bytes + plan_.costs.expert_read_bytes + plan_.costs.write_bytes;
    EngineOptions options{.kernels = kernels_,
                          .allow_nonfinite = request_.allow_nonfinite,
                          .stop_signal = request_.run.stop_signal,
                          .progress = &progress,
                          .on_tensor = {}};
    options.on_tensor = [&](size_t tensor, const TensorRecord& record) -> Result<void> {
      MP_TRY(CheckRecord(tensor, record));
      NoteDisagreement(tensor, record);
      return journal_->Add(merge_->tensors[tensor].name, record, ledger_);
    };
    EngineResult result;
    {
      const ProgressReporter reporter(request_.run, progress);
      result = MP_TRY(RunEngine(plan_, options, journal_->TakeFinished(), staging, ledger_));
    }
    const SideFiles side = MP_TRY(WriteSideFiles(plan_, recipe_.text, staging));
    MP_TRY(CheckFiles(side.files));
    const auto sink = MP_TRY(staging.CreateText(kManifestName));
    const std::string root = MP_TRY(WriteManifest({.plan = &plan_,
                                                   .tensors = &result.records,
                                                   .files = side.files,
                                                   .notes = side.notes,
                                                   .envelope = Envelope(result, watch, staging)},
                                                  *sink));
    MP_TRY(sink->Finish());
    MP_TRY(CheckRoot(root));
    MP_TRY(journal_->Remove());  // last of all: without it nothing can be resumed
    return root;
  }

  // Integers are copied from the base, never averaged; models that disagree on them are worth a word.
  void NoteDisagreement(size_t number, const TensorRecord& record) {
    const ResolvedTensor& tensor = merge_->tensors[number];
    for (size_t s = 1; s < record.sources.size() && !tensor.merged; ++s) {
      if (record.sources[s] == record.sources[0] || !ReadsAll(number, s)) continue;
      warnings_.push_back(
          Format("{}: tensor '{}' ({}) has other values than the base, whose values are copied",
                 merge_->models[tensor.sources[s].model].name, tensor.name, DTypeName(tensor.dtype)));
    }
  }

  bool ReadsAll(size_t tensor, size_t source) const {
    const TensorMask& mask = plan_.masks[tensor];
    for (size_t b = 0; b < mask.blocks(); ++b) {
      if (mask.From(source, b) == TensorMask::kOmitted) return false;
    }
    return true;
  }

  Json Envelope(const EngineResult& result, const Stopwatch& watch, const Staging& staging) const {
    Json models = Json::array();
    for (const ResolvedModel& model : merge_->models)
      models.push_back({{"name", model.name}, {"path", model.path}});
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    Json envelope = {{"recipe", recipe_.text},
                     {"recipe_path", recipe_.where},
                     {"models", models},
                     {"options",
                      {{"allow_nonfinite", request_.allow_nonfinite},
                       {"missing", MissingName(request_.missing)},
                       {"form", OutputFormJson(request_.form)},
                       {"memory_bytes", plan_.options.memory_bytes},
                       {"threads", plan_.options.threads}}},
                     {"nonfinite_tensors", result.nonfinite_tensors},
                     {"paths", merge_->paths},
                     {"warnings", warnings_},
                     {"ledger", LedgerJson(ledger_)},
                     {"host", host.data()},
                     {"unix_time", static_cast<int64_t>(std::time(nullptr))},
                     {"seconds", watch.Seconds()}};
    if (!stage_key_.empty()) envelope["stage"] = StageRecordJson(stage_key_, plan_, staging.folder());
    return envelope;
  }

  // --- replay
  // -----------------------------------------------------------------------------------------------

  // The plan knows what some of its reads must give.
  Result<void> CheckAgainstPlan(size_t tensor, const TensorRecord& record) const {
    const auto& expected = plan_.expected[tensor];
    for (size_t s = 0; s < expected.size(); ++s) {
      if (expected[s].empty() || expected[s] == record.sources[s]) continue;
      const TensorSource& source = merge_->tensors[tensor].sources[s];
      const ResolvedModel& model = merge_->models[source.model];
      return Fail(Code::kInvalidInput,
                  Format("{}: the input '{}' changed since it was analysed: tensor '{}' has other bytes",
                         model.path, model.name, EntryOf(*merge_, source).name));
    }
    return {};
  }

  Result<void> CheckRecord(size_t tensor, const TensorRecord& record) const {
    MP_TRY(CheckAgainstPlan(tensor, record));
    if (expected_ == nullptr) return {};
    const ResolvedTensor& resolved = merge_->tensors[tensor];
    const auto found = expected_->records.find(resolved.name);
    if (found == expected_->records.end())
      return Fail(Code::kInvalidInput, Format("tensor '{}' is not in the manifest", resolved.name));
    for (size_t s = 0; s < record.sources.size(); ++s) {
      const ResolvedModel& model = merge_->models[resolved.sources[s].model];
      if (s < found->second.sources.size() && record.sources[s] == found->second.sources[s]) continue;
      return Fail(
          Code::kInvalidInput,
          Format("{}: the input '{}' changed since the manifest was written: tensor '{}' has other bytes",
                 model.path, model.name, EntryOf(*merge_, resolved.sources[s]).name));
    }
    if (record.digest != found->second.digest)
      return Fail(
          Code::kInternal,
          Format("tensor '{}' came out different from the same inputs; this is a bug", resolved.name));
    return {};
  }

  // Files beside the weights are the donor's, or made of them.
  Result<void> CheckFiles(const std::map<std::string, FileRecord>& files) const {
    if (expected_ == nullptr) return {};
    std::map<std::string, std::string> found;
    for (const auto& [name, file] : files)
      found[name] = file.digest;
    std::vector<std::pair<std::string, std::string>> others;
    std::set_symmetric_difference(found.begin(), found.end(), expected_->files.begin(),
                                  expected_->files.end(), std::back_inserter(others));
    if (others.empty()) return {};
    const ResolvedModel& donor = merge_->models[merge_->donor];
    return Fail(
        Code::kInvalidInput,
        Format("{}: the input '{}' changed since the manifest was written: its file {} is not what it was",
               donor.path, donor.name, others.front().first));
  }

  Result<void> CheckRoot(const std::string& root_digest) const {
    if (expected_ == nullptr || root_digest == expected_->root_digest) return {};
    return Fail(Code::kDifference,
                Format("the manifest names the root digest {} but the same inputs give {}; was it changed?",
                       expected_->root_digest.substr(0, 16), root_digest.substr(0, 16)));
  }

  const MergeRequest& request_;
  const Expectation* expected_;
  std::string stage_key_;
  RecipeText recipe_;
  std::shared_ptr<Ledger> shared_ledger_;
  Ledger& ledger_;
  Plan plan_;
  std::shared_ptr<const ResolvedMerge> merge_;
  const kernels::Kernels* kernels_ = nullptr;
  std::unique_ptr<Journal> journal_;
  std::vector<std::string> warnings_;
  bool resumed_ = false;
};

Expectation ExpectationFrom(const Json& manifest) {
  Expectation expected{
      .records = TensorRecords(manifest), .files = {}, .root_digest = manifest.at("root_digest")};
  for (const auto& [name, file] : manifest.at("core").at("files").items())
    expected.files[name] = file.at("digest");
  return expected;
}

Report ReportOf(MergeOutcome outcome) {
  return {JsonText(outcome.json), std::move(outcome.text), std::move(outcome.warnings)};
}

SavedDecision DecisionFrom(const Json& manifest) {
  const Json& core = manifest.at("core");
  SavedDecision saved{.budget = core.at("budget"),
                      .tensors = {},
                      .paths = manifest.at("envelope").at("paths"),
                      .header_digests = {},
                      .plan_digest = core.at("plan_digest"),
                      .origin = "the manifest was written"};
  for (const Json& input : core.at("inputs"))
    saved.header_digests.push_back(input.at("header_digest"));
  for (const Json& tensor : core.at("tensors"))
    saved.tensors[tensor.at("name")] = tensor.at("decision");
  return saved;
}

}  // namespace

Result<MergeOutcome> ExecuteMerge(const MergeRequest& request, Planned planned, const Expectation* expected,
                                  const std::string& stage_key) {
  return MergeRun(request, std::move(planned), expected, stage_key).Execute();
}

Result<Report> Merge(const MergeRequest& request) {
  auto recipe = MP_TRY(LoadRecipe(request));
  auto documents = SplitDocuments(recipe.text);
  if (documents.size() > 1 || request.output.empty())
    return MergeStages(request, recipe.where, std::move(documents));
  Planned planned = MP_TRY(PlanRequest(request, std::move(recipe), nullptr));
  return ReportOf(MP_TRY(ExecuteMerge(request, std::move(planned), nullptr, "")));
}

Result<Report> PlanMerge(const MergeRequest& request) {
  auto recipe = MP_TRY(LoadRecipe(request));
  auto documents = SplitDocuments(recipe.text);
  if (documents.size() > 1) return PlanStages(request, recipe.where, std::move(documents));
  const MergeRun run(request, MP_TRY(PlanRequest(request, std::move(recipe), nullptr)), nullptr);
  if (!request.output.empty()) MP_TRY(run.CheckOutput());
  if (!request.plan_output.empty()) MP_TRY(SavePlan(request.plan_output, run.plan(), run.recipe(), request));
  Json json = PlanReportJson(run.plan(), run.ledger(), run.warnings());
  std::string text = PlanReportText(run.plan());
  if (request.explain_parameters) AddParameterReport(*run.plan().merge, json, text);
  return Report{JsonText(json), std::move(text), run.warnings()};
}

Result<Report> RunPlan(const std::string& plan_path, const MergeRequest& request) {
  SavedPlan saved = MP_TRY(LoadPlan(plan_path));
  MergeRequest again = saved.request;
  again.output = request.output;
  again.force = request.force;
  again.resume = request.resume;
  again.run = request.run;
  again.run.memory_bytes = saved.memory_bytes;
  Planned planned = MP_TRY(PlanRequest(again, saved.recipe, &saved.decision));
  MP_TRY(CheckStamps(saved, planned.merge()));
  planned.plan.expected = saved.Expected(planned.merge());
  return ReportOf(MP_TRY(ExecuteMerge(again, std::move(planned), nullptr, "")));
}

Result<Report> Replay(const std::string& manifest_folder, const MergeRequest& request) {
  const Json manifest = MP_TRY(ReadManifest(manifest_folder));
  const Json& core = manifest["core"];
  const Json& envelope = manifest["envelope"];
  MergeRequest again = request;
  again.block_bytes = core.at("block_bytes");
  again.seed = core.at("seed");
  again.allow_nonfinite = envelope.at("options").at("allow_nonfinite");
  again.missing = MP_TRY(ParseMissing(envelope.at("options").at("missing")));
  again.form = OutputFormFrom(envelope.at("options").at("form"));
  const SavedDecision saved = DecisionFrom(manifest);
  // Under a budget the memory decides what fits into it.
  if (saved.HasBudget()) again.run.memory_bytes = envelope.at("options").at("memory_bytes");
  if (core.at("version") != MERGEPIPE_VERSION) {
    return Fail(Code::kUnsupported,
                Format("{}: was made by version {}, this is {}; replay needs the same version",
                       manifest_folder, core.at("version").get<std::string>(), MERGEPIPE_VERSION));
  }
  const Expectation expected = ExpectationFrom(manifest);
  Planned planned =
      MP_TRY(PlanRequest(again, {envelope.at("recipe"), envelope.at("recipe_path"), 1, {}}, &saved));
  return ReportOf(MP_TRY(ExecuteMerge(again, std::move(planned), &expected, "")));
}

}  // namespace mergepipe
