#include "executor/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace mergepipe {
namespace {

// A plan with tensors of every kind in a few units; the schedule looks at nothing else.
Plan RandomPlan(std::mt19937& random) {
  Plan plan;
  plan.units.resize(1 + random() % 3);
  for (size_t tensor = 0; tensor < 1 + random() % 12; ++tensor) {
    TensorPlan work{.items = random() % 6};
    work.rounds = work.items == 0 ? 0 : random() % 3;
    work.resident = work.rounds > 0 && random() % 2 == 0;
    plan.tensors.push_back(work);
    plan.units[random() % plan.units.size()].tensors.push_back(tensor);
  }
  return plan;
}

std::vector<bool> RandomFinished(const Plan& plan, std::mt19937& random) {
  std::vector<bool> finished(plan.tensors.size());
  for (size_t i = 0; i < finished.size(); ++i)
    finished[i] = random() % 4 == 0;
  return finished;
}

template <typename Body>
void ForManyPlans(Body body) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = RandomPlan(random);
    const std::vector<bool> finished = RandomFinished(plan, random);
    body(plan, finished, MakeSchedule(plan, finished), seed);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Schedule, HasEveryPassOfEveryUnfinishedTensorOnce) {
  ForManyPlans([](const Plan& plan, const std::vector<bool>& finished, const std::vector<Segment>& schedule,
                  uint32_t) {
    std::multiset<std::pair<size_t, size_t>> passes, expected;
    for (const Segment& segment : schedule)
      passes.emplace(segment.tensor, segment.phase);
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      for (size_t phase = 0; !finished[i] && phase <= plan.tensors[i].rounds; ++phase)
        expected.emplace(i, phase);
    }
    EXPECT_EQ(passes, expected);
  });
}

TEST(Schedule, NothingWaitsForAnythingBehindIt) {
  ForManyPlans(
      [](const Plan& plan, const std::vector<bool>&, const std::vector<Segment>& schedule, uint32_t seed) {
        std::set<std::pair<size_t, size_t>> before;
        for (const Segment& segment : schedule) {
          EXPECT_TRUE(segment.phase == 0 || before.count({segment.tensor, segment.phase - 1}) == 1) << seed;
          if (segment.waits_for) {
            const size_t last = plan.tensors[*segment.waits_for].rounds;
            EXPECT_EQ(before.count({*segment.waits_for, last}), 1u) << seed;
          }
          before.emplace(segment.tensor, segment.phase);
        }
      });
}

TEST(Schedule, AResidentTensorStaysInOneArena) {
  ForManyPlans(
      [](const Plan& plan, const std::vector<bool>&, const std::vector<Segment>& schedule, uint32_t) {
        std::map<size_t, std::set<std::optional<size_t>>> arenas;
        for (const Segment& segment : schedule)
          arenas[segment.tensor].insert(segment.arena);
        for (const auto& [tensor, used] : arenas) {
          ASSERT_EQ(used.size(), 1u);
          EXPECT_EQ(used.begin()->has_value(), plan.tensors[tensor].resident);
          EXPECT_LT(used.begin()->value_or(0), 2u);
        }
      });
}

TEST(Schedule, UnitsAreDoneInOrder) {
  ForManyPlans([](const Plan& plan, const std::vector<bool>& finished, const std::vector<Segment>& schedule,
                  uint32_t) {
    std::vector<size_t> order, expected;
    for (const Segment& segment : schedule) {
      if (segment.phase == 0) order.push_back(segment.tensor);
    }
    for (const Unit& unit : plan.units) {
      std::copy_if(unit.tensors.begin(), unit.tensors.end(), std::back_inserter(expected),
                   [&](size_t tensor) { return !finished[tensor]; });
    }
    EXPECT_EQ(order, expected);
  });
}

TEST(Schedule, TheNextTensorIsReadBeforeTheLastOnesStatisticsAreComplete) {
  Plan plan;
  plan.units = {Unit{.tensors = {0, 1, 2}}};
  plan.tensors = {{.items = 1, .rounds = 2}, {.items = 1, .rounds = 1}, {.items = 1}};
  std::vector<std::pair<size_t, size_t>> order;
  for (const Segment& segment : MakeSchedule(plan, {false, false, false}))
    order.emplace_back(segment.tensor, segment.phase);
  EXPECT_EQ(order, (std::vector<std::pair<size_t, size_t>>{{0, 0}, {1, 0}, {0, 1}, {0, 2}, {2, 0}, {1, 1}}));
}

/// Workers as the engine runs them: each takes the next item in order, then waits until it may run. Who goes
/// on next is drawn at random, so that every interleaving may come up.
class Simulation {
 public:
  Simulation(const Plan& plan, const std::vector<Segment>& schedule, size_t workers, uint32_t seed)
      : plan_(plan),
        schedule_(schedule),
        random_(seed),
        workers_(workers),
        passes_done_(plan.tensors.size(), 0) {
    for (const Segment& segment : schedule)
      left_.push_back(plan.tensors[segment.tensor].items);
  }

  // True when all items are done, false when every worker waits.
  bool Run() {
    while (true) {
      std::vector<size_t> able;
      for (size_t w = 0; w < workers_.size(); ++w) {
        if (!workers_[w]) Take(w);
        if (workers_[w] && MayRun(schedule_[*workers_[w]])) able.push_back(w);
      }
      if (able.empty()) return next_ == schedule_.size() && Idle();
      Finish(able[random_() % able.size()]);
    }
  }

  bool arenas_clash() const { return clash_; }

 private:
  void Take(size_t worker) {
    while (next_ < schedule_.size() && taken_ == plan_.tensors[schedule_[next_].tensor].items) {
      if (taken_ == 0) passes_done_[schedule_[next_].tensor] = 1;  // an empty tensor
      ++next_;
      taken_ = 0;
    }
    if (next_ == schedule_.size()) return;
    ++taken_;
    workers_[worker] = next_;
  }

  bool Done(size_t tensor) const { return passes_done_[tensor] > plan_.tensors[tensor].rounds; }
  bool MayRun(const Segment& segment) const {
    return passes_done_[segment.tensor] >= segment.phase && (!segment.waits_for || Done(*segment.waits_for));
  }
  bool Idle() const {
    return std::none_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.has_value(); });
  }

  void Finish(size_t worker) {
    const size_t number = *workers_[worker];
    const Segment& segment = schedule_[number];
    if (segment.arena) {
      auto& owner = arenas_[*segment.arena];
      clash_ = clash_ || (owner && *owner != segment.tensor && !Done(*owner));
      owner = segment.tensor;
    }
    workers_[worker].reset();
    if (--left_[number] == 0) ++passes_done_[segment.tensor];
  }

  const Plan& plan_;
  const std::vector<Segment>& schedule_;
  std::mt19937 random_;
  std::vector<std::optional<size_t>> workers_;  // the segment whose item each holds
  std::vector<size_t> passes_done_;             // by tensor
  std::vector<uint64_t> left_;                  // by segment
  std::optional<size_t> arenas_[2];
  size_t next_ = 0;
  uint64_t taken_ = 0;
  bool clash_ = false;
};

TEST(Schedule, NeverBlocksItsWorkersAndSharesNoArena) {
  ForManyPlans(
      [](const Plan& plan, const std::vector<bool>&, const std::vector<Segment>& schedule, uint32_t seed) {
        for (const size_t workers : {1u, 2u, 3u, 8u}) {
          Simulation simulation(plan, schedule, workers, seed);
          EXPECT_TRUE(simulation.Run()) << "blocked: seed " << seed << ", " << workers << " workers";
          EXPECT_FALSE(simulation.arenas_clash()) << "seed " << seed << ", " << workers << " workers";
        }
      });
}

}  // namespace
}  // namespace mergepipe
