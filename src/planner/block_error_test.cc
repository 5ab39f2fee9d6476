#include "planner/block_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/text.h"
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
using tests::StoredTensor;
using tests::TempFolder;

// --- the form and its order, on made-up blocks

using Vectors = std::vector<std::vector<double>>;

// Some are zero, some repeat another, some cancel it.
Vectors RandomVectors(size_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Vectors vectors;
  for (size_t u = 0; u < count; ++u) {
    std::vector<double> v(4);
    const auto kind = random() % 6;
    const double scale = std::pow(10.0, static_cast<double>(random() % 5) - 2);
    for (size_t k = 0; k < v.size() && kind > 0; ++k)
      v[k] = u > 0 && kind == 1   ? vectors[u - 1][k]
             : u > 0 && kind == 2 ? -vectors[u - 1][k]
                                  : scale * normal(random);
    vectors.push_back(v);
  }
  return vectors;
}

BlockError ErrorOf(const Vectors& vectors, std::mt19937& random) {
  const size_t n = vectors.size();
  BlockError error;
  error.form.resize(n * n);
  for (size_t u = 0; u < n; ++u) {
    error.units.push_back({{u + 1}, random() % 3 == 0 ? 1'000 : 1 + random() % 100'000});
    for (size_t v = 0; v < n; ++v)
      error.form[u * n + v] =
          std::inner_product(vectors[u].begin(), vectors[u].end(), vectors[v].begin(), 0.0);
  }
  return error;
}

double Energy(const std::vector<double>& v) {
  return std::inner_product(v.begin(), v.end(), v.begin(), 0.0);
}

double Largest(const BlockError& error) {
  double sum = 0;
  for (const double x : error.form)
    sum += std::fabs(x);
  return sum;
}

TEST(BlockError, IsTheSquaredNormOfTheSumOfWhatIsLeftOut) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const Vectors vectors = RandomVectors(1 + random() % 6, random);
    const BlockError error = ErrorOf(vectors, random);
    std::vector<bool> left_out(vectors.size());
    std::vector<double> sum(4, 0), all(4, 0);
    for (size_t u = 0; u < vectors.size(); ++u) {
      left_out[u] = random() % 2 == 0;
      for (size_t k = 0; k < 4; ++k) {
        sum[k] += left_out[u] ? vectors[u][k] : 0;
        all[k] += vectors[u][k];
      }
    }
    EXPECT_NEAR(error.Of(left_out), Energy(sum), 1e-12 * Largest(error));
    EXPECT_NEAR(error.OfAll(), Energy(all), 1e-12 * Largest(error));
    EXPECT_EQ(error.Of(std::vector<bool>(vectors.size(), false)), 0);
  }
}

double Rate(const ReadStep& step) {
  return step.gain / static_cast<double>(std::max<uint64_t>(1, step.bytes));
}

void ExpectOrder(const BlockError& error) {
  const std::vector<ReadStep> steps = OrderBlock(error);
  double gain = 0;
  std::vector<size_t> read;
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_GE(steps[i].gain, 0);
    const double before = i > 0 ? Rate(steps[i - 1]) : std::numeric_limits<double>::infinity();
    EXPECT_LE(Rate(steps[i]), before) << "step " << i;
    uint64_t bytes = 0;
    for (const size_t u : steps[i].units) {
      read.push_back(u);
      bytes += error.units[u].bytes;
    }
    EXPECT_EQ(steps[i].bytes, bytes);
    gain += steps[i].gain;
  }
  EXPECT_NEAR(gain, error.OfAll(), 1e-12 * Largest(error));
  std::sort(read.begin(), read.end());
  std::vector<size_t> all(error.units.size());
  std::iota(all.begin(), all.end(), size_t{0});
  EXPECT_EQ(read, all) << "every unit once";
}

TEST(OrderBlock, ReadsEveryUnitOnceAtRatesThatNeverRiseAndGainsThatAddUp) {
  std::mt19937 random(2);
  for (int round = 0; round < 2'000; ++round)
    ExpectOrder(ErrorOf(RandomVectors(random() % 8, random), random));
}

TEST(OrderBlock, KeepsItsLawsForFormsThatNoVectorsHave) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 2'000; ++round) {
    BlockError error = ErrorOf(RandomVectors(1 + random() % 6, random), random);
    const size_t n = error.units.size();
    for (size_t u = 0; u < n; ++u) {
      for (size_t v = u; v < n; ++v)
        error.form[u * n + v] = error.form[v * n + u] += 0.3 * normal(random);
    }
    ExpectOrder(error);
  }
}

// The steps' gains are those of the error that is left.
TEST(OrderBlock, GainsAreDifferencesOfTheError) {
  std::mt19937 random(4);
  for (int round = 0; round < 500; ++round) {
    const BlockError error = ErrorOf(RandomVectors(1 + random() % 6, random), random);
    std::vector<bool> left_out(error.units.size(), true);
    for (const ReadStep& step : OrderBlock(error)) {
      const double before = error.Of(left_out);
      for (const size_t u : step.units)
        left_out[u] = false;
      EXPECT_NEAR(step.gain, before - error.Of(left_out), 1e-12 * Largest(error));
    }
  }
}

TEST(OrderBlock, UnitsThatCancelAreOneBundle) {
  BlockError error;
  for (size_t u = 0; u < 3; ++u)
    error.units.push_back({{u + 1}, 100});
  error.form = {4, -4, 0, -4, 4, 0, 0, 0, 1};
  const auto steps = OrderBlock(error);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].units, std::vector<size_t>{2});
  EXPECT_EQ(steps[1].units, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(steps[1].gain, 0);
  EXPECT_EQ(steps[1].bytes, 200u);
}

TEST(OrderBlock, CheapUnitsComeBeforeDearOnes) {
  BlockError error;
  error.units = {{{1}, 400}, {{2}, 100}};
  error.form = {8, 0, 0, 4};
  const auto steps = OrderBlock(error);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].units, std::vector<size_t>{1});
}

TEST(OrderBlock, OfNothingIsNothing) {
  EXPECT_TRUE(OrderBlock({}).empty());
}

// --- blocks of a tensor

constexpr PlanOptions kOptions{.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock};

/// A merge of experts whose deltas are given, in blocks of 4096 elements of F32.
class Deltas {
 public:
  explicit Deltas(const std::vector<std::vector<double>>& deltas,
                  const std::string& method = "task_arithmetic", const std::string& parameters = "{}",
                  bool thresholds = false) {
    const StoredTensor base = tests::RandomTensor("w", DType::kF32, {deltas[0].size()}, 7);
    tests::WriteCheckpoint(folder_ / "base", {base});
    for (size_t e = 0; e < deltas.size(); ++e) {
      std::vector<double> values = tests::ValuesOf(base);
      for (size_t k = 0; k < values.size(); ++k)
        values[k] += deltas[e][k];
      tests::WriteCheckpoint(folder_ / ("expert" + std::to_string(e + 1)),
                             {tests::TensorOf("w", DType::kF32, base.shape, values)});
    }
    planned = Must(PlanRecipe(folder_.path(), RecipeOf(method, deltas.size(), parameters), kOptions));
    evidence = tests::ReckonEvidence(planned.plan, thresholds);
    if (thresholds) planned.plan = tests::DraftWith(planned.plan, evidence);
  }
  TensorErrors Errors(bool gram = true) const { return {planned.plan, 0, evidence.tensors[0], gram}; }

  Planned planned;
  FakeEvidence evidence;

 private:
  TempFolder folder_;
};

std::vector<double> Normal(size_t count, uint32_t seed, double scale = 0.1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values(count);
  for (double& value : values)
    value = normal(random);
  return values;
}

TEST(TensorErrors, EnergiesAreThoseOfTheWeighedDeltas) {
  const Deltas deltas({Normal(10'000, 1), Normal(10'000, 2, 0.5)});
  const TensorErrors errors = deltas.Errors();
  ASSERT_EQ(errors.blocks(), 3u);
  for (size_t s = 1; s <= 2; ++s) {
    const double weight = 0.2 + 0.3 * static_cast<double>(s);
    const std::vector<double> delta = tests::DeltaOf(deltas.planned.plan, 0, s);
    EXPECT_NEAR(errors.Coefficient(s), weight, 1e-7);
    for (size_t b = 0; b < 3; ++b) {
      double energy = 0;
      for (size_t k = b * 4096; k < std::min<size_t>(10'000, (b + 1) * 4096); ++k)
        energy += delta[k] * delta[k];
      EXPECT_NEAR(errors.RawEnergy(s, b), energy, 1e-12 * energy);
      EXPECT_NEAR(errors.Energy(s, b), errors.Coefficient(s) * errors.Coefficient(s) * energy,
                  1e-12 * energy);
    }
    EXPECT_EQ(errors.BlockBytes(s, 0), tests::kSmallBlock);
    EXPECT_EQ(errors.BlockBytes(s, 2), (10'000 - 2 * 4096) * 4u);
  }
}

// Experts that agree, cancel and have nothing to do with each other: the sketches tell them apart.
TEST(TensorErrors, TheFormIsNearThatOfTheDeltas) {
  const std::vector<double> one = Normal(8'192, 1), other = Normal(8'192, 2);
  std::vector<double> agreeing = Normal(8'192, 3, 0.02), opposed = Normal(8'192, 4, 0.02);
  for (size_t k = 0; k < one.size(); ++k) {
    agreeing[k] += one[k];
    opposed[k] -= one[k];
  }
  const Deltas deltas({one, agreeing, opposed, other});
  const TensorErrors errors = deltas.Errors();
  for (size_t b = 0; b < 2; ++b) {
    const BlockError block = errors.Block(b);
    ASSERT_EQ(block.units.size(), 4u);
    for (size_t u = 0; u < 4; ++u) {
      const std::vector<double> x = tests::DeltaOf(deltas.planned.plan, 0, u + 1);
      for (size_t v = 0; v < 4; ++v) {
        const std::vector<double> y = tests::DeltaOf(deltas.planned.plan, 0, v + 1);
        double dot = 0;
        for (size_t k = b * 4096; k < (b + 1) * 4096; ++k)
          dot += x[k] * y[k];
        const double scale = errors.Coefficient(u + 1) * errors.Coefficient(v + 1);
        const double norms = std::sqrt(errors.RawEnergy(u + 1, b) * errors.RawEnergy(v + 1, b));
        EXPECT_NEAR(block.form[u * 4 + v] / scale, dot, 0.25 * norms) << u << " " << v;
        EXPECT_EQ(block.form[u * 4 + v], block.form[v * 4 + u]);
      }
    }
  }
}

TEST(TensorErrors, WithoutInnerProductsEachSourceCountsOnItsOwn) {
  const std::vector<double> one = Normal(4'096, 1);
  std::vector<double> near = one;
  near[5] += 1;
  const Deltas deltas({one, near});
  const BlockError block = deltas.Errors(/*gram=*/false).Block(0);
  ASSERT_EQ(block.units.size(), 2u);
  EXPECT_EQ(block.form[1], 0);
  EXPECT_GT(deltas.Errors(/*gram=*/true).Block(0).form[1], 0);
}

TEST(TensorErrors, EqualBytesAreOneUnitThatAgreesWithItself) {
  const std::vector<double> one = Normal(4'096, 1);
  const Deltas deltas({one, Normal(4'096, 2), one});
  const TensorErrors errors = deltas.Errors();
  const BlockError block = errors.Block(0);
  ASSERT_EQ(block.units.size(), 2u);
  EXPECT_EQ(block.units[0].sources, (std::vector<size_t>{1, 3}));
  EXPECT_EQ(block.units[0].bytes, tests::kSmallBlock) << "read once";
  const double weight = errors.Coefficient(1) + errors.Coefficient(3);
  EXPECT_NEAR(block.form[0], weight * weight * errors.RawEnergy(1, 0), 1e-9 * block.form[0]);
}

TEST(TensorErrors, BlocksEqualToTheBaseAreNoUnitsForAnyMethod) {
  std::vector<double> changed(8'192, 0);
  changed[5'000] = 1;
  for (const char* method : {"task_arithmetic", "linear", "ties", "dare_ties"}) {
    const Deltas deltas({changed, Normal(8'192, 2)}, method, "{density: 0.5}");
    const BlockError first = deltas.Errors().Block(0), second = deltas.Errors().Block(1);
    EXPECT_EQ(first.lossless, std::vector<size_t>{1}) << method;
    ASSERT_EQ(first.units.size(), 1u);
    EXPECT_EQ(first.units[0].sources, std::vector<size_t>{2});
    EXPECT_TRUE(second.lossless.empty());
    EXPECT_EQ(second.units.size(), 2u);
  }
}

TEST(TensorErrors, ABlockEqualInValueAloneIsLosslessWhereDeltasAreAllThatCounts) {
  for (const char* method : {"task_arithmetic", "linear"}) {
    Deltas deltas({Normal(4'096, 1)}, method);
    BlockColumns& columns = deltas.evidence.tensors[0].sources[1]->knowledge.blocks;
    columns.max_key[0] = 0;
    const bool of_deltas = std::string(method) == "task_arithmetic";
    EXPECT_EQ(deltas.Errors().Block(0).lossless.size(), of_deltas ? 1u : 0u) << method;
  }
}

TEST(TensorErrors, EstimatesAreNeverLosslessNorShared) {
  const std::vector<double> one = Normal(4'096, 1);
  Deltas deltas({std::vector<double>(4'096, 0), one, one});
  for (size_t s = 1; s <= 3; ++s)
    deltas.evidence.tensors[0].sources[s]->exact = false;
  const BlockError block = deltas.Errors().Block(0);
  EXPECT_TRUE(block.lossless.empty());
  EXPECT_EQ(block.units.size(), 3u);
}

TEST(TensorErrors, WhatNothingIsKnownOfIsAUnitWithoutEnergy) {
  Deltas deltas({Normal(4'096, 1), Normal(4'096, 2)});
  deltas.evidence.tensors[0].sources[1].reset();
  const BlockError block = deltas.Errors().Block(0);
  EXPECT_EQ(block.units.size(), 2u);
  EXPECT_EQ(block.form[0], 0);
  EXPECT_GT(block.form[3], 0);
}

// --- trimming

TEST(TensorErrors, BlocksBelowTheExactThresholdAreLossless) {
  std::vector<double> delta = Normal(8'192, 1, 1e-3);
  for (size_t k = 4'096; k < 8'192; ++k)
    delta[k] = k % 2 == 0 ? 1 : -1.5;
  const Deltas exact({delta}, "ties", "{density: 0.4}", /*thresholds=*/true);
  EXPECT_EQ(exact.Errors().Block(0).lossless, std::vector<size_t>{1});
  EXPECT_TRUE(exact.Errors().Block(1).lossless.empty());
  const Deltas estimated({delta}, "ties", "{density: 0.4}");
  EXPECT_TRUE(estimated.Errors().Block(0).lossless.empty()) << "the histogram's threshold is no exact one";
  EXPECT_LT(estimated.Errors().Energy(1, 0), 1e-6 * estimated.Errors().RawEnergy(1, 0));
}

TEST(TensorErrors, ABlockThatHasTheThresholdsOwnMagnitudeIsRead) {
  std::vector<double> delta(8'192, 0);
  delta[10] = 1;
  for (size_t k = 4'096; k < 8'192; ++k)
    delta[k] = 1;
  Deltas deltas({delta}, "ties", "{density: 0.3}", /*thresholds=*/true);
  auto& threshold = deltas.planned.plan.constants[0]->thresholds[0];
  threshold.key = deltas.evidence.tensors[0].sources[1]->knowledge.blocks.max_key[0];
  EXPECT_TRUE(deltas.Errors().Block(0).lossless.empty());
  threshold.key += 1;
  EXPECT_EQ(deltas.Errors().Block(0).lossless, std::vector<size_t>{1});
}

double EnergyAbove(const std::vector<double>& delta, size_t b, uint32_t key) {
  double sum = 0;
  for (size_t k = b * 4096; k < std::min(delta.size(), (b + 1) * 4096); ++k)
    sum += tests::KeyOf(delta[k]) >= key ? delta[k] * delta[k] : 0;
  return sum;
}

TEST(TensorErrors, EnergyAfterTrimmingIsNearThatAboveTheThreshold) {
  for (const double density : {0.05, 0.2, 0.5, 0.9}) {
    std::vector<double> delta = Normal(40'000, 11, 1);
    std::mt19937 random(5);
    for (size_t b = 0; b * 4096 < delta.size(); ++b) {
      const double scale = std::pow(2.0, static_cast<double>(random() % 600) / 100 - 3);
      for (size_t k = b * 4096; k < std::min(delta.size(), (b + 1) * 4096); ++k)
        delta[k] *= scale;
    }
    for (const bool thresholds : {false, true}) {
      const Deltas deltas({delta}, "ties", Format("{{density: {}}}", density), thresholds);
      const TensorErrors errors = deltas.Errors();
      const std::vector<double> stored = tests::DeltaOf(deltas.planned.plan, 0, 1);
      std::vector<uint32_t> keys;
      for (const double d : stored)
        keys.push_back(tests::KeyOf(d));
      std::sort(keys.rbegin(), keys.rend());
      const uint32_t key = keys[static_cast<size_t>(density * 40'000) - 1];
      const double square = errors.Coefficient(1) * errors.Coefficient(1);
      for (size_t b = 0; b < errors.blocks(); ++b)
        EXPECT_NEAR(errors.Energy(1, b) / square, EnergyAbove(stored, b, key), 0.3 * errors.RawEnergy(1, b))
            << "block " << b << " at density " << density;
    }
  }
}

TEST(TensorErrors, RandomDroppingScalesTheEnergyByWhatStaysAndHowItIsRescaled) {
  const std::vector<double> delta = Normal(4'096, 1);
  for (const bool rescale : {true, false}) {
    const Deltas deltas({delta}, "dare_linear", Format("{{density: 0.25, rescale: {}}}", rescale));
    const TensorErrors errors = deltas.Errors();
    const double square = errors.Coefficient(1) * errors.Coefficient(1);
    EXPECT_NEAR(errors.Energy(1, 0), square * errors.RawEnergy(1, 0) * (rescale ? 4 : 0.25),
                1e-9 * errors.Energy(1, 0));
  }
}

}  // namespace
}  // namespace mergepipe
