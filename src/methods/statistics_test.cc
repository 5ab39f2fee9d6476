#include "methods/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "base/text.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::Must;

const kernels::Kernels& Fastest() {
  static const kernels::Kernels* kernels = Must(kernels::ChooseKernels(""));
  return *kernels;
}

KeepRule Largest(uint64_t count) {
  return {.kind = KeepRule::Kind::kLargest, .count = count};
}

// Adds [first, first + n) of one input to the current round, in tiles of `tile`.
template <typename T>
void Add(StatisticsCollector& collector, StatisticsCollector::Scratch& scratch, size_t input,
         const std::vector<T>& deltas, size_t first, size_t n, size_t tile = 1024) {
  for (size_t at = first; at < first + n; at += tile) {
    const size_t count = std::min(tile, first + n - at);
    std::vector<T> copy(deltas.begin() + static_cast<std::ptrdiff_t>(at),
                        deltas.begin() + static_cast<std::ptrdiff_t>(at + count));
    collector.AddInput(scratch, input, copy.data(), count, at, Fastest().Of<T>());
  }
  collector.MergeInput(scratch, input);
}

// The statistics of one input.
template <typename T>
TensorStatistics Gather(const StatisticsRequest& request, const std::vector<T>& deltas) {
  StatisticsCollector collector(request, 1, deltas.size());
  StatisticsCollector::Scratch scratch;
  for (size_t round = 0; round < collector.rounds(); ++round) {
    if (collector.WantsInput(0)) Add(collector, scratch, 0, deltas, 0, deltas.size());
    collector.FinishRound();
  }
  return collector.Statistics();
}

// What is left of the deltas, applied in tiles.
template <typename T>
std::vector<T> Keep(const KeepRule& rule, const Threshold& threshold, std::vector<T> deltas, size_t tile) {
  uint64_t equals_left = threshold.equal_kept;
  for (size_t at = 0; at < deltas.size(); at += tile) {
    const size_t n = std::min(tile, deltas.size() - at);
    KeepElements(rule, threshold, &equals_left, deltas.data() + at, n, at, Fastest().Of<T>());
  }
  return deltas;
}

// By sorting: the k largest float32 magnitudes, the lowest index first among equals.
template <typename T>
std::vector<T> KeepBySorting(const std::vector<T>& deltas, size_t k) {
  std::vector<size_t> order(deltas.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto magnitude = [&](size_t i) { return std::fabs(static_cast<float>(deltas[i])); };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return magnitude(a) > magnitude(b); });
  std::vector<T> kept(deltas.size(), T{0});
  for (size_t i = 0; i < k; ++i)
    kept[order[i]] = deltas[order[i]];
  return kept;
}

template <typename T>
void ExpectSameNumbers(const std::vector<T>& a, const std::vector<T>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(a[i], b[i]) << what << " at " << i;  // −0 and +0 are the same number
}

template <typename T>
void ExpectKeepsTheLargest(const std::vector<T>& deltas, uint64_t k, const std::string& what) {
  const KeepRule rule = Largest(k);
  const Threshold threshold = Gather(StatisticsRequest{.keep = {rule}}, deltas).thresholds[0];
  const std::vector<T> sorted = KeepBySorting(deltas, k);
  for (const size_t tile : {size_t{4096}, size_t{257}, size_t{1}})
    ExpectSameNumbers(Keep(rule, threshold, deltas, tile), sorted, what + ", tile " + std::to_string(tile));
}

// Tensors of every character: smooth, few distinct magnitudes, mostly zero, subnormal, huge, all equal.
std::vector<float> Draw(std::mt19937& random, size_t kind, size_t count) {
  std::normal_distribution<float> normal;
  const auto one = [&]() -> float {
    switch (kind) {
      case 0:
        return normal(random);
      case 1:
        return std::round(normal(random) * 3) / 8;
      case 2:
        return random() % 5 == 0 ? normal(random) * 1e-3f : 0.0f;
      case 3:
        return normal(random) * 1e-44f;
      case 4:
        return std::ldexp(normal(random), static_cast<int>(random() % 200) - 100);
      default:
        return random() % 2 == 0 ? 0.125f : -0.125f;
    }
  };
  std::vector<float> deltas(count);
  for (float& delta : deltas)
    delta = one();
  return deltas;
}

TEST(Threshold, KeepsJustTheKLargestOfAnyTensor) {
  std::mt19937 random(41);
  for (int round = 0; round < 120; ++round) {
    // Large ones are counted by bits, small ones gathered.
    const size_t count = round % 4 == 0 ? 32'769 + random() % 40'000 : 1 + random() % 400;
    const size_t kind = static_cast<size_t>(round) % 6;
    const std::vector<float> deltas = Draw(random, kind, count);
    for (const uint64_t k : {uint64_t{1}, uint64_t{1 + random() % count}, uint64_t{count}}) {
      ExpectKeepsTheLargest(deltas, k, Format("round {}, kind {}, {} of {}", round, kind, k, count));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Threshold, DoublesAreRankedByTheirFloat32Magnitude) {
  std::mt19937 random(43);
  std::vector<double> deltas;
  for (const float delta : Draw(random, 0, 3000))
    deltas.push_back(static_cast<double>(delta) * (1 + 1e-12 * static_cast<double>(random() % 100)));
  for (const uint64_t k : {1u, 17u, 1500u, 2999u})
    ExpectKeepsTheLargest(deltas, k, Format("k = {}", k));
}

TEST(Threshold, TheCutAmongEqualsIsByLowestIndex) {
  const std::vector<float> deltas = {1, -2, 2, 3, -2, 2, 0.5f, 2};
  const Threshold threshold = Gather(StatisticsRequest{.keep = {Largest(3)}}, deltas).thresholds[0];
  EXPECT_EQ(threshold.key, std::bit_cast<uint32_t>(2.0f));
  EXPECT_EQ(threshold.equal_total, 5u);
  EXPECT_EQ(threshold.equal_kept, 2u);
  EXPECT_EQ(Keep(Largest(3), threshold, deltas, 3), (std::vector<float>{0, -2, 2, 3, 0, 0, 0, 0}));
}

TEST(Threshold, MoreThanHalfZerosAreNoCut) {
  const std::vector<float> deltas = {0, 5, 0, -0.0f, 0, 1};
  const Threshold threshold = Gather(StatisticsRequest{.keep = {Largest(4)}}, deltas).thresholds[0];
  EXPECT_EQ(threshold.equal_kept, threshold.equal_total);
  ExpectSameNumbers(Keep(Largest(4), threshold, deltas, 2), deltas, "zeros");
}

void ExpectL1SumsOf(const std::vector<float>& deltas, const KeepRule& rule) {
  const TensorStatistics statistics = Gather(StatisticsRequest{.keep = {rule}, .l1 = true}, deltas);
  long double whole = 0, kept = 0;
  for (const float delta : deltas)
    whole += std::fabs(static_cast<long double>(delta));
  for (const float delta : Keep(rule, statistics.thresholds[0], deltas, 512))
    kept += std::fabs(static_cast<long double>(delta));
  const double tolerance = 1e-13 * static_cast<double>(whole);
  EXPECT_NEAR(statistics.l1_whole[0], static_cast<double>(whole), tolerance);
  EXPECT_NEAR(statistics.l1_kept[0], static_cast<double>(kept), tolerance);
}

TEST(L1, SumsAreThoseOfTheMagnitudes) {
  std::mt19937 random(47);
  for (const size_t count : {size_t{5'000}, size_t{40'000}}) {
    for (size_t kind = 0; kind < 6; ++kind) {
      const std::vector<float> deltas = Draw(random, kind, count);
      for (const KeepRule& rule :
           {KeepRule{}, Largest(1), Largest(count / 3), Largest(count - 1),
            KeepRule{.kind = KeepRule::Kind::kNone},
            KeepRule{.kind = KeepRule::Kind::kRandom, .probability = 0.4f, .stream = 9}})
        ExpectL1SumsOf(deltas, rule);
    }
  }
}

TEST(Gram, HoldsAllInnerProducts) {
  std::mt19937 random(53);
  std::vector<std::vector<float>> inputs;
  for (size_t i = 0; i < 4; ++i)
    inputs.push_back(Draw(random, 0, 3000));
  StatisticsCollector collector({.gram = true}, inputs.size(), 3000);
  StatisticsCollector::Scratch scratch;
  ASSERT_EQ(collector.rounds(), 1u);
  ASSERT_TRUE(collector.WantsTiles());
  for (size_t at = 0; at < 3000; at += 1000) {
    std::vector<float*> tile;
    for (std::vector<float>& input : inputs)
      tile.push_back(input.data() + at);
    collector.AddTile(scratch, tile, 1000, Fastest().f32);
    collector.MergeTiles(scratch);
  }
  collector.FinishRound();
  EXPECT_FALSE(collector.WantsTiles());
  const std::vector<double> gram = collector.Statistics().gram;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      const double dot = std::transform_reduce(inputs[i].begin(), inputs[i].end(), inputs[j].begin(), 0.0,
                                               std::plus<>(), std::multiplies<double>());
      EXPECT_NEAR(gram[i * 4 + j], dot, 1e-9);
      EXPECT_EQ(gram[i * 4 + j], gram[j * 4 + i]);
    }
  }
}

void ExpectSame(const TensorStatistics& a, const TensorStatistics& b) {
  EXPECT_EQ(a.l1_whole, b.l1_whole);
  EXPECT_EQ(a.l1_kept, b.l1_kept);
  ASSERT_EQ(a.thresholds.size(), b.thresholds.size());
  for (size_t i = 0; i < a.thresholds.size(); ++i) {
    EXPECT_EQ(a.thresholds[i].key, b.thresholds[i].key);
    EXPECT_EQ(a.thresholds[i].equal_total, b.thresholds[i].equal_total);
    EXPECT_EQ(a.thresholds[i].equal_kept, b.thresholds[i].equal_kept);
  }
}

// Eight items of two inputs, one trimmed and one dropped at random, shared out among threads.
TensorStatistics GatherByThreads(const std::vector<std::vector<float>>& inputs, size_t threads) {
  const StatisticsRequest request{
      .keep = {Largest(5000), {.kind = KeepRule::Kind::kRandom, .probability = 0.3f, .stream = 4}},
      .l1 = true};
  constexpr size_t kItems = 8;
  const size_t item = inputs[0].size() / kItems;
  StatisticsCollector collector(request, 2, inputs[0].size());
  for (size_t round = 0; round < collector.rounds(); ++round) {
    std::vector<std::jthread> workers;
    for (size_t w = 0; w < threads; ++w) {
      workers.emplace_back([&, w] {
        StatisticsCollector::Scratch scratch;
        for (size_t i = w; i < kItems; i += threads) {
          for (size_t input = 0; input < 2; ++input) {
            if (collector.WantsInput(input)) Add(collector, scratch, input, inputs[input], i * item, item);
          }
        }
      });
    }
    workers.clear();
    collector.FinishRound();
  }
  return collector.Statistics();
}

TEST(Statistics, NeitherOrderNorThreadsShow) {
  std::mt19937 random(59);
  const std::vector<std::vector<float>> inputs = {Draw(random, 4, 50'000), Draw(random, 0, 50'000)};
  const TensorStatistics alone = GatherByThreads(inputs, 1);
  for (const size_t threads : {size_t{2}, size_t{3}, size_t{8}})
    ExpectSame(GatherByThreads(inputs, threads), alone);
}

TEST(Statistics, RoundsAreAsFewAsTheRequestNeeds) {
  const auto rounds = [](const StatisticsRequest& request, uint64_t elements) {
    return StatisticsCollector::Rounds(request, elements);
  };
  for (const uint64_t elements : {uint64_t{100}, uint64_t{1} << 33}) {
    EXPECT_EQ(rounds({}, elements), 0u);
    EXPECT_EQ(
        rounds({.keep = {KeepRule{}, {.kind = KeepRule::Kind::kNone}, {.kind = KeepRule::Kind::kRandom}}},
               elements),
        0u);
    EXPECT_EQ(rounds({.l1 = true}, elements), 1u);
    EXPECT_EQ(rounds({.gram = true}, elements), 1u);
    EXPECT_EQ(rounds({.keep = {Largest(elements)}}, elements), 0u);
    const size_t trimming = elements == 100 ? 1 : 2;
    EXPECT_EQ(rounds({.keep = {Largest(99)}}, elements), trimming);
    EXPECT_EQ(rounds({.keep = {Largest(elements), Largest(1)}, .l1 = true}, elements), trimming);
  }
}

TEST(Statistics, MemoryDoesNotGrowWithTheTensor) {
  for (const StatisticsRequest& request :
       {StatisticsRequest{.keep = {Largest(5), Largest(6)}, .l1 = true}, StatisticsRequest{.gram = true}}) {
    const uint64_t large = StatisticsCollector::MemoryBytes(request, 2, 1u << 20);
    EXPECT_EQ(large, StatisticsCollector::MemoryBytes(request, 2, 1ull << 40));
    EXPECT_LE(large, 2u * (1u << 20) + 8192);
    EXPECT_LE(StatisticsCollector::MemoryBytes(request, 2, 1000), large);
  }
}

TEST(KeepElements, NoneAndAllNeedNoStatistics) {
  std::vector<float> deltas = {1, -2, 0.5f};
  uint64_t equals = 0;
  KeepElements(KeepRule{}, {}, &equals, deltas.data(), deltas.size(), 0, Fastest().f32);
  EXPECT_EQ(deltas, (std::vector<float>{1, -2, 0.5f}));
  KeepElements(KeepRule{.kind = KeepRule::Kind::kNone}, {}, &equals, deltas.data(), deltas.size(), 0,
               Fastest().f32);
  EXPECT_EQ(deltas, (std::vector<float>{0, 0, 0}));
}

TEST(KeepElements, RandomDropsDependOnTheIndexInTheTensorAlone) {
  const KeepRule rule{.kind = KeepRule::Kind::kRandom, .probability = 0.5f, .stream = 77};
  const std::vector<float> ones(10'000, 1.0f);
  const std::vector<float> whole = Keep(rule, {}, ones, ones.size());
  EXPECT_EQ(Keep(rule, {}, ones, 333), whole);
  EXPECT_NEAR(std::accumulate(whole.begin(), whole.end(), 0.0), 5000, 250);
  EXPECT_NE(Keep(KeepRule{.kind = KeepRule::Kind::kRandom, .probability = 0.5f, .stream = 78}, {}, ones, 333),
            whole);
}

}  // namespace
}  // namespace mergepipe
