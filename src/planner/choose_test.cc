#include "planner/choose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/text.h"
#include "base/try.h"
#include "planner/block_error.h"
#include "planner/blocks.h"
#include "support/evidence.h"
#include "support/families.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/runs.h"

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

constexpr Policy kPolicies[] = {Policy::kGram, Policy::kNorm, Policy::kUniform, Policy::kFair,
                                Policy::kRandom};

struct Wish {
  std::string method = "task_arithmetic";
  uint32_t seed = 1;
  bool little_memory = false;  ///< so that statistics take passes of their own
  bool thresholds = true;
};

/// A drafted merge of three experts of which everything is known.
class Problem {
 public:
  explicit Problem(const Wish& wish) {
    tests::WriteFamily(folder_.path(), {.seed = wish.seed, .mixed = wish.seed % 2 == 0});
    PlanOptions options{.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock};
    const std::string recipe = RecipeOf(wish.method, 3, "{density: 0.3}");
    planned = Must(PlanRecipe(folder_.path(), recipe, options));
    if (wish.little_memory) {
      options.memory_bytes = planned.plan.least_memory_bytes;
      planned = Must(PlanRecipe(folder_.path(), recipe, options));
    }
    evidence = tests::ReckonEvidence(planned.plan, wish.thresholds);
    draft = tests::DraftWith(planned.plan, evidence);
  }

  Result<Plan> Try(const Budget& budget) {
    Plan plan = draft;
    MP_TRY(ChooseReads(plan, budget, evidence));
    return plan;
  }
  Plan Choose(const Budget& budget) { return Must(Try(budget)); }
  Plan Within(uint64_t bytes, Policy policy = Policy::kGram) {
    return Choose({.kind = Budget::Kind::kBytes, .bytes = bytes, .policy = policy});
  }
  Plan Meeting(double deviation) {
    return Choose({.kind = Budget::Kind::kDeviation, .deviation = deviation});
  }
  uint64_t full() const { return draft.costs.full_expert_bytes; }

  Planned planned;
  FakeEvidence evidence;
  Plan draft;

 private:
  TempFolder folder_;
};

uint64_t MaskedBytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    for (size_t s = 0; s < plan.merge->tensors[t].sources.size(); ++s)
      bytes += ExpertBytes(plan, t, s);
  }
  return bytes;
}

// --- budgets

TEST(ChooseReads, NeverPassesTheBudgetAndSaysWhatItReads) {
  std::mt19937 random(1);
  for (const char* method : {"task_arithmetic", "linear", "ties", "dare_linear", "dare_ties"}) {
    for (uint32_t round = 0; round < 4; ++round) {
      Problem problem(
          {.method = method, .seed = 1 + round, .little_memory = round % 2 == 0, .thresholds = round < 2});
      for (const Policy policy : kPolicies) {
        const uint64_t budget = random() % problem.full();
        const Plan plan = problem.Within(budget, policy);
        EXPECT_LE(plan.costs.expert_read_bytes + plan.budget.sample_bytes, budget)
            << method << " " << PolicyName(policy);
        EXPECT_EQ(plan.costs.expert_read_bytes, MaskedBytes(plan)) << method << " " << PolicyName(policy);
        EXPECT_EQ(plan.costs.full_expert_bytes, problem.full());
        EXPECT_EQ(plan.budget.bytes, budget);
      }
    }
  }
}

TEST(ChooseReads, PassesAreCountedInWhatIsRead) {
  Problem problem({.method = "ties", .little_memory = true, .thresholds = false});
  const size_t t = problem.planned.Number("b.bf16");
  ASSERT_GT(problem.draft.tensors[t].passes(), 1u);
  const Plan plan = problem.Within(problem.full() / 2);
  uint64_t outcomes = 0;
  for (const auto& tensor : plan.budget.sources) {
    for (const SourceOutcome& source : tensor) {
      outcomes += source.read_bytes;
      EXPECT_LE(source.read_bytes + source.lossless_bytes, source.available_bytes);
    }
  }
  EXPECT_EQ(outcomes, plan.costs.expert_read_bytes);
}

TEST(ChooseReads, SamplesAreTakenOffTheBudget) {
  Problem problem({});
  problem.evidence.samples = 20'000;
  problem.evidence.known = Strength::kSampled;
  const Plan plan = problem.Within(200'000);
  EXPECT_EQ(plan.budget.sample_bytes, 20'000u);
  EXPECT_LE(plan.costs.expert_read_bytes, 180'000u);
}

TEST(ChooseReads, StopsAtTheFirstStepThatDoesNotFit) {
  Problem problem({});
  for (const Policy policy : kPolicies) {
    const Plan all = problem.Within(problem.full() - 1, policy);
    const uint64_t worth = all.budget.complete ? all.costs.expert_read_bytes : problem.full();
    EXPECT_TRUE(problem.Within(worth, policy).budget.complete) << "just enough";
    EXPECT_FALSE(problem.Within(worth - 1, policy).budget.complete) << "a byte too little";
  }
}

bool IsWithin(const Plan& small, const Plan& large) {
  for (size_t t = 0; t < small.masks.size(); ++t) {
    const TensorMask &a = small.masks[t], &b = large.masks[t];
    for (size_t s = 1; s < small.merge->tensors[t].sources.size(); ++s) {
      for (size_t k = 0; k < BlockCount(small, t); ++k) {
        if (!a.reads_all() && a.From(s, k) == TensorMask::kOmitted) continue;
        if (a.From(s, k) != b.From(s, k) && !(a.reads_all() || b.reads_all())) return false;
        if (a.reads_all() && !b.reads_all()) return false;
      }
    }
  }
  return true;
}

TEST(ChooseReads, MoreBudgetReadsMoreOfTheSameOrder) {
  for (const char* method : {"task_arithmetic", "ties", "linear"}) {
    for (uint32_t seed = 1; seed <= 2; ++seed) {
      Problem problem({.method = method, .seed = seed});
      for (const Policy policy : kPolicies) {
        Plan before = problem.Within(0, policy);
        for (int tenth = 1; tenth <= 10; ++tenth) {
          const Plan plan = problem.Within(problem.full() * static_cast<uint64_t>(tenth) / 10, policy);
          EXPECT_TRUE(IsWithin(before, plan)) << method << " " << PolicyName(policy) << " " << tenth;
          before = plan;
        }
      }
    }
  }
}

TEST(ChooseReads, OfNothingIsTheReferenceAlone) {
  for (const char* method : {"task_arithmetic", "ties", "linear"}) {
    Problem problem({.method = method});
    const Plan plan = problem.Within(0);
    EXPECT_EQ(plan.costs.expert_read_bytes, 0u);
    EXPECT_FALSE(plan.budget.complete);
    EXPECT_NEAR(plan.budget.predicted.of_update.value(), 1.0, 1e-12) << method;
  }
}

// --- what loses nothing

std::vector<double> Block(const Plan& plan, size_t t, const std::vector<double>& values, size_t b) {
  const uint64_t block = BlockElements(plan, t);
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(b * block);
  return {begin, begin + static_cast<std::ptrdiff_t>(std::min<uint64_t>(block, values.size() - b * block))};
}

TEST(ChooseReads, AFullBudgetLeavesOutNothingButWhatChangesNothing) {
  for (const char* method : {"task_arithmetic", "linear", "dare_ties"}) {
    Problem problem({.method = method, .seed = 3});
    for (const Budget& budget :
         {Budget{.kind = Budget::Kind::kBytes, .bytes = problem.full()}, Budget{},
          Budget{.kind = Budget::Kind::kShare, .percent = 100, .policy = Policy::kRandom}}) {
      const Plan plan = problem.Choose(budget);
      EXPECT_TRUE(plan.budget.complete);
      EXPECT_EQ(plan.budget.predicted.of_update, 0.0);
      EXPECT_EQ(plan.budget.predicted.of_weights, 0.0);
      EXPECT_EQ(plan.budget.cut_rate, 0);
      EXPECT_EQ(plan.budget.lossless_bytes, problem.full() - plan.costs.expert_read_bytes);
      EXPECT_GT(plan.budget.lossless_bytes, 0u);
      for (size_t t = 0; t < plan.masks.size(); ++t) {
        for (size_t s = 1; s < plan.merge->tensors[t].sources.size(); ++s) {
          for (size_t b = 0; b < plan.masks[t].blocks(); ++b) {
            const size_t from = plan.masks[t].From(s, b);
            if (from == s) continue;
            const size_t same = from == TensorMask::kOmitted ? 0 : from;
            EXPECT_EQ(Block(plan, t, tests::ValuesOf(plan, t, s), b),
                      Block(plan, t, tests::ValuesOf(plan, t, same), b));
          }
        }
      }
    }
  }
}

TEST(ChooseReads, WhatIsReadOnceForTwoIsHeldByTheFirst) {
  Problem problem({.seed = 3});
  const Plan plan = problem.Within(problem.full());
  size_t shared = 0;
  for (const TensorMask& mask : plan.masks) {
    for (size_t s = 1; s < mask.sources(); ++s) {
      for (size_t b = 0; b < mask.blocks(); ++b) {
        const size_t from = mask.From(s, b);
        if (from == TensorMask::kOmitted || from == s) continue;
        ++shared;
        EXPECT_LT(from, s);
        EXPECT_TRUE(mask.Reads(from, b));
      }
    }
  }
  EXPECT_GT(shared, 0u);
}

TEST(ChooseReads, ChosenAgainIsTheSame) {
  Problem problem({.method = "ties"});
  Plan plan = problem.Within(problem.full() / 2);
  const Plan once = plan;
  ASSERT_THAT(ChooseReads(plan, once.budget.request, problem.evidence), Succeeds());
  EXPECT_EQ(plan.costs.expert_read_bytes, once.costs.expert_read_bytes);
  EXPECT_EQ(plan.budget.lossless_bytes, once.budget.lossless_bytes);
  EXPECT_EQ(plan.expected, once.expected);
  EXPECT_TRUE(IsWithin(plan, once) && IsWithin(once, plan));
}

// --- what is promised of it

TEST(ChooseReads, DigestsThatAreExpectedAreThoseThatTheExecutorFinds) {
  for (const char* method : {"task_arithmetic", "ties", "linear"}) {
    for (const uint64_t tenths : {0u, 3u, 7u, 10u}) {
      Problem problem({.method = method, .seed = 2});
      problem.planned.plan = problem.Within(problem.full() * tenths / 10);
      const Plan& plan = problem.planned.plan;
      const auto ran = Must(tests::RunPlan(problem.planned));
      for (size_t t = 0; t < plan.tensors.size(); ++t) {
        for (size_t s = 0; s < plan.expected[t].size() && plan.merge->tensors[t].merged; ++s)
          EXPECT_EQ(ran.result.records[t].sources[s], plan.expected[t][s]) << method;
      }
      EXPECT_EQ(plan.expected[problem.planned.Number("b.bf16")].size(), 4u);
      EXPECT_EQ(problem.planned.ledger->TotalRead(Purpose::kExpertData), plan.costs.expert_read_bytes);
    }
  }
}

TEST(ChooseReads, OfFullBudgetsGivesTheFullReadsBytes) {
  for (const char* method : {"task_arithmetic", "ties", "linear", "dare_linear", "dare_ties"}) {
    Problem problem({.method = method, .seed = 4});
    const auto full = Must(tests::RunPlan(problem.planned));
    problem.planned.plan = problem.Within(problem.full());
    EXPECT_GT(problem.planned.plan.budget.lossless_bytes, 0u);
    EXPECT_TRUE(Must(tests::RunPlan(problem.planned)).files == full.files) << method;
  }
}

TEST(ChooseReads, CertifiesAdditiveMergesOfWhichEverythingIsKnown) {
  for (const char* method : {"task_arithmetic", "linear", "ties", "dare_linear"}) {
    const bool additive = FindMethod(method)->additive;
    Problem problem({.method = method});
    EXPECT_EQ(problem.Within(problem.full() / 2).budget.certificate.has_value(), additive) << method;
    EXPECT_EQ(problem.Within(problem.full()).budget.certificate.has_value(), additive) << method;
    const Certificate whole = problem.Within(problem.full()).budget.certificate.value_or(Certificate{});
    EXPECT_EQ(whole.l2 + whole.rounding_l2, 0) << method;
    problem.evidence.known = Strength::kSampled;
    const Plan sampled = problem.Within(problem.full() / 8);
    EXPECT_FALSE(sampled.budget.certificate) << method;
    EXPECT_FALSE(sampled.budget.predicted.of_update) << method;
  }
}

TEST(ChooseReads, PredictsLessErrorForMoreBytes) {
  for (const char* method : {"task_arithmetic", "linear", "ties"}) {
    Problem problem({.method = method});
    double before = 2;
    for (uint64_t tenths = 0; tenths <= 10; ++tenths) {
      const Deviation predicted = problem.Within(problem.full() * tenths / 10).budget.predicted;
      ASSERT_TRUE(predicted.of_update && predicted.of_weights);
      EXPECT_LE(*predicted.of_update, before);
      EXPECT_LE(*predicted.of_weights, *predicted.of_update + 1e-12);
      before = *predicted.of_update;
    }
  }
}

TEST(ChooseReads, PoliciesPredictByTheSameForm) {
  Problem problem({});
  for (const Policy policy : kPolicies) {
    const Plan plan = problem.Within(problem.full() / 2, policy);
    double error = 0, update = 0;
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      if (!plan.merge->tensors[t].merged) continue;
      const TensorErrors errors(plan, t, problem.evidence.tensors[t], true);
      for (size_t b = 0; b < errors.blocks(); ++b) {
        const BlockError block = errors.Block(b);
        std::vector<bool> left_out;
        for (const ReadUnit& unit : block.units)
          left_out.push_back(plan.masks[t].From(unit.sources[0], b) == TensorMask::kOmitted);
        error += block.Of(left_out);
        update += block.OfAll();
      }
    }
    EXPECT_NEAR(plan.budget.predicted.of_update.value(), std::sqrt(error / update), 1e-9)
        << PolicyName(policy);
  }
}

// --- deviations

TEST(ChooseReads, ADeviationTakesTheSmallestStartOfTheOrderThatMeetsIt) {
  for (const char* method : {"task_arithmetic", "linear", "ties"}) {
    Problem problem({.method = method, .seed = 2});
    for (const double deviation : {0.0, 1e-3, 0.05, 0.3, 0.9, 1.0, 7.0}) {
      const Plan plan = problem.Meeting(deviation);
      EXPECT_LE(plan.budget.predicted.of_update.value(), deviation * (1 + 1e-12)) << method;
      EXPECT_EQ(plan.budget.bytes, plan.costs.expert_read_bytes);
      if (plan.costs.expert_read_bytes == 0) continue;
      const Plan less = problem.Within(plan.costs.expert_read_bytes - 1);
      EXPECT_GT(less.budget.predicted.of_update.value(), deviation) << method << " at " << deviation;
    }
    EXPECT_EQ(problem.Meeting(1).costs.expert_read_bytes, 0u);
  }
}

TEST(ChooseReads, ADeviationOfTheWeightsIsMetToo) {
  Problem problem({});
  const Plan plan = problem.Choose({.kind = Budget::Kind::kDeviation, .deviation = 0.01, .of_weights = true});
  EXPECT_LE(plan.budget.predicted.of_weights.value(), 0.01);
  EXPECT_FALSE(plan.budget.complete);
}

TEST(ChooseReads, ADeviationNeedsFullKnowledgeAndItsOwnPolicy) {
  Problem problem({});
  EXPECT_THAT(problem.Try({.kind = Budget::Kind::kDeviation, .deviation = 0.1, .policy = Policy::kFair}),
              FailsWith(Code::kUsage, "--policy gram alone"));
  for (const Strength strength : {Strength::kNone, Strength::kSampled}) {
    problem.evidence.known = strength;
    EXPECT_THAT(problem.Try({.kind = Budget::Kind::kDeviation, .deviation = 0.1}),
                FailsWith(Code::kUsage, "mergepipe analyze"));
  }
  problem.evidence.known = Strength::kFull;
  problem.evidence.tensors[problem.planned.Number("c.f32")].sources[2].reset();
  EXPECT_THAT(problem.Try({.kind = Budget::Kind::kDeviation, .deviation = 0.1}),
              FailsWith(Code::kUsage, "mergepipe analyze"));
}

// --- what can not be left out

TEST(ChooseReads, ABudgetBelowWhatCanNotBeLeftOutIsRefused) {
  const TempFolder folder;
  const auto layer = [](int number, uint32_t seed) {
    return tests::RandomTensor(Format("model.layers.{}.w", number), DType::kF32, {10'000}, seed);
  };
  tests::WriteCheckpoint(folder / "a", {layer(0, 1)});
  tests::WriteCheckpoint(folder / "b", {layer(0, 2), layer(1, 3)});
  const Planned planned = Must(PlanRecipe(folder.path(), R"(
merge_method: passthrough
slices:
  - sources: [{model: ~/a, layer_range: [0, 1]}]
  - sources: [{model: ~/b, layer_range: [1, 2]}]
)"));
  EXPECT_EQ(planned.plan.costs.full_expert_bytes, 40'000u);
  NoEvidence evidence(*planned.plan.merge);
  for (const uint64_t bytes : {0u, 39'999u}) {
    Plan plan = planned.plan;
    EXPECT_THAT(ChooseReads(plan, {.kind = Budget::Kind::kBytes, .bytes = bytes}, evidence),
                FailsWith(Code::kUsage, "can not be left out"));
  }
  Plan plan = planned.plan;
  ASSERT_THAT(ChooseReads(plan, {.kind = Budget::Kind::kBytes, .bytes = 40'000}, evidence), Succeeds());
  EXPECT_EQ(plan.costs.expert_read_bytes, 40'000u);
  EXPECT_TRUE(plan.budget.complete);
}

// --- samples

TEST(WantsSamples, WhereSomethingMustBeLeftOutByAPolicyThatLooks) {
  Problem problem({});
  FakeEvidence nothing;
  nothing.known = Strength::kNone;
  const uint64_t half = problem.full() / 2;
  for (const Policy policy : kPolicies) {
    const Budget budget{.kind = Budget::Kind::kBytes, .bytes = half, .policy = policy};
    const bool looks = policy != Policy::kUniform && policy != Policy::kRandom;
    EXPECT_EQ(WantsSamples(problem.draft, budget, nothing), looks) << PolicyName(policy);
    EXPECT_FALSE(WantsSamples(problem.draft, budget, problem.evidence)) << "everything is known";
  }
  EXPECT_FALSE(WantsSamples(problem.draft, Budget{}, nothing));
  EXPECT_FALSE(WantsSamples(problem.draft, {.kind = Budget::Kind::kBytes, .bytes = 0}, nothing));
  EXPECT_FALSE(WantsSamples(problem.draft, {.kind = Budget::Kind::kShare, .percent = 100}, nothing));
}

TEST(WantsSamples, TakesAtMostAPercentOfTheReadAndATenthOfTheBudget) {
  Problem problem({});
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{9}, uint64_t{1'000}, problem.full() / 2, problem.full()}) {
    const uint64_t limit = SampleLimit(problem.draft, {.kind = Budget::Kind::kBytes, .bytes = bytes});
    EXPECT_LE(limit, problem.full() / 100);
    EXPECT_LE(limit, bytes / 10);
  }
}

}  // namespace
}  // namespace mergepipe
