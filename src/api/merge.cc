#include <algorithm>
#include <ctime>
#include <iterator>

#include "api/session.h"
#include "base/text.h"
#include "base/try.h"
#include "executor/engine.h"
#include "executor/equal_check.h"
#include "mergepipe/mergepipe.h"
#include "recipe/resolve.h"
#include "report/merge_report.h"
#include "txn/journal.h"
#include "txn/manifest.h"
#include "txn/side_files.h"
#include "txn/staging.h"

namespace mergepipe {
namespace {

constexpr uint64_t kMaxRecipeBytes = 16u << 20;

// A recipe as text, and how its models are found.
struct RecipeText {
  std::string text;
  std::string where;
};

Result<RecipeText> LoadRecipe(const MergeRequest& request) {
  if (request.flags) {
    const FlagRecipe& f = *request.flags;
    return RecipeText{
        MP_TRY(RecipeFromFlags(
            {.base = f.base, .method = f.method, .experts = f.experts, .settings = f.settings})),
        "command line"};
  }
  auto text = ReadSmallFile(request.recipe_path, kMaxRecipeBytes);
  if (!text) return Fail(Code::kUsage, text.error().message);
  return RecipeText{std::move(*text), request.recipe_path};
}

Result<void> CheckOptions(const MergeRequest& request) {
  const uint64_t block = request.block_bytes;
  if (block < kLeafBytes || block > kMaxBlockBytes || (block & (block - 1)) != 0) {
    return Fail(Code::kUsage, Format("--block-size {} is no power of two from 16KiB to 64MiB", block));
  }
  return {};
}

// What the manifest of an earlier run demands of this one.
struct Expectation {
  std::map<std::string, TensorRecord> records;  // by output tensor
  std::map<std::string, std::string> paths;     // of models, by name
  std::vector<std::string> header_digests;      // by model
  std::map<std::string, std::string> files;     // digests of those beside the weights
  std::string plan_digest;
  std::string root_digest;
};

class MergeRun {
 public:
  MergeRun(const MergeRequest& request, const Expectation* expected)
      : request_(request), expected_(expected) {}

  Result<void> Prepare(RecipeText recipe) {
    MP_TRY(CheckOptions(request_));
    recipe_ = std::move(recipe);
    const Recipe parsed = MP_TRY(ParseRecipe(recipe_.text, recipe_.where));
    ResolveOptions options{.missing_is_base = request_.missing_is_base, .seed = request_.seed, .paths = {}};
    if (expected_ != nullptr) options.paths = expected_->paths;
    merge_ = std::make_shared<const ResolvedMerge>(MP_TRY(ResolveRecipe(parsed, options, ledger_)));
    warnings_ = merge_->warnings;
    if (expected_ != nullptr) MP_TRY(CheckHeaders());
    plan_ = MP_TRY(MakePlan(merge_, {.memory_bytes = MemoryOf(request_.run),
                                     .threads = ThreadsOf(request_.run),
                                     .block_bytes = request_.block_bytes}));
    return {};
  }

  Result<void> CheckOutput() const {
    std::vector<std::string> inputs;
    for (const ResolvedModel& model : merge_->models)
      inputs.push_back(model.path);
    const uint64_t side_files = MP_TRY(EstimateSideFileBytes(plan_));
    return CheckTarget(request_.output, inputs, plan_.costs.write_bytes + side_files, request_.force);
  }

  Result<Report> Execute() {
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
    return Report{JsonText(MergeReportJson(plan_, ledger_, facts)), MergeReportText(plan_, ledger_, facts),
                  warnings_};
  }

  const Plan& plan() const { return plan_; }
  const Ledger& ledger() const { return ledger_; }

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
    MP_TRY(CheckEqualPairs(plan_, ledger_));
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
      NoteDisagreement(merge_->tensors[tensor], record);
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
                                                   .envelope = Envelope(result, watch)},
                                                  *sink));
    MP_TRY(sink->Finish());
    MP_TRY(CheckRoot(root));
    MP_TRY(journal_->Remove());  // last of all: without it nothing can be resumed
    return root;
  }

  // Integers are copied from the base, never averaged; models that disagree on them are worth a word.
  void NoteDisagreement(const ResolvedTensor& tensor, const TensorRecord& record) {
    for (size_t s = 1; s < record.sources.size() && !tensor.merged; ++s) {
      if (record.sources[s] == record.sources[0]) continue;
      warnings_.push_back(
          Format("{}: tensor '{}' ({}) has other values than the base, whose values are copied",
                 merge_->models[tensor.sources[s].model].name, tensor.name, DTypeName(tensor.dtype)));
    }
  }

  Json Envelope(const EngineResult& result, const Stopwatch& watch) const {
    Json models = Json::array();
    for (const ResolvedModel& model : merge_->models)
      models.push_back({{"name", model.name}, {"path", model.path}});
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    return {{"recipe", recipe_.text},
            {"recipe_path", recipe_.where},
            {"models", models},
            {"options",
             {{"allow_nonfinite", request_.allow_nonfinite},
              {"missing_is_base", request_.missing_is_base},
              {"memory_bytes", plan_.options.memory_bytes},
              {"threads", plan_.options.threads}}},
            {"nonfinite_tensors", result.nonfinite_tensors},
            {"paths", merge_->paths},
            {"warnings", warnings_},
            {"ledger", LedgerJson(ledger_)},
            {"host", host.data()},
            {"unix_time", static_cast<int64_t>(std::time(nullptr))},
            {"seconds", watch.Seconds()}};
  }

  // --- replay
  // -----------------------------------------------------------------------------------------------

  Result<void> CheckHeaders() const {
    for (size_t i = 0; i < merge_->models.size(); ++i) {
      const bool same = i < expected_->header_digests.size() &&
                        merge_->models[i].checkpoint->HeaderDigest() == expected_->header_digests[i];
      if (!same)
        return Fail(Code::kInvalidInput,
                    Format("{}: the input '{}' changed since the manifest was written: its headers differ",
                           merge_->models[i].path, merge_->models[i].name));
    }
    return {};
  }

  Result<void> CheckRecord(size_t tensor, const TensorRecord& record) const {
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
  RecipeText recipe_;
  Ledger ledger_;
  std::shared_ptr<const ResolvedMerge> merge_;
  Plan plan_;
  const kernels::Kernels* kernels_ = nullptr;
  std::unique_ptr<Journal> journal_;
  std::vector<std::string> warnings_;
  bool resumed_ = false;
};

Expectation ExpectationFrom(const Json& manifest) {
  Expectation expected{.records = TensorRecords(manifest),
                       .paths = manifest.at("envelope").at("paths"),
                       .header_digests = {},
                       .files = {},
                       .plan_digest = manifest.at("core").at("plan_digest"),
                       .root_digest = manifest.at("root_digest")};
  for (const Json& input : manifest.at("core").at("inputs"))
    expected.header_digests.push_back(input.at("header_digest"));
  for (const auto& [name, file] : manifest.at("core").at("files").items())
    expected.files[name] = file.at("digest");
  return expected;
}

}  // namespace

Result<Report> Merge(const MergeRequest& request) {
  MergeRun run(request, nullptr);
  auto recipe = MP_TRY(LoadRecipe(request));
  MP_TRY(run.Prepare(std::move(recipe)));
  return run.Execute();
}

Result<Report> PlanMerge(const MergeRequest& request) {
  MergeRun run(request, nullptr);
  auto recipe = MP_TRY(LoadRecipe(request));
  MP_TRY(run.Prepare(std::move(recipe)));
  if (!request.output.empty()) MP_TRY(run.CheckOutput());
  return Report{JsonText(PlanReportJson(run.plan(), run.ledger())), PlanReportText(run.plan()),
                run.plan().merge->warnings};
}

Result<Report> Replay(const std::string& manifest_folder, const MergeRequest& request) {
  const Json manifest = MP_TRY(ReadManifest(manifest_folder));
  const Json& core = manifest["core"];
  const Json& envelope = manifest["envelope"];
  MergeRequest again = request;
  again.block_bytes = core.at("block_bytes");
  again.seed = core.at("seed");
  again.allow_nonfinite = envelope.at("options").at("allow_nonfinite");
  again.missing_is_base = envelope.at("options").at("missing_is_base");
  if (core.at("version") != MERGEPIPE_VERSION) {
    return Fail(Code::kUnsupported,
                Format("{}: was made by version {}, this is {}; replay needs the same version",
                       manifest_folder, core.at("version").get<std::string>(), MERGEPIPE_VERSION));
  }
  const Expectation expected = ExpectationFrom(manifest);
  MergeRun run(again, &expected);
  MP_TRY(run.Prepare({envelope.at("recipe"), envelope.at("recipe_path")}));
  if (run.plan().digest != expected.plan_digest)
    return Fail(
        Code::kInvalidInput,
        Format("{}: the same recipe gives another plan now; were inputs added or removed?", manifest_folder));
  return run.Execute();
}

}  // namespace mergepipe
