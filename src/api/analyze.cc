#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "api/open_model.h"
#include "api/session.h"
#include "base/text.h"
#include "base/try.h"
#include "catalog/catalog.h"
#include "executor/analyze_scan.h"
#include "mergepipe/mergepipe.h"
#include "methods/task_vectors.h"
#include "planner/plan.h"
#include "report/analyze_report.h"

namespace mergepipe {
namespace {

// Findings go to the catalog in transactions of so much, or after so long.
constexpr size_t kBatchFindings = 16;
constexpr uint64_t kBatchBytes = 4u << 20;
constexpr double kBatchSeconds = 0.5;

// What a finding takes in memory, roughly.
uint64_t BytesOf(const Finding& finding) {
  if (finding.base_columns) return finding.base_columns->energy.size() * (sizeof(double) + sizeof(Digest128));
  if (!finding.knowledge) return 0;
  const BlockColumns& columns = finding.knowledge->blocks;
  constexpr uint64_t kBlockBytes = sizeof(double) + 3 * sizeof(uint32_t) + sizeof(Digest128) +
                                   kOctaves * sizeof(uint32_t) + kSketchBuckets;
  return columns.blocks() * kBlockBytes +
         finding.knowledge->histogram.size() * sizeof(std::pair<uint32_t, uint64_t>);
}

// A checkpoint of the request, and what the catalog had of it before.
struct Member {
  std::unique_ptr<Checkpoint> checkpoint;
  std::string stamps;
  std::map<std::string, StoredFinding> stored;
  AnalysedModel report;
};

class AnalysisRun {
 public:
  explicit AnalysisRun(const AnalyzeRequest& request) : request_(request) {}

  Result<Report> Run() {
    MP_TRY(CheckRequest());
    MP_TRY(OpenAll());
    catalog_ = MP_TRY(Catalog::OpenForWriting(CatalogPath(request_.catalog)));
    MP_TRY(LookUp());
    MP_TRY(Scan());
    MP_TRY(FinishAll());
    return Conclude();
  }

 private:
  Result<void> CheckRequest() const {
    const uint64_t block = request_.block_bytes;
    if (block < kLeafBytes || block > kMaxBlockBytes || (block & (block - 1)) != 0)
      return Fail(Code::kUsage, Format("--block-size {} is no power of two from 16KiB to 64MiB", block));
    if (request_.experts.empty()) return Fail(Code::kUsage, "there is no expert to analyse");
    return {};
  }

  Result<Member> Open(const std::string& path) {
    Member member;
    member.checkpoint = MP_TRY(OpenModel(path, ledger_));
    if (WaitUntilSettled(*member.checkpoint)) member.checkpoint = MP_TRY(OpenModel(path, ledger_));
    member.stamps = StampKey(*member.checkpoint);
    member.report.model = path;
    member.report.tensors = member.checkpoint->tensors().size();
    return member;
  }

  Result<void> OpenAll() {
    base_ = MP_TRY(Open(request_.base));
    std::set<std::string> seen;
    for (const std::string& path : request_.experts) {
      Member expert = MP_TRY(Open(path));
      MP_TRY(CheckExpert(expert));
      if (!seen.insert(expert.stamps).second) continue;  // named twice
      experts_.push_back(std::move(expert));
    }
    return {};
  }

  Result<void> CheckExpert(const Member& expert) const {
    if (expert.stamps == base_.stamps)
      return Fail(Code::kUsage,
                  Format("{}: is the base itself, so there is nothing to analyse", expert.report.model));
    for (const auto& [name, place] : expert.checkpoint->tensors()) {
      if (IsComparable(expert.checkpoint->entry(place), base_.checkpoint->Find(name))) return {};
    }
    return Fail(Code::kInvalidInput, Format("{}: has no tensor of floats in common with {} (by name and "
                                            "shape); is it the base of this expert?",
                                            expert.report.model, request_.base));
  }

  Result<void> LookUp() {
    for (Member* member : Members()) {
      if (request_.force) MP_TRY(catalog_->ForgetStamps(member->stamps));
      MP_TRY(catalog_->Begin(*member->checkpoint));
    }
    base_.stored = MP_TRY(catalog_->Stored(base_.stamps, "", request_.block_bytes));
    for (Member& expert : experts_)
      expert.stored = MP_TRY(catalog_->Stored(expert.stamps, base_.stamps, request_.block_bytes));
    return {};
  }

  std::vector<Member*> Members() {
    std::vector<Member*> members = {&base_};
    for (Member& expert : experts_)
      members.push_back(&expert);
    return members;
  }

  // What the catalog does not have, tensor by tensor.
  AnalyzeJob MakeJob() {
    AnalyzeJob job{.base = {base_.checkpoint.get(), base_.stamps},
                   .experts = {},
                   .block_bytes = request_.block_bytes,
                   .tensors = {}};
    std::map<std::string, TensorWish> wishes;
    for (const auto& [name, place] : base_.checkpoint->tensors()) {
      const auto stored = base_.stored.find(name);
      const bool floats = IsMergeable(base_.checkpoint->entry(place).dtype);
      const bool known = stored != base_.stored.end() && (stored->second.has_columns || !floats);
      base_.report.reused_tensors += known ? 1 : 0;
      if (!known) wishes[name].base = true;
    }
    for (size_t e = 0; e < experts_.size(); ++e) {
      job.experts.push_back({experts_[e].checkpoint.get(), experts_[e].stamps});
      for (const auto& [name, place] : experts_[e].checkpoint->tensors())
        AddExpertWish(e, experts_[e].checkpoint->entry(place), wishes);
    }
    for (auto& [name, wish] : wishes) {
      wish.name = name;
      job.tensors.push_back(std::move(wish));
    }
    return job;
  }

  void AddExpertWish(size_t number, const TensorEntry& entry, std::map<std::string, TensorWish>& wishes) {
    Member& expert = experts_[number];
    const auto stored = expert.stored.find(entry.name);
    const bool compared = IsComparable(entry, base_.checkpoint->Find(entry.name));
    const bool known = stored != expert.stored.end() && (stored->second.has_columns || !compared);
    std::vector<uint64_t> kept;
    if (compared) kept = MissingThresholds(entry.elements, known ? &stored->second : nullptr);
    const bool complete = known && kept.empty();
    expert.report.reused_tensors += complete ? 1 : 0;
    if (!complete) wishes[entry.name].experts.push_back({.expert = number, .kept = std::move(kept)});
  }

  // The counts that the densities mean for a tensor, less those whose thresholds are stored.
  std::vector<uint64_t> MissingThresholds(uint64_t elements, const StoredFinding* stored) const {
    std::set<uint64_t> kept;
    if (stored != nullptr && !stored->is_finite) return {};
    for (const double density : request_.densities) {
      const KeepRule rule =
          KeepLargest({.elements = elements, .base_input = {}, .random_streams = {}}, density);
      if (rule.kind == KeepRule::Kind::kLargest && rule.count < elements) kept.insert(rule.count);
    }
    for (const uint64_t known : stored != nullptr ? stored->kept : std::vector<uint64_t>{})
      kept.erase(known);
    return {kept.begin(), kept.end()};
  }

  Result<void> Scan() {
    const kernels::Kernels* kernels = MP_TRY(KernelsFromEnvironment());
    const AnalyzeJob job = MakeJob();
    ProgressCounters progress;
    const ProgressReporter reporter(request_.run, progress);
    const ScanLimits limits{.threads = ThreadsOf(request_.run),
                            .memory_bytes = MemoryOf(request_.run),
                            .stop_signal = request_.run.stop_signal};
    auto done = ScanForCatalog(job, *kernels, limits, ledger_, progress,
                               [this](std::vector<Finding> findings) { return Take(std::move(findings)); });
    for (const Member* member : Members())
      MP_TRY(CheckUnchanged(*member->checkpoint));
    // What is finished is worth keeping, whatever stopped the rest.
    auto flushed = Flush();
    if (!done) return Fail(KeptUntilNow(std::move(done).error()));
    return flushed;
  }

  Error KeptUntilNow(Error error) const {
    if (error.code != Code::kUsage && taken_ > 0)
      error.message += Format("; {} finished tensors are kept in {}, the same command goes on from there",
                              taken_, catalog_->path());
    return error;
  }

  Result<void> Take(std::vector<Finding> findings) {
    for (Finding& finding : findings) {
      if (finding.has_columns && !finding.base_columns && !finding.knowledge)
        warnings_.push_back(Format(
            "tensor '{}' of {} has values that are NaN or infinite, or deltas beyond float32; nothing is "
            "known of it",
            finding.name, NameOf(finding.checkpoint)));
      pending_bytes_ += BytesOf(finding);
      pending_.push_back(std::move(finding));
    }
    const bool full = pending_.size() >= kBatchFindings || pending_bytes_ >= kBatchBytes;
    if (!full && since_flush_.Seconds() < kBatchSeconds) return {};
    return Flush();
  }

  std::string NameOf(const std::string& stamps) {
    for (const Member* member : Members()) {
      if (member->stamps == stamps) return member->report.model;
    }
    return "";
  }

  Result<void> Flush() {
    if (!pending_.empty()) MP_TRY(catalog_->Store(pending_));
    taken_ += pending_.size();
    pending_.clear();
    pending_bytes_ = 0;
    since_flush_ = Stopwatch();
    return {};
  }

  Result<void> FinishAll() {
    for (Member* member : Members()) {
      const KnownCheckpoint known =
          MP_TRY(catalog_->Finish(*member->checkpoint, *base_.checkpoint, request_.block_bytes));
      member->report.content = known.content;
      const size_t account = member->checkpoint->account();
      member->report.read_bytes =
          ledger_.Read(account, Purpose::kBaseData) + ledger_.Read(account, Purpose::kExpertData);
    }
    return {};
  }

  Result<Report> Conclude() {
    AnalyzeFacts facts{.base = base_.report,
                       .experts = {},
                       .block_bytes = request_.block_bytes,
                       .densities = request_.densities,
                       .catalog = catalog_->path(),
                       .seconds = watch_.Seconds(),
                       .peak_memory_bytes = PeakMemoryBytes(),
                       .warnings = warnings_};
    catalog_.reset();  // moves what it wrote into the one file
    facts.catalog_bytes = CatalogFileBytes(facts.catalog);
    for (const Member& expert : experts_)
      facts.experts.push_back(expert.report);
    return Report{JsonText(AnalyzeReportJson(facts, ledger_)), AnalyzeReportText(facts), warnings_};
  }

  const AnalyzeRequest& request_;
  Stopwatch watch_;
  Ledger ledger_;
  Member base_;
  std::vector<Member> experts_;
  std::unique_ptr<Catalog> catalog_;
  std::vector<Finding> pending_;
  uint64_t pending_bytes_ = 0;
  Stopwatch since_flush_;
  size_t taken_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace

Result<Report> Analyze(const AnalyzeRequest& request) {
  return AnalysisRun(request).Run();
}

}  // namespace mergepipe
