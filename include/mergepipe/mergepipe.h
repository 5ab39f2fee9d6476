#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mergepipe/result.h"

namespace mergepipe {

/// The library's version, "0.1.0".
const char* Version();
/// How it was built and which kernels run on this processor, one line each.
std::string BuildText();

/// State of a long work, for a progress line.
struct Progress {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
  double seconds = 0;  ///< since the first byte
};

/// What every command takes. Functions of this header never print and never abort; the callback and the flag
/// may be null.
struct RunOptions {
  size_t threads = 0;         ///< that compute at once; 0: as many as the processor has
  uint64_t memory_bytes = 0;  ///< for buffers; 0: the smaller of 2 GiB and a quarter of the RAM
  const std::atomic<int>* stop_signal =
      nullptr;  ///< a signal number other than 0 stops the work at the next item
  std::function<void(const Progress&)> on_progress;  ///< called some times a second from one thread
};

/// What is done about a tensor that only some models have.
enum class MissingTensors {
  kError,         ///< every such tensor is a fault
  kBase,          ///< a model that lacks it counts as equal to the base there
  kIntersection,  ///< it is left out
  kUnion,         ///< those that have it are merged
};
/// Its name: "error", "base", "intersection" or "union".
std::string MissingName(MissingTensors missing);
/// Fails with kUsage for any other name.
Result<MissingTensors> ParseMissing(const std::string& name);

/// How an output is stored, whatever its values are.
struct OutputForm {
  /// Most bytes of weights in one file, 0: all in one; nothing: the base's files where the output has its
  /// tensors, else 5 GB.
  std::optional<uint64_t> shard_bytes;
  bool copies_tokenizer = true;
  bool writes_card = true;
};

/// A merge described by flags instead of YAML.
struct FlagRecipe {
  std::string base;
  std::string method;
  std::vector<std::string> experts;   ///< "PATH" or "PATH:WEIGHT"
  std::vector<std::string> settings;  ///< "key=value"
};

/// What to merge. Either `recipe_path` or `flags` is given.
struct MergeRequest {
  std::string recipe_path;
  std::optional<FlagRecipe> flags;
  std::string output;
  uint64_t block_bytes = 1u << 20;  ///< unit of access: a power of two from 16 KiB to 64 MiB
  uint64_t seed = 0;                ///< of the methods that drop at random
  /// Expert bytes that may be read: "10%" of what a full read fetches, or a size; "": as the recipe says,
  /// else all.
  std::string budget;
  std::string policy;                   ///< in which order blocks are worth reading; "": gram
  std::optional<double> max_deviation;  ///< instead of a budget: predicted error, relative to the update
  bool deviation_of_weights = false;    ///< max_deviation is relative to the weights
  std::string catalog;                  ///< path; "": the user's own, see docs/catalog.md
  std::string plan_output;              ///< PlanMerge: where the plan is saved; "": nowhere
  bool explain_parameters = false;      ///< PlanMerge: also tell what every parameter is for every tensor
  std::string intermediate_dir;         ///< recipes of several stages: where named ones go; "": OUTPUT.stages
  bool redo_stages = false;             ///< also those that are there and that nothing changed for
  bool force = false;                   ///< replace an existing output
  bool resume = false;                  ///< continue an interrupted run
  bool allow_nonfinite = false;         ///< go on where values are NaN or infinite
  MissingTensors missing = MissingTensors::kError;
  OutputForm form;
  std::vector<std::string> hub_caches;  ///< looked in before the usual Hugging Face caches
  std::vector<std::string> remarks;     ///< about the request itself; told before all warnings
  RunOptions run;
};

/// What a command found: one JSON object (documented in docs/cli.md) and a text for people.
struct Report {
  std::string json;
  std::string text;
  std::vector<std::string> warnings;  ///< one line each, in the JSON too
};

/// Executes a recipe and publishes request.output. Fails with kUsage, kInvalidInput, kUnsupported or kNoSpace
/// before anything is published, with kIo, kDiskFull, kTransient or kInterrupted midway.
Result<Report> Merge(const MergeRequest& request);

/// Tells what Merge would read, write and need; saves the plan to request.plan_output. `output` may be empty.
/// Reads headers, the catalog, and under a budget with experts that it does not know the sample that Merge
/// would read.
Result<Report> PlanMerge(const MergeRequest& request);

/// Executes a saved plan into request.output. Only output, force, resume and run of the request are used (of
/// the latter not the memory, which is part of the plan). Fails with kInvalidInput, naming it, when an input
/// has changed.
Result<Report> RunPlan(const std::string& plan_path, const MergeRequest& request);

/// Tells of a saved plan, or of the plan of an output folder, what is read and what is left out, by expert,
/// layer and tensor; with `tensor` why the blocks of that one were taken or left.
Result<Report> Explain(const std::string& plan_or_output, const std::string& tensor);

/// Which budgets to measure. Of `merge` the output, budget, max_deviation, force, resume and allow_nonfinite
/// are not used.
struct SweepRequest {
  MergeRequest merge;
  std::vector<std::string> budgets;  ///< as MergeRequest::budget
};

/// Computes the merge at full read, at each budget and with random blocks at each budget, without writing
/// anything, and tells how far the results are from the full read's. Reads all experts once, samples apart;
/// tensors whose statistics need rounds and that do not fit into the memory once more for each round. A
/// budget below what can not be left out is a warning, unless no other is given. Fails with kUsage,
/// kInvalidInput, kIo, kTransient or kInterrupted.
Result<Report> Sweep(const SweepRequest& request);

/// Lists a checkpoint's tensors, dtypes and shapes, and the health of its files.
Result<Report> Inspect(const std::string& model);

/// Compares two checkpoints tensor by tensor; `a` is the reference. With `base` also relative to the update a
/// − base.
Result<Report> Diff(const std::string& a, const std::string& b, const std::string& base,
                    const RunOptions& options);

/// The outcome of Verify: a difference is no failure to run.
struct VerifyOutcome {
  bool ok = false;
  Report report;
};
/// Re-reads an output and compares it with its manifest.
Result<VerifyOutcome> Verify(const std::string& output, const RunOptions& options);

/// Executes the merge of a manifest again into request.output and demands the same bytes. Only output, force
/// and run of the request are used. Fails with kInvalidInput, naming it, when an input has changed.
Result<Report> Replay(const std::string& manifest_folder, const MergeRequest& request);

/// What to analyse. `catalog` "" is the default: $XDG_CACHE_HOME/mergepipe/catalog.db.
struct AnalyzeRequest {
  std::string base;
  std::vector<std::string> experts;
  std::vector<double> densities;    ///< whose exact thresholds are wanted; 1 and more, 0 and less need none
  uint64_t block_bytes = 1u << 20;  ///< as in MergeRequest
  std::string catalog;
  bool force = false;  ///< read again what is known already
  RunOptions run;
};

/// Fills the catalog: reads base and experts once, whatever is not known yet, and stores statistics of each
/// block. What was stored before an interruption is not read again. Fails with kUsage, kInvalidInput (an
/// input, or a catalog that is damaged, of a newer version or not writable), kIo, kDiskFull, kTransient or
/// kInterrupted.
Result<Report> Analyze(const AnalyzeRequest& request);

/// The checkpoints that the catalog knows. Fails with kInvalidInput where there is no catalog.
Result<Report> CatalogList(const std::string& catalog);
/// What it knows of one: a path, or digits that its content begins with.
Result<Report> CatalogShow(const std::string& model, const std::string& catalog);
/// Removes one.
Result<Report> CatalogForget(const std::string& model, const std::string& catalog);
/// Removes those that lie at none of their paths any longer.
Result<Report> CatalogGc(const std::string& catalog);

/// Reads a byte count ("256MiB", "1.5 GB", "4096"). Fails with kUsage.
Result<uint64_t> ParseByteCount(const std::string& text);

/// An error as one JSON object: {"error": {"kind", "message", "faults"}}.
std::string ErrorJson(const Error& error);

/// A byte count for people: "1.50 MiB".
std::string ByteCountText(uint64_t bytes);

/// Names of the merge methods.
std::vector<std::string> MethodNames();
/// What the records of the merge methods say, all in short or one in full. Fails with kUsage where there is
/// none of that name.
Result<Report> DescribeMethods(const std::string& name);

}  // namespace mergepipe
