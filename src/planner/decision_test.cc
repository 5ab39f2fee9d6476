#include "planner/decision.h"

#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "base/try.h"
#include "planner/blocks.h"
#include "planner/choose.h"
#include "support/evidence.h"
#include "support/families.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::FakeEvidence;
using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::Succeeds;
using tests::TempFolder;

/// What is saved of a plan.
struct Saved {
  Json budget;
  std::vector<Json> tensors;
};

Saved Save(const Plan& plan) {
  Saved saved{Json::parse(BudgetJson(plan).dump()), {}};
  for (size_t t = 0; t < plan.tensors.size(); ++t)
    saved.tensors.push_back(Json::parse(TensorDecision(plan, t).dump()));
  return saved;
}

/// A plan that was chosen under a budget, and what may be done with what is saved of it.
class Decided {
 public:
  Decided(const std::string& method, uint32_t seed, double share, bool little_memory = false,
          const std::string& parameters = "{density: 0.3, rescale: true}") {
    tests::WriteFamily(folder_.path(), {.seed = seed, .mixed = true});
    PlanOptions options{.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock};
    const std::string recipe = RecipeOf(method, 3, parameters);
    planned_ = Must(PlanRecipe(folder_.path(), recipe, options));
    if (little_memory) {
      options.memory_bytes = planned_.plan.least_memory_bytes;
      planned_ = Must(PlanRecipe(folder_.path(), recipe, options));
    }
    FakeEvidence evidence = tests::ReckonEvidence(planned_.plan, /*thresholds=*/!little_memory);
    plan = tests::DraftWith(planned_.plan, evidence);
    Must(ChooseReads(plan, {.kind = Budget::Kind::kShare, .percent = share}, evidence));
    Seal(plan);
  }

  Result<Plan> Restore(const Saved& saved) const {
    KnownConstants constants = MP_TRY(ConstantsFrom(*plan.merge, saved.tensors));
    Plan restored = MP_TRY(DraftPlan(plan.merge, plan.options, std::move(constants)));
    MP_TRY(RestoreDecision(saved.budget, saved.tensors, restored));
    Seal(restored);
    return restored;
  }
  size_t Number(const std::string& tensor) const { return planned_.Number(tensor); }

  Plan plan;

 private:
  static void Seal(Plan& plan) {
    SealPlan(plan, std::vector<std::string>(plan.merge->models.size(), "content"));
  }

  TempFolder folder_;
  Planned planned_;
};

void ExpectSame(const Plan& restored, const Plan& plan) {
  EXPECT_EQ(restored.digest, plan.digest);
  EXPECT_EQ(restored.costs.expert_read_bytes, plan.costs.expert_read_bytes);
  EXPECT_EQ(restored.budget.bytes, plan.budget.bytes);
  EXPECT_EQ(restored.budget.lossless_bytes, plan.budget.lossless_bytes);
  EXPECT_EQ(restored.budget.complete, plan.budget.complete);
  EXPECT_EQ(restored.budget.strength, plan.budget.strength);
  EXPECT_EQ(restored.budget.predicted.of_update, plan.budget.predicted.of_update);
  EXPECT_EQ(restored.budget.predicted.of_weights, plan.budget.predicted.of_weights);
  EXPECT_EQ(restored.budget.certificate.has_value(), plan.budget.certificate.has_value());
  EXPECT_EQ(restored.budget.request.policy, plan.budget.request.policy);
  EXPECT_EQ(restored.checks_pairs, plan.checks_pairs);
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    ASSERT_EQ(restored.masks[t].reads_all(), plan.masks[t].reads_all());
    EXPECT_EQ(TensorDecision(restored, t), TensorDecision(plan, t));
    EXPECT_EQ(restored.tensors[t].passes(), plan.tensors[t].passes());
  }
  EXPECT_EQ(BudgetJson(restored), BudgetJson(plan));
}

TEST(Decision, ComesBackFromJsonAsItWas) {
  for (const char* method : {"task_arithmetic", "linear", "ties", "dare_ties"}) {
    for (const double share : {0.0, 10.0, 55.5, 100.0}) {
      const Decided decided(method, 2, share);
      ExpectSame(Must(decided.Restore(Save(decided.plan))), decided.plan);
    }
  }
}

TEST(Decision, ComesBackWherePassesArePaidFor) {
  const Decided decided("ties", 2, 40, /*little_memory=*/true);
  EXPECT_GT(decided.plan.tensors[decided.Number("b.bf16")].passes(), 1u);
  ExpectSame(Must(decided.Restore(Save(decided.plan))), decided.plan);
}

TEST(Decision, HoldsMasksWithSharedBlocksAndConstants) {
  const Decided decided("ties", 2, 55);
  const Saved saved = Save(decided.plan);
  size_t masks = 0, constants = 0;
  for (const Json& tensor : saved.tensors) {
    masks += tensor.contains("mask");
    constants += tensor.contains("constants");
  }
  EXPECT_GT(masks, 0u);
  EXPECT_EQ(constants, 4u) << "every tensor of floats";
}

TEST(Decision, ThresholdsKeepWhetherTheirCutIsKnown) {
  const Decided decided("ties", 2, 100);
  Saved saved = Save(decided.plan);
  const size_t t = decided.Number("b.bf16");
  for (const Json& index : {Json(17), Json()}) {
    saved.tensors[t]["constants"]["thresholds"][1][3] = index;
    const KnownConstants constants = Must(ConstantsFrom(*decided.plan.merge, saved.tensors));
    const auto& cut = constants[t]->thresholds[1].cut_index;
    EXPECT_EQ(cut, index.is_null() ? std::nullopt : std::optional<uint64_t>(17));
    EXPECT_EQ(ConstantsJson(*constants[t]), saved.tensors[t]["constants"]);
  }
}

// --- what does not fit

TEST(Decision, MasksOfAnotherShapeAreRefused) {
  const Decided decided("task_arithmetic", 2, 40);
  const size_t t = decided.Number("b.bf16");
  for (const char* change :
       {R"({"op": "replace", "path": "/mask/block_elements", "value": 4096})",
        R"({"op": "remove", "path": "/mask/rows/0"})",
        R"({"op": "replace", "path": "/mask/rows/1/0", "value": 99})",
        R"({"op": "replace", "path": "/mask", "value": null})",
        R"({"op": "replace", "path": "/mask", "value": []})", R"({"op": "remove", "path": "/reads/0"})",
        R"({"op": "replace", "path": "/reads/0", "value": [1, 2]})",
        R"({"op": "replace", "path": "/reads/0/3", "value": "much"})",
        R"({"op": "replace", "path": "/reads", "value": 5})"}) {
    Saved saved = Save(decided.plan);
    saved.tensors[t] = saved.tensors[t].patch(Json::array({Json::parse(change)}));
    EXPECT_THAT(decided.Restore(saved), FailsWith(Code::kInvalidInput, "")) << change;
  }
}

TEST(Decision, BlocksAreNotHeldByASourceOfAnotherType) {
  const TempFolder folder;
  const auto base = tests::RandomTensor("w", DType::kBF16, {20'000}, 1);
  tests::WriteCheckpoint(folder / "base", {base});
  tests::WriteCheckpoint(folder / "expert1", {tests::Finetuned(base, DType::kBF16, 2, 0.1)});
  tests::WriteCheckpoint(folder / "expert2", {tests::Finetuned(base, DType::kF32, 3, 0.1)});
  tests::WriteCheckpoint(folder / "expert3", {tests::Finetuned(base, DType::kBF16, 4, 0.1)});
  Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("task_arithmetic", 3),
                              {.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock}))
                  .plan;
  const auto restores = [&](size_t source, size_t holder) {
    Plan masked = plan;
    masked.masks[0] = TensorMask(4, 20'000, 8'192);
    for (size_t s = 1; s < 4; ++s)
      masked.masks[0].Set(s, 1, s);
    masked.masks[0].Set(source, 1, holder);
    const Saved saved = Save(masked);
    Plan restored = plan;
    return RestoreDecision(saved.budget, saved.tensors, restored).has_value();
  };
  EXPECT_TRUE(restores(3, 1));
  EXPECT_TRUE(restores(3, 0));
  EXPECT_FALSE(restores(2, 1));
  EXPECT_FALSE(restores(3, 2));
  EXPECT_FALSE(restores(2, 0));
}

TEST(Decision, ConstantsThatDoNotFitTheInputsAreRefused) {
  const Decided decided("ties", 2, 50);
  const size_t t = decided.Number("b.bf16");
  for (const char* change : {R"({"op": "remove", "path": "/constants/thresholds/0"})",
                             R"({"op": "add", "path": "/constants/thresholds/0", "value": [1, 2, 1, null]})",
                             R"({"op": "replace", "path": "/constants/thresholds/0", "value": [1, 2]})",
                             R"({"op": "replace", "path": "/constants/thresholds/0/3", "value": "x"})",
                             R"({"op": "replace", "path": "/constants/thresholds", "value": null})",
                             R"({"op": "replace", "path": "/constants/l1_whole", "value": [1]})",
                             R"({"op": "replace", "path": "/constants/l1_kept", "value": []})",
                             R"({"op": "remove", "path": "/constants/l1_kept"})",
                             R"({"op": "replace", "path": "/constants", "value": 3})"}) {
    Saved saved = Save(decided.plan);
    saved.tensors[t] = saved.tensors[t].patch(Json::array({Json::parse(change)}));
    EXPECT_THAT(decided.Restore(saved), FailsWith(Code::kInvalidInput, "'b.bf16'")) << change;
  }
}

TEST(Decision, ConstantsWhereTheMethodTrimsNothingAreRefused) {
  const Json made_up = {{"thresholds", {{1, 1, 1, nullptr}, {1, 1, 1, nullptr}, {1, 1, 1, nullptr}}},
                        {"l1_whole", Json::array()},
                        {"l1_kept", Json::array()}};
  const Decided plain("task_arithmetic", 2, 50);
  Saved saved = Save(plain.plan);
  saved.tensors[plain.Number("b.bf16")]["constants"] = made_up;
  EXPECT_THAT(plain.Restore(saved), FailsWith(Code::kInvalidInput, "'b.bf16'"));
  saved = Save(plain.plan);
  saved.tensors[plain.Number("a.odd")]["constants"] = made_up;
  EXPECT_THAT(plain.Restore(saved), FailsWith(Code::kInvalidInput, "'a.odd'")) << "a tensor that is copied";
}

// slerp asks for inner products, which no decision holds.
TEST(Decision, ConstantsWithoutTheInnerProductsThatAMethodNeedsAreRefused) {
  const TempFolder folder;
  tests::WriteFamily(folder.path(), {.experts = 1});
  const Planned planned = Must(PlanRecipe(folder.path(), RecipeOf("slerp", 1, "{t: 0.5}", false)));
  const size_t t = planned.Number("b.bf16");
  std::vector<Json> tensors(planned.plan.tensors.size(), Json::object());
  tensors[t]["constants"] = {{"thresholds", {{0, 0, 0, nullptr}, {0, 0, 0, nullptr}}},
                             {"l1_whole", Json::array()},
                             {"l1_kept", Json::array()}};
  EXPECT_THAT(ConstantsFrom(*planned.plan.merge, tensors), FailsWith(Code::kInvalidInput, "'b.bf16'"));
}

TEST(Decision, BudgetsThatCanNotBeReadAreInvalidInputNotUsage) {
  const Decided decided("task_arithmetic", 2, 50);
  for (const char* change :
       {R"({"op": "replace", "path": "/policy", "value": "greedy"})",
        R"({"op": "remove", "path": "/policy"})", R"({"op": "replace", "path": "/policy", "value": 3})",
        R"({"op": "replace", "path": "/budget_bytes", "value": "10%"})",
        R"({"op": "remove", "path": "/budget_bytes"})",
        R"({"op": "replace", "path": "/complete", "value": 1})",
        R"({"op": "replace", "path": "/certificate", "value": {"l2": 1}})",
        R"({"op": "replace", "path": "/predicted_deviation", "value": null})",
        R"({"op": "replace", "path": "/statistics", "value": "rumours"})",
        R"({"op": "replace", "path": "/identities", "value": ["one"]})",
        R"({"op": "replace", "path": "/identities", "value": [1, 2, 3, 4]})",
        R"({"op": "remove", "path": "/identities"})", R"({"op": "remove", "path": "/checks_pairs"})",
        R"({"op": "replace", "path": "/cut_rate", "value": null})"}) {
    Saved saved = Save(decided.plan);
    saved.budget = saved.budget.patch(Json::array({Json::parse(change)}));
    EXPECT_THAT(decided.Restore(saved), FailsWith(Code::kInvalidInput, "")) << change;
  }
  Saved saved = Save(decided.plan);
  saved.budget = nullptr;
  EXPECT_THAT(decided.Restore(saved), FailsWith(Code::kInvalidInput, ""));
}

void Tamper(Json& json, std::mt19937& random) {
  const std::vector<Json> values = {nullptr, -1,     0,    1,    2,  1ull << 63,    1.5,
                                    1e300,   "gram", "10", true, "", Json::array(), Json::object()};
  Json* at = &json;
  while (at->is_structured() && !at->empty() && random() % 8 != 0) {
    auto child = at->begin();
    std::advance(child, static_cast<std::ptrdiff_t>(random() % at->size()));
    at = &*child;
  }
  *at = values[random() % values.size()];
}

TEST(Decision, WhateverWasTamperedWithIsAPlanOrInvalidInput) {
  std::mt19937 random(7);
  for (const char* method : {"ties", "dare_linear", "task_arithmetic"}) {
    const Decided decided(method, 2, 45);
    for (int round = 0; round < 400; ++round) {
      Saved saved = Save(decided.plan);
      for (int changes = 0; changes < 2; ++changes) {
        const size_t t = random() % (saved.tensors.size() + 1);
        Tamper(t == saved.tensors.size() ? saved.budget : saved.tensors[t], random);
      }
      const auto restored = decided.Restore(saved);
      if (!restored) {
        EXPECT_EQ(restored.error().code, Code::kInvalidInput) << saved.budget;
        continue;
      }
      for (size_t t = 0; t < saved.tensors.size(); ++t) {
        if (restored->masks[t].reads_all()) continue;
        EXPECT_EQ(restored->masks[t].blocks(), BlockCount(*restored, t));
      }
    }
  }
}

}  // namespace
}  // namespace mergepipe
