#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "support/formula_checks.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using tests::ArrayMerge;
using tests::Delta;
using tests::ExpectNear;
using tests::Experts;
using tests::MergeArrays;
using tests::Moved;
using tests::RandomFloats;
using tests::Set;
using tests::SetWeights;
using tests::WithDefaults;
using Values = std::vector<float>;

constexpr size_t kCount = 5000;

// --- linear

TEST(Linear, IsTheWeightedAverage) {
  ArrayMerge merge = Experts("linear", 3);
  SetWeights(merge, {0.5, 2, -0.25});
  const auto average = [&](size_t k) {
    return (0.5 * merge.inputs[0][k] + 2.0 * merge.inputs[1][k] - 0.25 * merge.inputs[2][k]) / 2.25;
  };
  ExpectNear(MergeArrays(merge), average);
  Set(merge, "normalize", 0);
  ExpectNear(MergeArrays(merge), [&](size_t k) { return 2.25 * average(k); });
}

TEST(Linear, OneModelIsItself) {
  ArrayMerge merge = Experts("linear", 1);
  SetWeights(merge, {1});
  EXPECT_EQ(MergeArrays(merge), merge.inputs[0]);
}

TEST(Linear, AWeightOfZeroLeavesNoTrace) {
  ArrayMerge merge = WithDefaults("linear", {}, {{1, -0.0f, 3}, {INFINITY, INFINITY, NAN}});
  merge.base.resize(3);
  SetWeights(merge, {1, 0});
  const Values merged = MergeArrays(merge);
  EXPECT_THAT(merged, ElementsAre(1, 0, 3));
  EXPECT_TRUE(std::signbit(merged[1]));
}

// --- task arithmetic

TEST(TaskArithmetic, AddsWeightedDeltasToTheBase) {
  ArrayMerge merge = Experts("task_arithmetic", 3);
  SetWeights(merge, {0.5, 2, -0.25});
  const auto mix = [&](size_t k) {
    return 0.5 * Delta(merge, 0, k) + 2 * Delta(merge, 1, k) - 0.25 * Delta(merge, 2, k);
  };
  ExpectNear(MergeArrays(merge), [&](size_t k) { return merge.base[k] + mix(k); });
  Set(merge, "lambda", 0.7);
  ExpectNear(MergeArrays(merge), [&](size_t k) { return merge.base[k] + 0.7 * mix(k); });
  Set(merge, "normalize", 1);
  ExpectNear(MergeArrays(merge), [&](size_t k) { return merge.base[k] + 0.7 * mix(k) / 2.25; });
}

TEST(TaskArithmetic, ASumOfWeightsOfZeroDividesNothing) {
  ArrayMerge merge = Experts("task_arithmetic", 2);
  SetWeights(merge, {1, -1});
  Set(merge, "normalize", 1);
  ExpectNear(MergeArrays(merge),
             [&](size_t k) { return merge.base[k] + Delta(merge, 0, k) - Delta(merge, 1, k); });
}

TEST(TaskArithmetic, IgnoresDensity) {
  ArrayMerge merge = Experts("task_arithmetic", 2);
  const Values whole = MergeArrays(merge);
  Set(merge, "density", 0.1);
  Set(merge, "rescale", 1);
  EXPECT_EQ(MergeArrays(merge), whole);
}

TEST(TaskArithmetic, TheBaseAloneIsTheBase) {
  ArrayMerge merge = Experts("task_arithmetic", 0);
  EXPECT_EQ(MergeArrays(merge), merge.base);
}

// --- ties

// What trimming leaves of each delta, by sorting: the k largest, lowest index first among equals.
std::vector<std::vector<double>> Trimmed(const ArrayMerge& merge, size_t k) {
  std::vector<std::vector<double>> trimmed;
  for (size_t i = 0; i < merge.inputs.size(); ++i) {
    std::vector<size_t> order(merge.base.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::fabs(Delta(merge, i, a)) > std::fabs(Delta(merge, i, b));
    });
    auto& kept = trimmed.emplace_back(merge.base.size(), 0.0);
    for (size_t e = 0; e < k; ++e)
      kept[order[e]] = Delta(merge, i, order[e]);
  }
  return trimmed;
}

// Σ w Δ' over those of the elected sign, and the sum of their weights.
std::pair<double, double> Elect(const std::vector<std::vector<double>>& deltas,
                                const std::vector<double>& weights, size_t k) {
  double vote = 0, mix = 0, weight = 0;
  for (size_t i = 0; i < deltas.size(); ++i)
    vote += weights[i] * deltas[i][k];
  for (size_t i = 0; i < deltas.size(); ++i) {
    const double v = weights[i] * deltas[i][k];
    if (v == 0 || (v > 0) != (vote >= 0)) continue;
    mix += v;
    weight += weights[i];
  }
  return {mix, weight};
}

TEST(Ties, TrimsElectsAndMixesWhatAgrees) {
  ArrayMerge merge = Experts("ties", 4);
  const std::vector<double> weights = {0.5, 1, 0.3, 0.2};
  SetWeights(merge, weights);
  Set(merge, "density", 0.3);
  Set(merge, "lambda", 1.5);
  const auto deltas = Trimmed(merge, 1500);
  ExpectNear(MergeArrays(merge), [&](size_t k) {
    const auto [mix, weight] = Elect(deltas, weights, k);
    return merge.base[k] + (weight == 0 ? 0 : 1.5 * mix / weight);
  });
  Set(merge, "normalize", 0);
  ExpectNear(MergeArrays(merge),
             [&](size_t k) { return merge.base[k] + 1.5 * Elect(deltas, weights, k).first; });
}

TEST(Ties, RescalingRestoresTheL1Norm) {
  ArrayMerge merge = Experts("ties", 1);
  SetWeights(merge, {1});
  Set(merge, "density", 0.2);
  Set(merge, "rescale", 1);
  const Values merged = MergeArrays(merge);
  double before = 0, after = 0;
  for (size_t k = 0; k < kCount; ++k) {
    before += std::fabs(Delta(merge, 0, k));
    after += std::fabs(static_cast<double>(merged[k]) - merge.base[k]);
  }
  EXPECT_NEAR(after, before, 1e-4 * before);
}

TEST(Ties, AnElectionOfZeroCountsAsPlus) {
  ArrayMerge merge = WithDefaults("ties", {0, 0}, {{1, -1}, {-1, 1}});
  SetWeights(merge, {1, 1});
  EXPECT_THAT(MergeArrays(merge), ElementsAre(1, 1));
}

TEST(Ties, ANegativeWeightFlipsItsVote) {
  ArrayMerge merge = WithDefaults("ties", {0}, {{1}, {3}});
  SetWeights(merge, {1, -1});  // votes 1 and -3: minus is elected, 3 alone agrees
  EXPECT_THAT(MergeArrays(merge), ElementsAre(3));
}

TEST(Ties, KeepsAtLeastOneElementOfAnyDensityAboveZero) {
  ArrayMerge merge = WithDefaults("ties", {0, 0, 0}, {{1, 3, 2}});
  SetWeights(merge, {1});
  Set(merge, "density", 0.01);
  EXPECT_THAT(MergeArrays(merge), ElementsAre(0, 3, 0));
  Set(merge, "density", 0);
  EXPECT_THAT(MergeArrays(merge), ElementsAre(0, 0, 0));
  Set(merge, "density", 1);
  EXPECT_THAT(MergeArrays(merge), ElementsAre(1, 3, 2));
}

TEST(Ties, TheCountIsTheProductCutOff) {
  // 0.29 * 100 is a little less than 29 in double.
  ArrayMerge merge = WithDefaults("ties", Values(100, 0.0f), {RandomFloats(100, 3)});
  SetWeights(merge, {1});
  Set(merge, "density", 0.29);
  const Values merged = MergeArrays(merge);
  EXPECT_EQ(std::count(merged.begin(), merged.end(), 0.0f), 72);
}

// --- dare

TEST(Dare, KeepsADensityOfEachDeltaAndRestoresItsL1Norm) {
  for (const char* method : {"dare_linear", "dare_ties"}) {
    ArrayMerge merge = Experts(method, 1, 50'000);
    SetWeights(merge, {1});
    Set(merge, "density", 0.3);
    const Values merged = MergeArrays(merge);
    double before = 0, after = 0, kept = 0;
    for (size_t k = 0; k < merged.size(); ++k) {
      before += std::fabs(Delta(merge, 0, k));
      after += std::fabs(static_cast<double>(merged[k]) - merge.base[k]);
      kept += merged[k] == merge.base[k] ? 0 : 1;
    }
    EXPECT_NEAR(kept / 50'000, 0.3, 0.01) << method;
    EXPECT_NEAR(after, before, 1e-4 * before) << method;
  }
}

TEST(Dare, TheFormulaHoldsForTheMaskThatWasDrawn) {
  ArrayMerge merge = Experts("dare_linear", 2);
  SetWeights(merge, {0.5, 0.8});
  Set(merge, "density", 0.4);
  Set(merge, "rescale", 0);
  const Values merged = MergeArrays(merge);
  size_t seen[4] = {0, 0, 0, 0};
  for (size_t k = 0; k < kCount; ++k) {
    const double a = 0.5 * Delta(merge, 0, k), b = 0.8 * Delta(merge, 1, k);
    const double step = static_cast<double>(merged[k]) - merge.base[k];
    const double choices[4] = {0, a, b, a + b};
    const auto nearest = std::min_element(
        choices, choices + 4, [&](double x, double y) { return std::fabs(x - step) < std::fabs(y - step); });
    EXPECT_NEAR(*nearest, step, 1e-6);
    ++seen[nearest - choices];
  }
  EXPECT_NEAR(static_cast<double>(seen[3]) / kCount, 0.16, 0.03);  // the experts are dropped independently
  EXPECT_NEAR(static_cast<double>(seen[0]) / kCount, 0.36, 0.03);
}

TEST(Dare, TheSeedDecidesTheMask) {
  ArrayMerge merge = Experts("dare_linear", 2);
  Set(merge, "density", 0.5);
  const Values first = MergeArrays(merge);
  EXPECT_EQ(MergeArrays(merge), first);
  merge.seed = 1;
  EXPECT_NE(MergeArrays(merge), first);
}

TEST(Dare, DensityOneDropsNothingAndZeroEverything) {
  for (const char* method : {"dare_linear", "dare_ties"}) {
    ArrayMerge merge = Experts(method, 2);
    const Values whole = MergeArrays(merge);
    Set(merge, "density", 1.5);
    EXPECT_EQ(MergeArrays(merge), whole) << method;
    EXPECT_NE(whole, merge.base) << method;
    Set(merge, "density", 0);
    EXPECT_EQ(MergeArrays(merge), merge.base) << method;
  }
}

TEST(Dare, ADensityBelowZeroIsNoProbability) {
  for (const char* method : {"dare_linear", "dare_ties"}) {
    ArrayMerge merge = Experts(method, 1);
    Set(merge, "density", -0.1);
    const TensorFacts facts{.elements = kCount, .random_streams = {1}};
    EXPECT_THAT(merge.method->request(facts, merge.params),
                tests::FailsWith(Code::kUsage, "density is -0.1"));
  }
}

// --- slerp

double Norm(const Values& v) {
  double sum = 0;
  for (const float x : v)
    sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

double Angle(const Values& a, const Values& b) {
  double dot = 0;
  for (size_t k = 0; k < a.size(); ++k)
    dot += static_cast<double>(a[k]) * b[k];
  return std::acos(dot / (Norm(a) * Norm(b)));
}

TEST(Slerp, FollowsTheArc) {
  const Values a = RandomFloats(kCount, 1), b = RandomFloats(kCount, 2, 3);
  const double theta = Angle(a, b);
  for (const double t : {0.25, 0.5, 0.9, -0.3, 1.4}) {
    ArrayMerge merge = WithDefaults("slerp", a, {a, b});
    Set(merge, "t", t);
    const double first = std::sin((1 - t) * theta) / std::sin(theta),
                 second = std::sin(t * theta) / std::sin(theta);
    ExpectNear(MergeArrays(merge), [&](size_t k) { return first * a[k] + second * b[k]; });
  }
}

TEST(Slerp, TheEndsAreTheModelsBitForBit) {
  const Values a = RandomFloats(kCount, 1), b = RandomFloats(kCount, 2, 3);
  ArrayMerge merge = WithDefaults("slerp", a, {a, b});
  Set(merge, "t", 0);
  EXPECT_EQ(MergeArrays(merge), a);
  Set(merge, "t", 1);
  EXPECT_EQ(MergeArrays(merge), b);
}

TEST(Slerp, NearlyParallelModelsAreInterpolatedInAStraightLine) {
  const Values a = RandomFloats(kCount, 1);
  for (const Values& b : {Moved(a, 2, 0.01), Moved(a, 3, 0)}) {
    ArrayMerge merge = WithDefaults("slerp", a, {a, b});
    Set(merge, "t", 0.3);
    ExpectNear(MergeArrays(merge), [&](size_t k) { return 0.7 * a[k] + 0.3 * b[k]; });
  }
}

TEST(Slerp, OppositeModelsAreInterpolatedInAStraightLineToo) {
  const Values a = RandomFloats(kCount, 1);
  Values b = a;
  for (float& x : b)
    x = -2 * x;
  ArrayMerge merge = WithDefaults("slerp", a, {a, b});
  Set(merge, "t", 0.25);
  ExpectNear(MergeArrays(merge), [&](size_t k) { return 0.75 * a[k] + 0.25 * b[k]; });
}

TEST(Slerp, AModelOfZerosStandsAtARightAngle) {
  const Values a = RandomFloats(kCount, 1), zeros(kCount, 0.0f);
  for (const auto& [first, second] : {std::pair(a, zeros), std::pair(zeros, a)}) {
    ArrayMerge merge = WithDefaults("slerp", first, {first, second});
    Set(merge, "t", 0.3);
    ExpectNear(MergeArrays(merge), [&x = first, &y = second](size_t k) {
      return std::cos(0.15 * M_PI) * x[k] + std::sin(0.15 * M_PI) * y[k];
    });
  }
}

// --- passthrough

TEST(Passthrough, ScalesOrCopies) {
  const Values a = {1, -0.0f, 3};
  ArrayMerge merge = WithDefaults("passthrough", a, {a});
  EXPECT_TRUE(merge.method->is_copy(merge.params));
  EXPECT_EQ(MergeArrays(merge), a);
  Set(merge, "scale", 0.5);
  EXPECT_FALSE(merge.method->is_copy(merge.params));
  EXPECT_THAT(MergeArrays(merge), ElementsAre(0.5f, 0, 1.5f));
  Set(merge, "scale", 0);
  EXPECT_THAT(MergeArrays(merge), ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace mergepipe
