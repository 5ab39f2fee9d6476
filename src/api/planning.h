#pragma once

#include <memory>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "format/json.h"
#include "mergepipe/mergepipe.h"
#include "planner/plan.h"

namespace mergepipe {

/// A recipe as text, and where it came from.
struct RecipeText {
  std::string text;
  std::string where;
  int first_line = 1;                        ///< of the text in its file
  std::map<std::string, StageModel> stages;  ///< results of other recipes of the file, by name
};
/// The recipe file of a request, or the recipe that its flags stand for: one document or several.
Result<RecipeText> LoadRecipe(const MergeRequest& request);

/// What was decided earlier, by a saved plan or a manifest, and has to be done again.
struct SavedDecision {
  Json budget;                               ///< planner/decision.h
  std::map<std::string, Json> tensors;       ///< decisions by output tensor
  std::map<std::string, std::string> paths;  ///< of models, by name
  std::vector<std::string> header_digests;   ///< by model
  std::string plan_digest;
  bool HasBudget() const {
    return budget.is_object() && budget.contains("budget_bytes") && budget.at("budget_bytes").is_number();
  }
  std::string origin;  ///< "the plan was made" or "the manifest was written", for messages
};

/// A request with its recipe resolved and its reads planned. Headers, the catalog and samples are read;
/// nothing is written.
struct Planned {
  RecipeText recipe;
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  Plan plan;
  std::vector<std::string> warnings;
  const ResolvedMerge& merge() const { return *plan.merge; }
};

/// Plans a request; `saved` (may be null) is taken as decided, and then no catalog is asked. All faults at
/// once: kUsage for the request, kInvalidInput for checkpoints and catalogs.
Result<Planned> PlanRequest(const MergeRequest& request, RecipeText recipe, const SavedDecision* saved);

/// What a plan is made of before its reads are chosen; for commands that choose several times.
struct Drafted {
  RecipeText recipe;
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  std::shared_ptr<const ResolvedMerge> merge;
  std::unique_ptr<Catalog> catalog;  ///< null where there is none
  std::shared_ptr<Evidence> evidence;
  Plan plan;
  std::vector<std::string> warnings;
  Budget budget;
  bool under_budget = false;
};
/// `under_budget`: it is, whatever the request says.
Result<Drafted> DraftRequest(const MergeRequest& request, RecipeText recipe, bool under_budget);

/// What a merge under this budget knows of its experts: what the draft does, and samples where it would take
/// them.
Result<std::shared_ptr<Evidence>> EvidenceUnder(const Budget& budget, const Drafted& draft,
                                                const RunOptions& run);
/// Chooses what `plan` (the draft's, or a copy of it) reads under a budget.
Result<void> ChooseUnder(const Budget& budget, Evidence& evidence, Plan& plan);

}  // namespace mergepipe
