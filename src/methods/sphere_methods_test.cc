// The methods that turn vectors, against the same formulas taken with the vectors themselves, in double: the
// methods see inner products only.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/formula_checks.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::ArrayMerge;
using tests::ExpectNear;
using tests::Experts;
using tests::MergeArrays;
using tests::Moved;
using tests::RandomFloats;
using tests::Set;
using tests::SetWeights;
using tests::WithDefaults;
using Values = std::vector<float>;
using Vector = std::vector<double>;

constexpr size_t kCount = 1200;

double Dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double Norm(const Vector& a) {
  return std::sqrt(Dot(a, a));
}

// a + factor · b
Vector Plus(Vector a, double factor, const Vector& b) {
  for (size_t k = 0; k < a.size(); ++k)
    a[k] += factor * b[k];
  return a;
}

Vector Times(double factor, const Vector& a) {
  return Plus(Vector(a.size(), 0.0), factor, a);
}

Vector Wide(const Values& values) {
  return {values.begin(), values.end()};
}

// What the method turns: deltas, or the models where there is no base.
std::vector<Vector> Vectors(const ArrayMerge& merge) {
  std::vector<Vector> vectors;
  for (const Values& input : merge.inputs)
    vectors.push_back(merge.domain() == Domain::kDeltas ? Plus(Wide(input), -1, Wide(merge.base))
                                                        : Wide(input));
  return vectors;
}

void ExpectVector(const ArrayMerge& merge, Vector want) {
  if (merge.domain() == Domain::kDeltas) want = Plus(std::move(want), 1, Wide(merge.base));
  ExpectNear(MergeArrays(merge), [&](size_t k) { return want[k]; });
}

Values Scaled(Values values, float factor) {
  for (float& value : values)
    value *= factor;
  return values;
}

// --- karcher

Vector KarcherMean(const std::vector<Vector>& models, int steps, double tol) {
  std::vector<Vector> units;
  double length = 0;
  for (const Vector& model : models) {
    length += Norm(model) / static_cast<double>(models.size());
    if (Norm(model) > tol) units.push_back(Times(1 / Norm(model), model));
  }
  const double share = 1 / static_cast<double>(units.size());
  Vector mean(models[0].size(), 0.0);
  for (const Vector& unit : units)
    mean = Plus(std::move(mean), share, unit);
  mean = Times(1 / Norm(mean), mean);
  for (int step = 0; step < steps; ++step) {
    Vector tangent(mean.size(), 0.0);
    for (const Vector& unit : units) {
      const double cosine = std::min(1.0, Dot(mean, unit)), angle = std::acos(cosine);
      if (angle < tol) continue;
      tangent = Plus(std::move(tangent), share * angle / std::sin(angle), Plus(unit, -cosine, mean));
    }
    const double size = Norm(tangent);
    if (size < tol) break;
    mean = Plus(Times(std::cos(size), mean), std::sin(size) / size, tangent);
    mean = Times(1 / Norm(mean), mean);
  }
  return Times(length, mean);
}

ArrayMerge Unlike(const std::string& method, std::vector<double> scales) {
  std::vector<Values> models;
  for (size_t i = 0; i < scales.size(); ++i)
    models.push_back(RandomFloats(kCount, static_cast<uint32_t>(40 + i), scales[i]));
  return WithDefaults(method, models[0], models);
}

TEST(Karcher, IsTheMeanOnTheSphere) {
  for (const int steps : {0, 1, 2, 10}) {
    ArrayMerge merge = Unlike("karcher", {1, 3, 0.2, 5});
    Set(merge, "max_iter", steps);
    ExpectVector(merge, KarcherMean(Vectors(merge), steps, 1e-5));
  }
}

TEST(Karcher, OfOneModelIsThatModelBitForBit) {
  const ArrayMerge merge = Unlike("karcher", {2});
  EXPECT_EQ(MergeArrays(merge), merge.inputs[0]);
}

TEST(Karcher, OfEqualModelsIsThatModel) {
  ArrayMerge merge = Unlike("karcher", {1, 1, 1});
  merge.inputs[1] = merge.inputs[2] = merge.inputs[0];
  ExpectVector(merge, Wide(merge.inputs[0]));
}

TEST(Karcher, OfAnOppositePairIsTheFirstDirection) {
  for (const float opposite : {-1.0f, -3.0f, -0.7f, -1.7f, -1000.0f}) {
    ArrayMerge merge = Unlike("karcher", {1, 1});
    merge.inputs[1] = Scaled(merge.inputs[0], opposite);
    ExpectVector(merge, Times((1 + std::fabs(static_cast<double>(opposite))) / 2, Wide(merge.inputs[0])));
  }
}

TEST(Karcher, AModelOfZerosCountsForTheLengthAlone) {
  ArrayMerge merge = Unlike("karcher", {1, 1});
  merge.inputs[1].assign(kCount, 0.0f);
  ExpectVector(merge, Times(0.5, Wide(merge.inputs[0])));
  merge.inputs[0].assign(kCount, 0.0f);
  EXPECT_EQ(MergeArrays(merge), Values(kCount, 0.0f));
}

// --- multislerp

Vector AroundTheMean(const std::vector<Vector>& models, const std::vector<double>& weights, double eps) {
  const size_t n = models[0].size();
  Vector mean(n, 0.0), tangent(n, 0.0);
  double length = 0;
  std::vector<Vector> units;
  for (size_t i = 0; i < models.size(); ++i) {
    units.push_back(Times(1 / (Norm(models[i]) + eps), models[i]));
    mean = Plus(std::move(mean), weights[i], units[i]);
    length += weights[i] * Norm(models[i]);
  }
  mean = Times(1 / Norm(mean), mean);
  for (size_t i = 0; i < models.size(); ++i)
    tangent = Plus(std::move(tangent), weights[i], Plus(units[i], -Dot(units[i], mean), mean));
  const double q = Norm(tangent) + eps;
  return Times(length, Plus(Times(std::cos(q), mean), std::sin(q) / q, tangent));
}

TEST(Multislerp, TurnsAroundTheMeanDirection) {
  for (const bool base : {true, false}) {
    for (const bool normalize : {true, false}) {
      ArrayMerge merge = Unlike("multislerp", {1, 0.3, 2});
      merge.base = RandomFloats(kCount, 3);
      merge.names_base = base;
      SetWeights(merge, {0.5, 1, 0.25});
      Set(merge, "normalize_weights", normalize);
      const double sum = normalize ? 1.75 : 1;
      ExpectVector(merge, AroundTheMean(Vectors(merge), {0.5 / sum, 1 / sum, 0.25 / sum}, 1e-8));
    }
  }
}

TEST(Multislerp, OfOneModelIsThatModel) {
  ArrayMerge merge = Unlike("multislerp", {1});
  merge.names_base = false;
  SetWeights(merge, {0.3});
  EXPECT_EQ(MergeArrays(merge), merge.inputs[0]);
}

// x and −c x, or three vectors at 120° in a plane: there is no mean direction to turn around.
TEST(Multislerp, DirectionsThatCancelAreAddedByWeight) {
  for (const float opposite : {-1.0f, -2.0f, -0.3f, -0.7f, -1.7f, -3.1f, -1000.0f}) {
    ArrayMerge merge = Unlike("multislerp", {1, 1});
    merge.names_base = false;
    merge.inputs[1] = Scaled(merge.inputs[0], opposite);
    SetWeights(merge, {0.5, 0.5});
    ExpectVector(merge, Times((1 + static_cast<double>(opposite)) / 2, Wide(merge.inputs[0])));
  }
}

// The longer of two opposite numbers is a little nearer to a unit length: eps is added to both.
TEST(Multislerp, OfOneElementTheLongerOneGivesTheSign) {
  for (const auto& [first, second] :
       {std::pair(0.02f, -0.05f), std::pair(-0.05f, 0.02f), std::pair(0.02f, 0.05f)}) {
    ArrayMerge merge = WithDefaults("multislerp", {0}, {{first}, {second}});
    merge.names_base = false;
    SetWeights(merge, {0.5, 0.5});
    EXPECT_NEAR(MergeArrays(merge)[0], second < 0 || first < 0 ? -0.035 : 0.035, 1e-8);
  }
}

TEST(Multislerp, WeightsThatAddUpToZeroAreRefusedWhereTheyDivide) {
  ArrayMerge merge = Unlike("multislerp", {1, 1});
  SetWeights(merge, {0.5, -0.5});
  const TensorFacts facts{.elements = kCount, .shape = {kCount}};
  EXPECT_THAT(merge.method->request(facts, merge.params),
              tests::FailsWith(Code::kUsage, "normalize_weights"));
  Set(merge, "normalize_weights", 0);
  EXPECT_THAT(merge.method->request(facts, merge.params), tests::Succeeds());
}

// --- nuslerp

// On the arc between two vectors, or in a straight line between colinear ones.
Vector OnTheArc(const Vector& a, const Vector& b, double t) {
  const double cosine = Dot(a, b) / (std::max(Norm(a), 1e-7) * std::max(Norm(b), 1e-7));
  if (1 - cosine * cosine < 1e-14) return Plus(Times(1 - t, a), t, b);
  const double angle = std::acos(cosine);
  return Plus(Times(std::sin((1 - t) * angle) / std::sin(angle), a), std::sin(t * angle) / std::sin(angle),
              b);
}

// The same for each vector apart; element k belongs to vector group(k).
Vector ByVector(const std::vector<Vector>& pair, double t, const std::function<size_t(size_t)>& group,
                size_t groups) {
  Vector merged(pair[0].size());
  for (size_t g = 0; g < groups; ++g) {
    Vector a, b;
    for (size_t k = 0; k < merged.size(); ++k) {
      if (group(k) != g) continue;
      a.push_back(pair[0][k]);
      b.push_back(pair[1][k]);
    }
    const Vector turned = OnTheArc(a, b, t);
    for (size_t k = 0, next = 0; k < merged.size(); ++k) {
      if (group(k) == g) merged[k] = turned[next++];
    }
  }
  return merged;
}

TEST(Nuslerp, TurnsTensorsRowsOrColumns) {
  struct Case {
    std::vector<uint64_t> shape;
    bool columns;
    std::function<size_t(size_t)> group;
    size_t groups;
  };
  const Case cases[] = {
      {{30, 40}, false, [](size_t k) { return k / 40; }, 30},
      {{30, 40}, true, [](size_t k) { return k % 40; }, 40},
      {{5, 12, 20}, false, [](size_t k) { return k / 20; }, 60},
      {{5, 12, 20}, true, [](size_t k) { return k % 240; }, 240},
      {{kCount}, false, [](size_t) { return 0; }, 1},
      {{kCount}, true, [](size_t) { return 0; }, 1},
  };
  for (const Case& c : cases) {
    for (const bool base : {true, false}) {
      ArrayMerge merge = Unlike("nuslerp", {1, 2});
      merge.base = RandomFloats(kCount, 5);
      merge.names_base = base;
      merge.shape = c.shape;
      SetWeights(merge, {1, 3});
      Set(merge, "nuslerp_flatten", 0);
      Set(merge, "nuslerp_row_wise", c.columns);
      ExpectVector(merge, ByVector(Vectors(merge), 0.75, c.group, c.groups));
      Set(merge, "nuslerp_flatten", 1);
      ExpectVector(merge, OnTheArc(Vectors(merge)[0], Vectors(merge)[1], 0.75));
    }
  }
}

TEST(Nuslerp, OppositeVectorsAreInterpolatedInAStraightLine) {
  for (const float opposite : {-1.0f, -2.5f}) {
    ArrayMerge merge = Unlike("nuslerp", {1, 1});
    merge.names_base = false;
    merge.inputs[1] = Scaled(merge.inputs[0], opposite);
    SetWeights(merge, {3, 1});
    ExpectVector(merge, Times(0.75 + 0.25 * static_cast<double>(opposite), Wide(merge.inputs[0])));
  }
}

TEST(Nuslerp, WeightsThatAddUpToZeroMeanHalfWay) {
  ArrayMerge merge = Unlike("nuslerp", {1, 2});
  merge.names_base = false;
  SetWeights(merge, {-0.5, 0.5});
  ExpectVector(merge, OnTheArc(Vectors(merge)[0], Vectors(merge)[1], 0.5));
}

TEST(Nuslerp, RowsOfZerosStandAtARightAngle) {
  ArrayMerge merge = Unlike("nuslerp", {1, 2});
  merge.names_base = false;
  merge.shape = {30, 40};
  for (size_t k = 0; k < 40; ++k)
    merge.inputs[0][k] = merge.inputs[0][40 + k] = merge.inputs[1][40 + k] = 0;
  SetWeights(merge, {1, 1});
  Set(merge, "nuslerp_flatten", 0);
  const Values merged = MergeArrays(merge);
  for (size_t k = 0; k < 40; ++k) {
    EXPECT_NEAR(merged[k], std::sqrt(0.5) * merge.inputs[1][k], 1e-5);
    EXPECT_EQ(merged[40 + k], 0);
  }
}

// --- model_stock

Vector Stock(const std::vector<Vector>& deltas) {
  const size_t n = deltas.size();
  double cosine = 0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j)
      cosine += Dot(deltas[i], deltas[j]) / std::max(Norm(deltas[i]) * Norm(deltas[j]), 1e-6);
  }
  const auto count = static_cast<double>(n);
  cosine /= count * (count - 1) / 2;
  const double below = 1 + (count - 1) * cosine;
  Vector mean(deltas[0].size(), 0.0);
  for (const Vector& delta : deltas)
    mean = Plus(std::move(mean), 1 / count, delta);
  return Times(std::fabs(below) < 1e-6 ? 0 : count * cosine / below, mean);
}

// Deltas that agree in part, so that the ratio is neither 0 nor 1.
ArrayMerge Agreeing(size_t experts) {
  ArrayMerge merge = Experts("model_stock", experts, kCount);
  const Values shared = RandomFloats(kCount, 77, 0.1);
  for (Values& input : merge.inputs) {
    for (size_t k = 0; k < kCount; ++k)
      input[k] += shared[k];
  }
  return merge;
}

TEST(ModelStock, GoesTowardsTheMeanAsFarAsTheModelsAgree) {
  for (const size_t experts : {2, 3, 7})
    ExpectVector(Agreeing(experts), Stock(Vectors(Agreeing(experts))));
}

TEST(ModelStock, FilterWiseTakesEachRowByItself) {
  for (const std::vector<uint64_t>& shape : {std::vector<uint64_t>{30, 40}, {2, 15, 40}}) {
    ArrayMerge merge = Agreeing(3);
    merge.shape = shape;
    Set(merge, "filter_wise", 1);
    Vector want;
    for (size_t row = 0; row < 30; ++row) {
      std::vector<Vector> deltas = Vectors(merge);
      for (Vector& delta : deltas)
        delta = Vector(delta.begin() + static_cast<long>(40 * row),
                       delta.begin() + static_cast<long>(40 * row + 40));
      const Vector stock = Stock(deltas);
      want.insert(want.end(), stock.begin(), stock.end());
    }
    ExpectVector(merge, want);
  }
}

TEST(ModelStock, ATensorOfOneAxisIsOneRow) {
  ArrayMerge merge = Agreeing(3);
  const Values whole = MergeArrays(merge);
  Set(merge, "filter_wise", 1);
  EXPECT_EQ(MergeArrays(merge), whole);
}

TEST(ModelStock, OppositeModelsGiveTheBasesBits) {
  ArrayMerge merge = Experts("model_stock", 2, kCount);
  for (size_t k = 0; k < kCount; ++k) {
    merge.base[k] = std::round(merge.base[k] * 64) / 64;
    merge.inputs[0][k] = merge.base[k] + 0.25f * static_cast<float>(k % 7);
    merge.inputs[1][k] = merge.base[k] - 0.25f * static_cast<float>(k % 7);
  }
  EXPECT_EQ(MergeArrays(merge), merge.base);
}

}  // namespace
}  // namespace mergepipe
