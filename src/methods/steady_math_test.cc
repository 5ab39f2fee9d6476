#include "methods/steady_math.h"

#include <gtest/gtest.h>

#include <random>

namespace mergepipe {
namespace {

// How far apart, in units of the last place of `want`.
double Ulps(double got, double want) {
  const double unit = std::nextafter(std::fabs(want), INFINITY) - std::fabs(want);
  return std::fabs(got - want) / unit;
}

TEST(SteadyExp, IsWithinFourUnitsInTheLastPlace) {
  std::mt19937_64 random(1);
  for (const double range : {1e-9, 1e-3, 1.0, 30.0, 699.0}) {
    std::uniform_real_distribution<double> draw(-range, range);
    for (int i = 0; i < 100'000; ++i) {
      const double x = draw(random);
      ASSERT_LE(Ulps(SteadyExp(x), std::exp(x)), 4) << x;
    }
  }
}

TEST(SteadyExp, HasEnds) {
  EXPECT_EQ(SteadyExp(0), 1);
  EXPECT_EQ(SteadyExp(-701), 0);
  EXPECT_EQ(SteadyExp(-INFINITY), 0);
  EXPECT_EQ(SteadyExp(1e9), SteadyExp(700));
}

TEST(SteadyLog, IsWithinFourUnitsInTheLastPlace) {
  std::mt19937_64 random(2);
  for (const double range : {1e-9, 1e-3, 0.3, 1.0, 30.0, 700.0}) {
    std::uniform_real_distribution<double> draw(-range, range);
    for (int i = 0; i < 100'000; ++i) {
      const double x = std::exp(draw(random));
      if (x != 1) {
        ASSERT_LE(Ulps(SteadyLog(x), std::log(x)), 4) << x;
      }
    }
  }
  EXPECT_EQ(SteadyLog(1), 0);
}

TEST(PowerOfTwo, IsExact) {
  for (const int k : {-1022, -1, 0, 1, 1023})
    EXPECT_EQ(PowerOfTwo(k), std::ldexp(1.0, k));
}

}  // namespace
}  // namespace mergepipe
