#include "planner/access_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "planner/blocks.h"
#include "support/evidence.h"
#include "support/families.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FakeEvidence;
using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::TempFolder;

constexpr Policy kPolicies[] = {Policy::kGram, Policy::kNorm, Policy::kUniform, Policy::kFair,
                                Policy::kRandom};

struct Problem {
  explicit Problem(uint32_t seed, uint64_t merge_seed = 0) {
    tests::WriteFamily(folder.path(), {.seed = seed, .mixed = seed % 2 == 0});
    planned = Must(PlanRecipe(folder.path(), RecipeOf("task_arithmetic", 3),
                              {.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock},
                              {.seed = merge_seed}));
    evidence = tests::ReckonEvidence(planned.plan);
  }

  std::vector<AccessStep> Order(Policy policy, bool backwards = false) {
    AccessOrder& order = *orders.emplace_back(std::make_unique<AccessOrder>(planned.plan, policy));
    std::vector<size_t> tensors;
    for (size_t t = 0; t < planned.plan.tensors.size(); ++t) {
      if (planned.plan.merge->tensors[t].merged) tensors.push_back(t);
    }
    if (backwards) std::reverse(tensors.begin(), tensors.end());
    for (const size_t t : tensors) {
      const TensorErrors errors(planned.plan, t, evidence.tensors[t], policy == Policy::kGram);
      for (size_t b = 0; b < errors.blocks(); ++b)
        order.Add(t, b, errors, errors.Block(b));
    }
    return order.Finish();
  }
  size_t Model(const AccessStep& step) const {
    return planned.plan.merge->tensors[step.tensor].sources[step.sources[0]].model;
  }

  TempFolder folder;
  Planned planned;
  FakeEvidence evidence;
  std::vector<std::unique_ptr<AccessOrder>> orders;  // whose steps are looked at
};

using Place = std::tuple<uint32_t, uint32_t, uint32_t, std::vector<uint16_t>>;
std::vector<Place> Places(const std::vector<AccessStep>& steps) {
  std::vector<Place> places;
  for (const AccessStep& step : steps)
    places.emplace_back(step.tensor, step.block, step.sequence,
                        std::vector<uint16_t>(step.sources.begin(), step.sources.end()));
  return places;
}

TEST(AccessOrder, GoesByRankAndThenByPlace) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Problem problem(seed);
    for (const Policy policy : kPolicies) {
      const auto steps = problem.Order(policy);
      ASSERT_FALSE(steps.empty());
      for (size_t i = 1; i < steps.size(); ++i) {
        const AccessStep &a = steps[i - 1], &b = steps[i];
        EXPECT_GE(a.rank, b.rank);
        const bool rises = std::tie(a.tensor, a.block, a.sequence) < std::tie(b.tensor, b.block, b.sequence);
        EXPECT_TRUE(a.rank > b.rank || rises);
      }
    }
  }
}

TEST(AccessOrder, OfEqualRanksIsThatOfPlacesHoweverTheyCome) {
  std::vector<AccessStep> steps;
  for (uint32_t i = 0; i < 60; ++i)
    steps.push_back({.tensor = i / 20, .block = i / 5 % 4, .sequence = i % 5, .rank = i % 2 ? 1.0 : 2.0});
  std::mt19937 random(1);
  std::vector<Place> first;
  for (int round = 0; round < 20; ++round) {
    std::shuffle(steps.begin(), steps.end(), random);
    SortSteps(steps);
    if (round == 0) first = Places(steps);
    EXPECT_EQ(Places(steps), first);
  }
  EXPECT_TRUE(std::is_sorted(first.begin(), first.begin() + 30));
  EXPECT_TRUE(std::is_sorted(first.begin() + 30, first.end()));
}

TEST(AccessOrder, DoesNotDependOnTheOrderInWhichTensorsCome) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Problem problem(seed);
    for (const Policy policy : kPolicies)
      EXPECT_EQ(Places(problem.Order(policy)), Places(problem.Order(policy, /*backwards=*/true)))
          << PolicyName(policy);
  }
}

TEST(AccessOrder, HasEverySourceOfEveryBlockOnceThatIsNotLossless) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Problem problem(seed);
    for (const Policy policy : kPolicies) {
      std::map<std::pair<uint32_t, uint32_t>, std::vector<size_t>> seen;
      for (const AccessStep& step : problem.Order(policy)) {
        auto& sources = seen[{step.tensor, step.block}];
        sources.insert(sources.end(), step.sources.begin(), step.sources.end());
      }
      const Plan& plan = problem.planned.plan;
      for (size_t t = 0; t < plan.tensors.size(); ++t) {
        if (!plan.merge->tensors[t].merged) continue;
        const TensorErrors errors(plan, t, problem.evidence.tensors[t], policy == Policy::kGram);
        for (size_t b = 0; b < errors.blocks(); ++b) {
          auto sources = seen[{static_cast<uint32_t>(t), static_cast<uint32_t>(b)}];
          const auto lossless = errors.Block(b).lossless;
          sources.insert(sources.end(), lossless.begin(), lossless.end());
          std::sort(sources.begin(), sources.end());
          EXPECT_EQ(sources, (std::vector<size_t>{1, 2, 3})) << PolicyName(policy);
        }
      }
    }
  }
}

TEST(AccessOrder, StepsOfABlockKeepTheirSequence) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    Problem problem(seed);
    for (const uint64_t rounds : {0u, 2u}) {  // three passes round the rates anew
      for (TensorPlan& tensor : problem.planned.plan.tensors)
        tensor.rounds = rounds;
      std::map<std::pair<uint32_t, uint32_t>, uint32_t> next;
      for (const AccessStep& step : problem.Order(Policy::kGram)) {
        const uint32_t expected = next[{step.tensor, step.block}]++;
        EXPECT_EQ(step.sequence, expected);
      }
    }
  }
}

TEST(AccessOrder, EveryPassIsPaidFor) {
  Problem problem(1);
  const auto once = problem.Order(Policy::kNorm);
  for (TensorPlan& tensor : problem.planned.plan.tensors)
    tensor.rounds = 2;
  const auto thrice = problem.Order(Policy::kNorm);
  for (size_t i = 0; i < once.size(); ++i)
    EXPECT_EQ(thrice[i].bytes, 3 * once[i].bytes);
}

TEST(AccessOrder, OfNormGoesByEnergyPerByte) {
  Problem problem(3);
  for (const AccessStep& step : problem.Order(Policy::kNorm)) {
    const TensorErrors errors(problem.planned.plan, step.tensor, problem.evidence.tensors[step.tensor],
                              false);
    double energy = 0;
    for (const size_t s : step.sources)
      energy += errors.Energy(s, step.block);
    EXPECT_DOUBLE_EQ(step.rank, energy / static_cast<double>(step.bytes));
    EXPECT_DOUBLE_EQ(step.gain, energy);
  }
}

// Nothing is shared and nothing lossless: every expert has the same blocks.
struct Unrelated : Problem {
  explicit Unrelated(uint32_t seed) : Problem(seed) {
    for (TensorEvidence& tensor : evidence.tensors) {
      for (auto& source : tensor.sources) {
        if (source) source->exact = false;
      }
    }
  }
};

TEST(AccessOrder, OfUniformTakesTheSameBlocksOfEveryExpert) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Unrelated problem(seed);
    const auto steps = problem.Order(Policy::kUniform);
    ASSERT_EQ(steps.size() % 3, 0u);
    for (size_t i = 0; i < steps.size(); i += 3) {
      for (size_t k = 0; k < 3; ++k) {
        EXPECT_EQ(steps[i + k].tensor, steps[i].tensor);
        EXPECT_EQ(steps[i + k].block, steps[i].block);
        EXPECT_THAT(steps[i + k].sources, testing::ElementsAre(k + 1));
      }
    }
  }
}

TEST(AccessOrder, OfUniformSpreadsOverEachTensor) {
  Unrelated problem(1);
  const auto steps = problem.Order(Policy::kUniform);
  std::map<uint32_t, std::vector<uint32_t>> blocks;  // in the order in which they are taken
  for (size_t i = 0; i < steps.size(); i += 3)
    blocks[steps[i].tensor].push_back(steps[i].block);
  for (const auto& [tensor, order] : blocks) {
    if (order.size() < 4) continue;
    for (size_t i = 2; i <= order.size(); ++i) {  // the largest gap is at most thrice the mean one
      std::vector<uint32_t> taken(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(i));
      std::sort(taken.begin(), taken.end());
      uint32_t gap = 0;
      for (size_t k = 1; k < taken.size(); ++k)
        gap = std::max(gap, taken[k] - taken[k - 1]);
      EXPECT_LE(gap, 3 * (order.size() / i + 1)) << i << " of " << order.size();
    }
  }
}

TEST(AccessOrder, OfFairKeepsAllExpertsAtOnePace) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Problem problem(seed);
    const auto steps = problem.Order(Policy::kFair);
    std::map<size_t, uint64_t> whole, read;
    uint64_t largest = 0;
    for (const AccessStep& step : steps) {
      whole[problem.Model(step)] += step.bytes;
      largest = std::max(largest, step.bytes);
    }
    for (const AccessStep& step : steps) {
      read[problem.Model(step)] += step.bytes;
      for (const auto& [a, bytes] : whole) {
        for (const auto& [b, others] : whole) {
          EXPECT_TRUE(read[b] == others || read[a] <= read[b] + 2 * largest)
              << "while there is more of " << b;
        }
      }
    }
  }
}

TEST(AccessOrder, OfFairGoesByEnergyWithinAnExpert) {
  Problem problem(5);
  std::map<size_t, double> last;
  for (const AccessStep& step : problem.Order(Policy::kFair)) {
    const double rate = step.gain / static_cast<double>(step.bytes);
    const auto before = last.find(problem.Model(step));
    EXPECT_TRUE(before == last.end() || rate <= before->second);
    last[problem.Model(step)] = rate;
  }
}

TEST(AccessOrder, OfRandomDependsOnTheSeedAlone) {
  Problem one(1), same(1), other(1, 99);
  const auto order = Places(one.Order(Policy::kRandom));
  for (TensorEvidence& tensor : same.evidence.tensors) {
    for (auto& source : tensor.sources) {
      for (size_t b = 0; source && b < source->knowledge.blocks.energy.size(); ++b)
        source->knowledge.blocks.energy[b] *= static_cast<double>(b + 1);
    }
  }
  EXPECT_EQ(Places(same.Order(Policy::kRandom)), order) << "energies show nowhere";
  EXPECT_NE(Places(other.Order(Policy::kRandom)), order);
}

}  // namespace
}  // namespace mergepipe
