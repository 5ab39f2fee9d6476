#include "api/chain.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "api/merge_run.h"
#include "api/session.h"
#include "api/stage_reuse.h"
#include "base/text.h"
#include "base/try.h"
#include "catalog/identity.h"
#include "planner/blocks.h"
#include "planner/budget.h"
#include "planner/choose.h"
#include "recipe/stage_order.h"
#include "report/merge_report.h"
#include "report/parameter_report.h"
#include "txn/side_files.h"
#include "txn/staging.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxStages = 1000;

/// One recipe of the file, and what is known of its merge before any data is read.
struct Stage {
  RecipeDocument document;
  Recipe recipe;
  std::string label;   // for messages
  std::string output;  // absolute
  std::vector<size_t> needs;
  bool has_fault = false;

  MergeRequest request;
  Plan plan;  // of a full read: its inputs may not exist yet
  Budget budget;
  std::shared_ptr<Ledger> ledger;
  std::vector<std::string> warnings;
  std::vector<std::string> inputs;   // absolute, stages left out
  std::vector<std::string> checked;  // by model: the state that was checked
  std::shared_ptr<const PlannedCheckpoint> planned;
  std::string key;
  bool reused = false;
};

class Chain {
 public:
  Chain(const MergeRequest& request, std::string where)
      : request_(request), where_(std::move(where)), warnings_(request.remarks) {}

  // Everything that can be checked without data. All faults at once.
  Result<void> Prepare(std::vector<RecipeDocument> documents, bool makes_output) {
    MP_TRY(CheckRequest(documents.size()));
    MP_TRY(Parse(std::move(documents)));
    MP_TRY(Order(makes_output));
    for (const size_t s : order_)
      DraftStage(s);
    if (!faults_.empty()) return Verdict();
    ShareBudget();
    for (const size_t s : order_) {
      CheckBudget(stages_[s]);
      stages_[s].key = KeyOf(stages_[s]);
    }
    if (makes_output) CheckOutputs();
    return Verdict();
  }

  Result<Report> Merge() {
    const Stopwatch watch;
    ForgetPlans();
    Json reports = Json::array();
    std::string text;
    for (const size_t s : order_) {
      auto outcome = MP_TRY(InStage(stages_[s], MergeStage(s)));
      reports.push_back(std::move(outcome.json));
      text += outcome.text;
    }
    const Json& result = reports.back();
    const Json report = {{"output", stages_[result_].output},
                         {"stages", reports},
                         {"plan_digest", result.at("plan_digest")},
                         {"root_digest", result.at("root_digest")},
                         {"seconds", watch.Seconds()},
                         {"warnings", warnings_}};
    return Report{JsonText(report), text, warnings_};
  }

  Result<Report> Plan() {
    Json reports = Json::array();
    std::string text;
    for (const size_t s : order_) {
      Stage& stage = stages_[s];
      MP_TRY(InStage(stage, ChooseWherePossible(stage)));
      Json report = PlanReportJson(stage.plan, *stage.ledger, stage.warnings);
      AddStageFields(stage, report);
      std::string details = PlanReportText(stage.plan);
      if (request_.explain_parameters) AddParameterReport(*stage.plan.merge, report, details);
      reports.push_back(std::move(report));
      text += Format("{}== {} → {}{}\n\n{}", text.empty() ? "" : "\n", stage.label, stage.output,
                     stage.reused ? ": is there and up to date, nothing will be read" : "", details);
      TakeWarnings(stage, stage.warnings);
    }
    return Report{JsonText({{"stages", reports}, {"warnings", warnings_}}), text, warnings_};
  }

 private:
  Result<void> CheckRequest(size_t stages) const {
    if (stages == 0) return Fail(Code::kUsage, Format("{}: the recipe is empty", where_));
    if (stages > kMaxStages)
      return Fail(Code::kUsage, Format("{}: holds {} recipes; {} are the most", where_, stages, kMaxStages));
    if (!request_.plan_output.empty())
      return Fail(Code::kUnsupported,
                  Format("{}: a plan is of one recipe, but this file holds {}; save the plan of one "
                         "when the results that it needs are there",
                         where_, stages));
    if (request_.max_deviation)
      return Fail(
          Code::kUnsupported,
          Format(
              "{}: --max-deviation needs models that are analysed, which the result of an earlier recipe of "
              "the same file is not; give --budget, or merge the recipes one by one",
              where_));
    return {};
  }

  Result<void> Parse(std::vector<RecipeDocument> documents) {
    for (RecipeDocument& document : documents) {
      auto recipe = ParseRecipe(document.text, where_, document.first_line);
      if (!recipe) {
        AddFaults(recipe.error(), "");
        continue;
      }
      Stage& stage = stages_.emplace_back();
      stage.document = std::move(document);
      stage.recipe = std::move(*recipe);
    }
    return Verdict();
  }

  Result<void> Order(bool makes_output) {
    std::vector<Recipe> recipes;
    for (const Stage& stage : stages_)
      recipes.push_back(stage.recipe);
    StageOrder found = MP_TRY(OrderStages(recipes));
    order_ = std::move(found.order);
    result_ = found.result;
    // The result comes last, so that it is there when all that was asked for is.
    order_.erase(std::find(order_.begin(), order_.end(), result_));
    order_.push_back(result_);
    const std::string folder = IntermediateFolder();
    for (size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = stages_[s];
      stage.needs = std::move(found.needs[s]);
      stage.label = stage.recipe.name.empty() ? "the result" : Format("stage '{}'", stage.recipe.name);
      MP_TRY(CheckName(stage));
      stage.output = (fs::path(folder) / stage.recipe.name).string();
      if (s == result_ && !request_.output.empty()) stage.output = Absolute(request_.output);
    }
    const bool has_place = !request_.output.empty() ||
                           (!request_.intermediate_dir.empty() && !stages_[result_].recipe.name.empty());
    if (!has_place && makes_output)
      return Fail(Code::kUsage, Format("{}: OUT is missing; name the folder to make", where_));
    if (!has_place) stages_[result_].output = "OUT";
    return {};
  }

  Result<void> CheckName(const Stage& stage) const {
    const std::string& name = stage.recipe.name;
    if (name.find('/') == std::string::npos && name.find('\0') == std::string::npos && name != "." &&
        name != "..")
      return {};
    return Fail(Code::kUsage,
                Format("{}:{}:{}: the name '{}' is no name of a folder: it is '.' or '..', or holds a '/'",
                       where_, stage.recipe.name_at.line, stage.recipe.name_at.column, name));
  }

  // Beside the output: on the same disk, and found again by the next run. Not inside it, since the output
  // appears in one step when all is done.
  std::string IntermediateFolder() const {
    if (!request_.intermediate_dir.empty()) return Absolute(request_.intermediate_dir);
    std::string output = Absolute(request_.output.empty() ? "OUT" : request_.output);
    while (output.size() > 1 && output.back() == '/')
      output.pop_back();
    return output + ".stages";
  }

  static std::string Absolute(const std::string& path) {
    std::error_code error;
    return fs::absolute(path, error).lexically_normal().string();
  }

  RecipeText TextOf(const Stage& stage, bool exists) const {
    RecipeText text{stage.document.text, where_, stage.document.first_line, {}};
    for (const size_t n : stage.needs) {
      const Stage& needed = stages_[n];
      text.stages[needed.recipe.name] = {needed.output, exists ? nullptr : needed.planned, needed.has_fault};
    }
    return text;
  }

  // Resolves one stage on the headers that the earlier ones will have.
  void DraftStage(size_t number) {
    Stage& stage = stages_[number];
    stage.request = request_;
    stage.request.output = stage.output;
    stage.request.remarks.clear();  // they are of the whole file
    auto draft = DraftRequest(stage.request, TextOf(stage, /*exists=*/false), /*under_budget=*/false);
    auto planned = draft ? PlanOutput(draft->plan, stage.output) : Fail(draft.error());
    if (!planned) {
      stage.has_fault = true;
      return AddFaults(planned.error(), stage.label);
    }
    stage.planned = std::make_shared<const PlannedCheckpoint>(std::move(*planned));
    stage.plan = std::move(draft->plan);
    stage.budget = draft->budget;
    stage.ledger = draft->ledger;
    stage.warnings = draft->warnings;
    for (const ResolvedModel& model : stage.plan.merge->models) {
      if (!model.checkpoint->is_planned()) stage.inputs.push_back(model.path);
    }
  }

  // A size that was asked for is one for all stages together, and each gets the share that it has in the full
  // read. A share is one of each stage, and what a recipe says for itself holds for it.
  void ShareBudget() {
    const auto asked = request_.budget.empty() ? Result<Budget>(Budget{}) : ParseBudget(request_.budget);
    if (!asked || asked->kind != Budget::Kind::kBytes) return;
    uint64_t whole = 0;
    for (const Stage& stage : stages_)
      whole += stage.plan.costs.full_expert_bytes;
    uint64_t left = asked->bytes;
    for (const size_t s : order_) {
      const uint64_t full = stages_[s].plan.costs.full_expert_bytes;
      const double part = whole > 0 ? static_cast<double>(full) / static_cast<double>(whole) : 0;
      const uint64_t share =
          asked->bytes >= whole ? full : static_cast<uint64_t>(static_cast<double>(asked->bytes) * part);
      const uint64_t bytes = s == result_ ? left : std::min(left, share);
      left -= bytes;
      stages_[s].budget.bytes = bytes;
      stages_[s].request.budget = std::to_string(bytes);
    }
  }

  void CheckBudget(Stage& stage) {
    const auto bytes = stage.budget.Bytes(stage.plan.costs.full_expert_bytes);
    if (!bytes || *bytes >= stage.plan.costs.full_expert_bytes) return;
    const auto fits = CheckFits(stage.plan, *bytes);
    if (!fits) AddFaults(fits.error(), stage.label);
  }

  std::string KeyOf(Stage& stage) const {
    std::vector<std::string> headers, input_keys;
    for (const ResolvedModel& model : stage.plan.merge->models) {
      headers.push_back(model.checkpoint->HeaderDigest());
      std::string& key = input_keys.emplace_back();
      if (model.checkpoint->is_planned()) key = StageAt(model.path).key;
    }
    SealPlan(stage.plan, headers);
    const Budget& budget = stage.budget;
    const bool limited = budget.kind != Budget::Kind::kNone;
    const std::string choices =
        Format("{} {} {} {} {} {}", static_cast<int>(budget.kind), budget.bytes, budget.percent,
               PolicyName(budget.policy), limited ? stage.plan.options.memory_bytes : 0,
               stage.request.allow_nonfinite);
    return StageKey(stage.plan, choices, input_keys);
  }

  const Stage& StageAt(const std::string& output) const {
    return *std::find_if(stages_.begin(), stages_.end(), [&](const Stage& s) { return s.output == output; });
  }

  // Which outputs are there already, and whether the others can be made.
  void CheckOutputs() {
    uint64_t earlier_bytes = 0;
    for (const size_t s : order_) {
      Stage& stage = stages_[s];
      const Json manifest = ManifestOfStage(stage.output);
      stage.reused =
          !request_.redo_stages && IsUnchangedStage(stage.output, manifest, stage.key) &&
          std::all_of(stage.needs.begin(), stage.needs.end(), [&](size_t n) { return stages_[n].reused; });
      if (stage.reused) continue;
      // A stage that this program made is a copy of what its recipe says, and may be made anew.
      stage.request.force = request_.force || (s != result_ && !manifest.is_null());
      const auto side_files = EstimateSideFileBytes(stage.plan);
      const uint64_t bytes = stage.plan.costs.write_bytes + (side_files ? *side_files : 0);
      const auto target =
          CheckTarget(stage.output, OthersThan(s), earlier_bytes + bytes, stage.request.force);
      if (!target) AddFaults(target.error(), stage.label);
      if (SharesDisk(stage.output, stages_[result_].output)) earlier_bytes += bytes;
    }
  }

  // Inputs of all stages, and what the other ones make.
  std::vector<std::string> OthersThan(size_t number) const {
    std::vector<std::string> others;
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (s != number) others.push_back(stages_[s].output);
      others.insert(others.end(), stages_[s].inputs.begin(), stages_[s].inputs.end());
    }
    return others;
  }

  static bool SharesDisk(const std::string& a, const std::string& b) {
    const auto device = [](fs::path path) {
      struct stat info {};
      while (::stat(path.c_str(), &info) != 0 && path.has_relative_path())
        path = path.parent_path();
      return info.st_dev;
    };
    return device(a) == device(b);
  }

  // Drafts hold open files and masks; each stage is planned anew when its turn comes.
  void ForgetPlans() {
    for (Stage& stage : stages_) {
      stage.checked = StatesOf(stage, *stage.plan.merge);
      stage.plan = {};
      stage.planned.reset();
      stage.ledger.reset();
    }
  }

  // --- execution
  // ----------------------------------------------------------------------------------------------

  Result<MergeOutcome> MergeStage(size_t number) {
    Stage& stage = stages_[number];
    if (stage.reused) return Reused(stage);
    if (request_.run.stop_signal != nullptr && *request_.run.stop_signal != 0)
      return Fail(Code::kInterrupted,
                  "interrupted; stages that are finished stay, run the same command again");
    Planned planned = MP_TRY(PlanRequest(stage.request, TextOf(stage, /*exists=*/true), nullptr));
    MP_TRY(CheckStillTheSame(stage, planned.merge()));
    auto outcome = MP_TRY(ExecuteMerge(stage.request, std::move(planned), nullptr, stage.key));
    AddStageFields(stage, outcome.json);
    outcome.text = stage.label + ": " + outcome.text;
    TakeWarnings(stage, outcome.warnings);
    return outcome;
  }

  // What was checked is what is merged.
  static Result<void> CheckStillTheSame(const Stage& stage, const ResolvedMerge& now) {
    const std::vector<std::string> states = StatesOf(stage, now);
    for (size_t m = 0; m < states.size(); ++m) {
      if (m < stage.checked.size() && states[m] == stage.checked[m]) continue;
      return Fail(
          Code::kInvalidInput,
          Format("{}: the input '{}' was changed while earlier stages ran; run the same command again",
                 now.models[m].path, now.models[m].name));
    }
    return {};
  }

  // Stages are known by their headers, which are known before they are made; other inputs by their files too.
  static std::vector<std::string> StatesOf(const Stage& stage, const ResolvedMerge& merge) {
    std::vector<std::string> states;
    for (const ResolvedModel& model : merge.models) {
      const bool given =
          std::find(stage.inputs.begin(), stage.inputs.end(), model.path) != stage.inputs.end();
      states.push_back(given ? StampKey(*model.checkpoint) : model.checkpoint->HeaderDigest());
    }
    return states;
  }

  Result<MergeOutcome> Reused(const Stage& stage) const {
    const Json manifest = ManifestOfStage(stage.output);
    if (manifest.is_null())
      return Fail(Code::kInvalidInput,
                  Format("{}: vanished while the merge ran; run the same command again", stage.output));
    MergeOutcome outcome;
    outcome.json = {{"output", stage.output},
                    {"method", manifest.at("core").at("method")},
                    {"plan_digest", manifest.at("core").at("plan_digest")},
                    {"root_digest", manifest.at("root_digest")}};
    AddStageFields(stage, outcome.json);
    outcome.text = Format("{}: {}: is there and up to date, reused\n", stage.label, stage.output);
    return outcome;
  }

  static void AddStageFields(const Stage& stage, Json& report) {
    report["stage"] = stage.recipe.name.empty() ? Json() : Json(stage.recipe.name);
    report["output"] = stage.output;
    report["reused"] = stage.reused;
  }

  // --- planning
  // -----------------------------------------------------------------------------------------------

  // What a budget leaves out is known where all inputs are there.
  Result<void> ChooseWherePossible(Stage& stage) {
    const auto bytes = stage.budget.Bytes(stage.plan.costs.full_expert_bytes);
    const auto& models = stage.plan.merge->models;
    const bool waits = std::any_of(models.begin(), models.end(),
                                   [](const ResolvedModel& model) { return model.checkpoint->is_planned(); });
    if (!waits) {
      Planned planned = MP_TRY(PlanRequest(stage.request, TextOf(stage, false), nullptr));
      stage.plan = std::move(planned.plan);
      stage.ledger = std::move(planned.ledger);
      stage.warnings = std::move(planned.warnings);
    } else if (bytes && *bytes < stage.plan.costs.full_expert_bytes) {
      stage.plan.budget.request = stage.budget;
      stage.plan.budget.bytes = bytes;
      stage.plan.budget.complete = false;
      stage.plan.budget.predicted = {};
      stage.plan.budget.certificate.reset();
      stage.plan.costs.expert_read_bytes = *bytes;
    }
    return {};
  }

  // --- faults and warnings
  // ------------------------------------------------------------------------------------

  void AddFaults(const Error& error, const std::string& label) {
    if (faults_.empty()) code_ = error.code;
    if (error.code != Code::kUnsupported) code_ = error.code;
    const auto add = [&](const std::string& fault) {
      faults_.push_back(label.empty() ? fault : label + ": " + fault);
    };
    if (error.faults.empty()) return add(error.message);
    for (const std::string& fault : error.faults)
      add(fault);
  }

  Result<void> Verdict() const {
    if (faults_.empty()) return {};
    if (faults_.size() == 1) return Fail(code_, faults_.front());
    return Fail(Error{code_, Format("{}: {} faults", where_, faults_.size()), faults_});
  }

  template <typename T>
  static Result<T> InStage(const Stage& stage, Result<T> result) {
    return During(std::move(result), stage.label);
  }

  void TakeWarnings(const Stage& stage, const std::vector<std::string>& warnings) {
    for (const std::string& warning : warnings)
      warnings_.push_back(stage.label + ": " + warning);
  }

  const MergeRequest& request_;
  std::string where_;
  std::vector<Stage> stages_;  // as in the file
  std::vector<size_t> order_;
  size_t result_ = 0;
  std::vector<std::string> faults_, warnings_;
  Code code_ = Code::kUsage;
};

}  // namespace

Result<Report> MergeStages(const MergeRequest& request, const std::string& where,
                           std::vector<RecipeDocument> documents) {
  Chain chain(request, where);
  MP_TRY(chain.Prepare(std::move(documents), /*makes_output=*/true));
  return chain.Merge();
}

Result<Report> PlanStages(const MergeRequest& request, const std::string& where,
                          std::vector<RecipeDocument> documents) {
  Chain chain(request, where);
  MP_TRY(chain.Prepare(std::move(documents), /*makes_output=*/!request.output.empty()));
  return chain.Plan();
}

}  // namespace mergepipe
