#include "base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace mergepipe {
namespace {

std::vector<double> MixedValues(size_t count) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(-300, 300);
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(std::ldexp(mantissa(random), exponent(random)));
  return values;
}

TEST(ExactSum, OrderAndGroupingChangeNothing) {
  std::vector<double> values = MixedValues(1000);
  ExactSum whole;
  for (const double v : values)
    whole.Add(v);
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    ExactSum first, second;
    for (size_t i = 0; i < values.size(); ++i)
      (i % 3 == 0 ? first : second).Add(values[i]);
    first.Merge(second);
    EXPECT_EQ(first.Value(), whole.Value());
  }
}

TEST(ExactSum, CancellationLeavesTheSmallRest) {
  ExactSum sum;
  for (const double v : {1e300, 1.0, -1e300, 1e-300, -1.0})
    sum.Add(v);
  EXPECT_EQ(sum.Value(), 1e-300);
}

TEST(ExactSum, SingleValuesAreExactAtEveryScale) {
  for (const double v : {0.0, 1.0, -1.0, 5e-324, -5e-324, 1.7976931348623157e308, -2.2250738585072014e-308,
                         3.141592653589793}) {
    ExactSum sum;
    sum.Add(v);
    EXPECT_EQ(sum.Value(), v);
  }
}

TEST(ExactSum, NonFiniteInputsMakeNan) {
  ExactSum sum;
  sum.Add(1);
  sum.Add(INFINITY);
  EXPECT_TRUE(std::isnan(sum.Value()));
  ExactSum other;
  other.Merge(sum);
  EXPECT_TRUE(std::isnan(other.Value()));
}

}  // namespace
}  // namespace mergepipe
