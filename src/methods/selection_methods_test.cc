// The methods that choose elements (by size, by chance, by variance, by importance), against plain sorting
// and counting in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

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
using tests::RandomFloats;
using tests::Set;
using tests::SetWeights;
using tests::WithDefaults;
using Values = std::vector<float>;

constexpr size_t kCount = 5000;

bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One model over a base of zeros, at weight 1: what is merged is what is kept.
ArrayMerge Alone(const std::string& method, const Values& delta) {
  ArrayMerge merge = WithDefaults(method, Values(delta.size(), 0.0f), {delta});
  SetWeights(merge, {1});
  return merge;
}

// --- breadcrumbs

Values Crumbs(const Values& delta, double density, double gamma) {
  ArrayMerge merge = Alone("breadcrumbs", delta);
  Set(merge, "density", density);
  Set(merge, "gamma", gamma);
  return MergeArrays(merge);
}

TEST(Breadcrumbs, LeavesOutTheLargestAndTheSmallest) {
  const Values delta = {5, -1, 9, 3, -7, 2, -10, 4, 8, -6};
  EXPECT_THAT(Crumbs(delta, 0.4, 0.2), ElementsAre(5, 0, 0, 0, -7, 0, 0, 0, 8, -6));
  EXPECT_THAT(Crumbs(delta, 0.4, 0), ElementsAre(0, 0, 9, 0, -7, 0, -10, 0, 8, 0));
}

TEST(Breadcrumbs, WhereGammaLeavesTooFewFewerOutliersGo) {
  const Values delta = {5, -1, 9, 3, -7, 2, -10, 4, 8, -6};
  EXPECT_THAT(Crumbs(delta, 0.9, 0.5), ElementsAre(5, -1, 9, 3, -7, 2, 0, 4, 8, -6));
  EXPECT_THAT(Crumbs(delta, 0.3, 5), ElementsAre(0, -1, 0, 3, 0, 2, 0, 0, 0, 0));
}

TEST(Breadcrumbs, ACountOfNoneIsTheBase) {
  EXPECT_THAT(Crumbs({3, -2, 1}, 0.3, 0.01), ElementsAre(0, 0, 0));
  EXPECT_THAT(Crumbs({3, -2, 1}, 0, 0.01), ElementsAre(0, 0, 0));
  EXPECT_THAT(Crumbs({3, -2, 1}, 1, 0.9), ElementsAre(3, -2, 1));
}

TEST(Breadcrumbs, OfEqualMagnitudesTheFirstGoAndTheNextStay) {
  EXPECT_THAT(Crumbs({-2, 2, 2, -2, 2, 2, 1, 2, -2, 2}, 0.4, 0.3),
              ElementsAre(0, 0, 0, -2, 2, 2, 0, 2, 0, 0));
}

TEST(Breadcrumbs, SortingSaysTheSameOfManyElements) {
  for (const char* method : {"breadcrumbs", "breadcrumbs_ties"}) {
    for (const size_t count : {2'000, 100'000}) {
      Values delta = RandomFloats(count, 4);
      for (size_t k = 0; k < count; k += 3)
        delta[k] = std::round(delta[k] * 4) / 4;  // many equal ones
      ArrayMerge merge = Alone(method, delta);
      Set(merge, "density", 0.47);
      Set(merge, "gamma", 0.21);
      std::vector<size_t> order(count);
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return std::fabs(delta[a]) > std::fabs(delta[b]); });
      Values want(count, 0.0f);
      const auto outliers = static_cast<size_t>(0.21 * static_cast<double>(count)),
                 kept = static_cast<size_t>(0.47 * static_cast<double>(count));
      for (size_t i = outliers; i < outliers + kept; ++i)
        want[order[i]] = delta[order[i]];
      EXPECT_EQ(MergeArrays(merge), want) << method << ", " << count;
    }
  }
}

TEST(Breadcrumbs, RescalingRestoresTheL1NormOfTheWhole) {
  ArrayMerge merge = Alone("breadcrumbs", RandomFloats(kCount, 6));
  Set(merge, "density", 0.5);
  Set(merge, "gamma", 0.2);
  Set(merge, "rescale", 1);
  double before = 0, after = 0;
  for (const float d : merge.inputs[0])
    before += std::fabs(d);
  for (const float d : MergeArrays(merge))
    after += std::fabs(d);
  EXPECT_NEAR(after, before, 1e-5 * before);
}

// --- della

TEST(Della, TheChanceGrowsWithTheRankInTheRow) {
  constexpr size_t kRows = 20'000, kRow = 10;
  Values delta;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t k = 0; k < kRow; ++k)
      delta.push_back(static_cast<float>((k * 7 + row) % kRow + 1) * (k % 2 == 0 ? 1.0f : -1.0f));
  }
  for (const char* method : {"della", "della_linear"}) {
    ArrayMerge merge = Alone(method, delta);
    merge.shape = {kRows, kRow};
    Set(merge, "density", 0.6);
    Set(merge, "epsilon", 0.3);
    Set(merge, "rescale", 0);
    std::array<double, kRow> kept{};
    for (const float d : MergeArrays(merge)) {
      if (d != 0) ++kept[static_cast<size_t>(std::fabs(d)) - 1];
    }
    for (size_t rank = 0; rank < kRow; ++rank) {
      const double chance = 0.3 + 0.6 * static_cast<double>(rank) / (kRow - 1);
      EXPECT_NEAR(kept[rank] / kRows, chance, 5 * std::sqrt(chance * (1 - chance) / kRows)) << rank;
    }
  }
}

TEST(Della, ALoneElementStaysWithChanceDensity) {
  constexpr size_t kRows = 50'000;
  ArrayMerge merge = Alone("della", Values(kRows, 1.0f));
  merge.shape = {kRows, 1};
  Set(merge, "density", 0.7);
  Set(merge, "rescale", 0);
  const Values merged = MergeArrays(merge);
  const double kept = std::accumulate(merged.begin(), merged.end(), 0.0) / kRows;
  EXPECT_NEAR(kept, 0.7, 5 * std::sqrt(0.21 / kRows));
}

TEST(Della, ChancesBeyondZeroAndOneAreRefused) {
  const TensorFacts facts{.elements = 4, .shape = {2, 2}, .random_streams = {1}};
  for (const char* method : {"della", "della_linear"}) {
    ArrayMerge merge = Alone(method, {1, 2, 3, 4});
    for (const auto& [density, epsilon] :
         {std::pair(0.66, 1.35), std::pair(0.9, 0.1), std::pair(0.1, 0.1), std::pair(0.1, 0.2)}) {
      Set(merge, "density", density);
      Set(merge, "epsilon", epsilon);
      EXPECT_THAT(merge.method->request(facts, merge.params), tests::FailsWith(Code::kUsage, "epsilon"));
    }
    for (const double density : {0.0, 1.0, -1.0, 2.0}) {  // nothing is drawn
      Set(merge, "density", density);
      EXPECT_THAT(merge.method->request(facts, merge.params), tests::Succeeds());
    }
  }
}

// --- sce

ArrayMerge Selecting(double select_topk, size_t models = 3, double scale = 0.1) {
  const Values base = RandomFloats(kCount, 1);
  std::vector<Values> inputs;
  for (uint32_t i = 0; i < models; ++i)
    inputs.push_back(tests::Moved(base, 30 + i, scale * (i + 1)));
  ArrayMerge merge = WithDefaults("sce", base, inputs);
  Set(merge, "select_topk", select_topk);
  return merge;
}

// Weighs and erases the deltas of selected elements.
std::vector<double> Erased(const ArrayMerge& merge, const std::vector<bool>& selected) {
  const size_t models = merge.inputs.size();
  std::vector<double> energy(models, 0.0), merged(merge.base.begin(), merge.base.end());
  double total = 0;
  for (size_t i = 0; i < models; ++i) {
    for (size_t k = 0; k < merged.size(); ++k)
      energy[i] += selected[k] ? Delta(merge, i, k) * Delta(merge, i, k) : 0;
    total += energy[i];
  }
  const bool even = total / static_cast<double>(merged.size()) < 1e-6;
  for (size_t k = 0; k < merged.size(); ++k) {
    double vote = 0, mix = 0, weight = 0;
    for (size_t i = 0; i < models; ++i)
      vote += Delta(merge, i, k);
    for (size_t i = 0; i < models; ++i) {
      const double d = Delta(merge, i, k), w = even ? 1.0 / static_cast<double>(models) : energy[i] / total;
      if (!selected[k] || d == 0 || (d > 0) != (vote >= 0)) continue;
      mix += w * d;
      weight += w;
    }
    merged[k] += mix / std::max(weight, 1e-6);
  }
  return merged;
}

std::vector<bool> MostVaried(const ArrayMerge& merge, double share) {
  std::vector<float> variance;
  const auto models = static_cast<double>(merge.inputs.size());
  for (size_t k = 0; k < merge.base.size(); ++k) {
    double mean = 0, squares = 0;
    for (size_t i = 0; i < merge.inputs.size(); ++i)
      mean += Delta(merge, i, k) / models;
    for (size_t i = 0; i < merge.inputs.size(); ++i)
      squares += (Delta(merge, i, k) - mean) * (Delta(merge, i, k) - mean);
    variance.push_back(static_cast<float>(squares / models));
  }
  std::vector<size_t> order(variance.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return variance[a] > variance[b]; });
  const auto nonzero =
      variance.size() - static_cast<size_t>(std::count(variance.begin(), variance.end(), 0.0f));
  std::vector<bool> selected(variance.size(), false);
  for (size_t i = 0; i < static_cast<size_t>(static_cast<float>(nonzero) * static_cast<float>(share)); ++i)
    selected[order[i]] = true;
  return selected;
}

TEST(Sce, SelectsWeighsAndErases) {
  for (const double share : {0.01, 0.3, 0.99}) {
    const ArrayMerge merge = Selecting(share);
    const std::vector<double> want = Erased(merge, MostVaried(merge, share));
    ExpectNear(MergeArrays(merge), [&](size_t k) { return want[k]; });
  }
  const std::vector<double> want = Erased(Selecting(1), std::vector<bool>(kCount, true));
  ExpectNear(MergeArrays(Selecting(1)), [&](size_t k) { return want[k]; });
}

TEST(Sce, TinyEnergiesWeighAllModelsTheSame) {
  const ArrayMerge merge = Selecting(1, 3, 1e-4);
  const std::vector<double> want = Erased(merge, std::vector<bool>(kCount, true));
  ExpectNear(
      MergeArrays(merge), [&](size_t k) { return want[k]; }, 2e-7);
}

TEST(Sce, WhereNothingIsSelectedItIsTheBase) {
  EXPECT_TRUE(SameBits(MergeArrays(Selecting(0)), Selecting(0).base));
  EXPECT_TRUE(SameBits(MergeArrays(Selecting(-1)), Selecting(0).base));
  EXPECT_TRUE(SameBits(MergeArrays(Selecting(1e-6)), Selecting(0).base)) << "0.005 elements are none";
  EXPECT_TRUE(SameBits(MergeArrays(Selecting(0.5, 1)), Selecting(0).base)) << "one model has no variance";
  ArrayMerge same = Selecting(0.5);
  same.inputs[1] = same.inputs[2] = same.inputs[0];
  EXPECT_TRUE(SameBits(MergeArrays(same), same.base));
}

TEST(Sce, OneModelAsAWholeIsThatModel) {
  const ArrayMerge merge = Selecting(1, 1);
  ExpectNear(MergeArrays(merge), [&](size_t k) { return merge.inputs[0][k]; });
}

TEST(Sce, OfEqualVariancesTheFirstAreSelected) {
  ArrayMerge merge = WithDefaults("sce", Values(6, 0.0f), {{1, 1, -1, 1, 1, 2}, {2, 2, -2, 2, 2, 4}});
  Set(merge, "select_topk", 0.5);
  const Values merged = MergeArrays(merge);
  for (size_t k = 0; k < 6; ++k)
    EXPECT_EQ(merged[k] != 0, k == 0 || k == 1 || k == 5) << k;
}

// --- ram and ramplus_tl

TEST(Ram, KeepsWhatOneChangesAndTakesTheMeanOfWhatSeveralDo) {
  ArrayMerge merge =
      WithDefaults("ram", Values(5, 0.0f), {{1, 0.25, 0.5, 0, 0.125}, {0, 0.75, 0.5, -2, 0.125}});
  Set(merge, "epsilon", 0.125);  // what moves by just epsilon is not changed
  EXPECT_THAT(MergeArrays(merge), ElementsAre(1, 0.5, 0.5, -2, 0));
}

TEST(RamplusTl, EnlargesLoneChangesByTheShareOfSharedOnes) {
  const Values first = {1, 1, 1, 1, 0, 1, 0, 0}, second = {1, 1, 0, 0, 2, 0, 0, 0};
  ArrayMerge merge = WithDefaults("ramplus_tl", Values(8, 0.0f), {first, second});
  Set(merge, "r", 0.5);
  Set(merge, "alpha", 1.5);
  // The first shares 2 and changes 3 alone; the second shares 2 and changes 1 alone, cut off at alpha.
  const auto one = static_cast<float>(1 + 0.5 * 2 / 3), two = static_cast<float>(1 + 0.5 * 1.5);
  EXPECT_THAT(MergeArrays(merge), ElementsAre(1, 1, one, one, 2 * two, one, 0, 0));
}

TEST(RamplusTl, AModelWithoutLoneChangesDividesByEpsilon) {
  ArrayMerge merge = WithDefaults("ramplus_tl", Values(2, 0.0f), {{1, 0}, {1, 1}});
  EXPECT_THAT(MergeArrays(merge), ElementsAre(1, static_cast<float>(1 + 0.1 * 0.2)));
}

// --- nearswap

TEST(Nearswap, MovesByAtMostT) {
  ArrayMerge merge = WithDefaults("nearswap", {0, 1, 1, 1}, {{0.25, 3, -1, 1}});
  Set(merge, "t", 0.5);
  EXPECT_THAT(MergeArrays(merge), ElementsAre(0.25, 1.5, 0.5, 1));
}

TEST(Nearswap, AStepOfZeroIsTheBaseAndALargeOneTheOther) {
  ArrayMerge merge = Experts("nearswap", 1);
  merge.base[3] = -0.0f;
  Set(merge, "t", 0);
  EXPECT_TRUE(SameBits(MergeArrays(merge), merge.base));
  Set(merge, "t", 1e9);
  ExpectNear(MergeArrays(merge), [&](size_t k) { return merge.inputs[0][k]; });
}

// --- arcee_fusion

// |Δ| · KL of each element, rows of `length`.
std::vector<long double> Importance(const Values& base, const Values& other, size_t length) {
  std::vector<long double> scores;
  for (size_t row = 0; row < base.size(); row += length) {
    long double of_base = 0, of_other = 0, divergence = 0;
    for (size_t k = row; k < row + length; ++k) {
      of_base += std::exp(static_cast<long double>(base[k]));
      of_other += std::exp(static_cast<long double>(other[k]));
    }
    for (size_t k = row; k < row + length; ++k) {
      const long double p = std::exp(static_cast<long double>(other[k])) / of_other + 1e-8L;
      const long double q = std::exp(static_cast<long double>(base[k])) / of_base + 1e-8L;
      divergence += p * std::log(p / q);
    }
    for (size_t k = row; k < row + length; ++k)
      scores.push_back(std::fabs(static_cast<long double>(other[k]) - base[k]) * divergence);
  }
  return scores;
}

TEST(ArceeFusion, TakesWhatMattersFarMoreThanTheMedian) {
  for (const std::vector<uint64_t>& shape : {std::vector<uint64_t>{50, 100}, {kCount}, {5, 10, 100}}) {
    ArrayMerge merge = WithDefaults("arcee_fusion", {}, {RandomFloats(kCount, 1), RandomFloats(kCount, 1)});
    for (size_t k = 0; k < kCount; ++k)
      merge.inputs[1][k] +=
          0.02f * static_cast<float>(1 + k / 100 % 7) * RandomFloats(1, static_cast<uint32_t>(k))[0];
    merge.base = merge.inputs[0];
    merge.shape = shape;
    const auto scores = Importance(merge.base, merge.inputs[1], shape.back());
    auto sorted = scores;
    std::sort(sorted.begin(), sorted.end());
    const auto quantile = [&](double q) { return sorted[static_cast<size_t>(q * (kCount - 1))]; };
    const long double threshold = quantile(0.5) + 1.5L * (quantile(0.75) - quantile(0.25));
    const Values merged = MergeArrays(merge);
    for (size_t k = 0; k < kCount; ++k)
      ASSERT_EQ(merged[k], scores[k] >= threshold ? merge.inputs[1][k] : merge.base[k]) << k;
  }
}

TEST(ArceeFusion, OfEqualModelsIsTheBase) {
  ArrayMerge merge = WithDefaults("arcee_fusion", {}, {RandomFloats(kCount, 1), RandomFloats(kCount, 1)});
  merge.base = merge.inputs[0];
  EXPECT_TRUE(SameBits(MergeArrays(merge), merge.base));
}

}  // namespace
}  // namespace mergepipe
