#include "api/planning.h"

#include "api/session.h"
#include "base/text.h"
#include "base/try.h"
#include "executor/sample_scan.h"
#include "planner/catalog_evidence.h"
#include "planner/choose.h"
#include "planner/decision.h"

namespace mergepipe {
namespace {

constexpr uint64_t kMaxRecipeBytes = 16u << 20;

Result<void> CheckOptions(const MergeRequest& request) {
  const uint64_t block = request.block_bytes;
  if (block < kLeafBytes || block > kMaxBlockBytes || (block & (block - 1)) != 0)
    return Fail(Code::kUsage, Format("--block-size {} is no power of two from 16KiB to 64MiB", block));
  if (request.max_deviation && !request.budget.empty())
    return Fail(Code::kUsage, "--budget and --max-deviation exclude each other: each decides what is read");
  if (request.max_deviation && !(*request.max_deviation >= 0))
    return Fail(Code::kUsage, Format("--max-deviation {} is below 0", *request.max_deviation));
  return {};
}

// Flags come before what the recipe says.
Result<Budget> BudgetOf(const MergeRequest& request, const Recipe& recipe) {
  Budget budget;
  if (request.max_deviation) {
    budget = {.kind = Budget::Kind::kDeviation,
              .deviation = *request.max_deviation,
              .of_weights = request.deviation_of_weights};
  } else if (!request.budget.empty()) {
    budget = MP_TRY(ParseBudget(request.budget));
  } else if (recipe.budget) {
    auto parsed = ParseBudget(*recipe.budget);
    if (!parsed) return Fail(Code::kUsage, Format("{}: {}", recipe.where, parsed.error().message));
    budget = *parsed;
  }
  if (!request.policy.empty()) budget.policy = MP_TRY(ParsePolicy(request.policy));
  return budget;
}

PlanOptions OptionsOf(const MergeRequest& request) {
  return {.memory_bytes = MemoryOf(request.run),
          .threads = ThreadsOf(request.run),
          .block_bytes = request.block_bytes};
}

std::vector<std::string> Identities(const ResolvedMerge& merge, const Evidence& evidence) {
  std::vector<std::string> identities;
  for (size_t m = 0; m < merge.models.size(); ++m)
    identities.push_back(evidence.Identity(m));
  return identities;
}

bool KnowsSomething(const ResolvedMerge& merge, const Evidence& evidence) {
  for (size_t m = 0; m < merge.models.size(); ++m) {
    if (evidence.Knows(m)) return true;
  }
  return false;
}

void WarnOfUncheckedPairs(const Plan& plan, std::vector<std::string>& warnings) {
  if (plan.checks_pairs) return;
  for (const EqualPair& pair : plan.merge->redundant_heads) {
    warnings.push_back(Format("{}: under this budget it is not checked that '{}' equals '{}'",
                              plan.merge->models[pair.first.model].name,
                              EntryOf(*plan.merge, pair.first).name, EntryOf(*plan.merge, pair.second).name));
  }
}

Result<void> CheckHeaders(const ResolvedMerge& merge, const SavedDecision& saved) {
  for (size_t i = 0; i < merge.models.size(); ++i) {
    const bool same = i < saved.header_digests.size() &&
                      merge.models[i].checkpoint->HeaderDigest() == saved.header_digests[i];
    if (!same)
      return Fail(Code::kInvalidInput, Format("{}: the input '{}' changed since {}: its headers differ",
                                              merge.models[i].path, merge.models[i].name, saved.origin));
  }
  return {};
}

Result<Planned> PlanSaved(const MergeRequest& request, Drafted draft, const SavedDecision& saved) {
  const ResolvedMerge& merge = *draft.merge;
  MP_TRY(CheckHeaders(merge, saved));
  std::vector<Json> decisions;
  for (const ResolvedTensor& tensor : merge.tensors) {
    const auto found = saved.tensors.find(tensor.name);
    if (found == saved.tensors.end())
      return Fail(Code::kInvalidInput,
                  Format("the same recipe makes a tensor '{}' that was not there when {}; were inputs added?",
                         tensor.name, saved.origin));
    decisions.push_back(found->second);
  }
  KnownConstants constants = MP_TRY(ConstantsFrom(merge, decisions));
  Plan plan = MP_TRY(DraftPlan(draft.merge, OptionsOf(request), std::move(constants)));
  MP_TRY(RestoreDecision(saved.budget, decisions, plan));
  SealPlan(plan, plan.identities);
  if (plan.digest != saved.plan_digest)
    return Fail(Code::kInvalidInput,
                Format("the same recipe gives another plan than when {}; were inputs added or removed?",
                       saved.origin));
  WarnOfUncheckedPairs(plan, draft.warnings);
  return Planned{std::move(draft.recipe), std::move(draft.ledger), std::move(plan),
                 std::move(draft.warnings)};
}

Result<Recipe> Resolve(const MergeRequest& request, const SavedDecision* saved, Drafted& draft) {
  MP_TRY(CheckOptions(request));
  const Recipe parsed = MP_TRY(ParseRecipe(draft.recipe.text, draft.recipe.where, draft.recipe.first_line));
  ResolveOptions options{.missing = request.missing,
                         .seed = request.seed,
                         .paths = {},
                         .stages = draft.recipe.stages,
                         .hub_caches = request.hub_caches,
                         .form = request.form};
  options.stand_ins = draft.under_budget || parsed.budget || !request.budget.empty() || request.max_deviation;
  if (saved != nullptr) {
    options.paths = saved->paths;
    options.stand_ins = saved->HasBudget();
  }
  draft.merge = std::make_shared<const ResolvedMerge>(MP_TRY(ResolveRecipe(parsed, options, *draft.ledger)));
  draft.warnings = request.remarks;
  draft.warnings.insert(draft.warnings.end(), draft.merge->warnings.begin(), draft.merge->warnings.end());
  return parsed;
}

Result<void> Consult(const MergeRequest& request, Drafted& draft) {
  draft.catalog = MP_TRY(Catalog::OpenExisting(CatalogPath(request.catalog)));
  if (draft.catalog == nullptr) {
    draft.evidence = std::make_unique<NoEvidence>(*draft.merge);
    return {};
  }
  draft.evidence = MP_TRY(EvidenceFromCatalog(*draft.merge, *draft.catalog, request.block_bytes));
  return {};
}

}  // namespace

Result<RecipeText> LoadRecipe(const MergeRequest& request) {
  if (request.flags) {
    const FlagRecipe& f = *request.flags;
    return RecipeText{
        MP_TRY(RecipeFromFlags(
            {.base = f.base, .method = f.method, .experts = f.experts, .settings = f.settings})),
        "command line",
        1,
        {}};
  }
  auto text = ReadSmallFile(request.recipe_path, kMaxRecipeBytes);
  if (!text) return Fail(Code::kUsage, text.error().message);
  return RecipeText{std::move(*text), request.recipe_path, 1, {}};
}

Result<Drafted> DraftRequest(const MergeRequest& request, RecipeText recipe, bool under_budget) {
  Drafted draft;
  draft.under_budget = under_budget;
  draft.recipe = std::move(recipe);
  const Recipe parsed = MP_TRY(Resolve(request, nullptr, draft));
  draft.budget = MP_TRY(BudgetOf(request, parsed));
  MP_TRY(Consult(request, draft));
  KnownConstants constants = MP_TRY(FindConstants(*draft.merge, *draft.evidence));
  draft.plan = MP_TRY(DraftPlan(draft.merge, OptionsOf(request), std::move(constants)));
  return draft;
}

Result<std::shared_ptr<Evidence>> EvidenceUnder(const Budget& budget, const Drafted& draft,
                                                const RunOptions& run) {
  if (!WantsSamples(draft.plan, budget, *draft.evidence)) return draft.evidence;
  const ScanLimits limits{.threads = ThreadsOf(run), .stop_signal = run.stop_signal};
  const kernels::Kernels* kernels = MP_TRY(KernelsFromEnvironment());
  return std::shared_ptr<Evidence>(MP_TRY(SampleExperts(draft.plan, SampleLimit(draft.plan, budget),
                                                        draft.evidence, *kernels, limits, *draft.ledger)));
}

Result<void> ChooseUnder(const Budget& budget, Evidence& evidence, Plan& plan) {
  const auto bytes = budget.Bytes(plan.costs.full_expert_bytes);
  const bool all = budget.kind == Budget::Kind::kNone || (bytes && *bytes >= plan.costs.full_expert_bytes);
  plan.budget.request = budget;
  plan.budget.bytes = bytes;
  if (all && !KnowsSomething(*plan.merge, evidence)) return {};
  return ChooseReads(plan, budget, evidence);
}

Result<Planned> PlanRequest(const MergeRequest& request, RecipeText recipe, const SavedDecision* saved) {
  if (saved != nullptr) {
    Drafted draft;
    draft.recipe = std::move(recipe);
    MP_TRY(Resolve(request, saved, draft));
    return PlanSaved(request, std::move(draft), *saved);
  }
  Drafted draft = MP_TRY(DraftRequest(request, std::move(recipe), /*under_budget=*/false));
  const auto evidence = MP_TRY(EvidenceUnder(draft.budget, draft, request.run));
  MP_TRY(ChooseUnder(draft.budget, *evidence, draft.plan));
  SealPlan(draft.plan, Identities(*draft.merge, *evidence));
  WarnOfUncheckedPairs(draft.plan, draft.warnings);
  if (draft.budget.kind == Budget::Kind::kDeviation && !draft.merge->method->additive) {
    draft.warnings.push_back(
        Format("{}: the error that the deviation is held against is an estimate, not a bound",
               draft.merge->method->name));
  }
  return Planned{std::move(draft.recipe), std::move(draft.ledger), std::move(draft.plan),
                 std::move(draft.warnings)};
}

}  // namespace mergepipe
