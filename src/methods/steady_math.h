#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace mergepipe {

// exp and log that give the same bits on every machine: the C library's choose their code by processor and
// version. Plain arithmetic only, so that nothing is left to the compiler. Errors stay below 4 units in the
// last place.

/// 2^k for k in [-1022, 1023].
inline double PowerOfTwo(int64_t k) {
  return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

/// e^x. Below -700 it is 0, above 700 e^700.
inline double SteadyExp(double x) {
  constexpr double kLog2E = 1.4426950408889634074;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // its lower 32 bits are 0: k · kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  if (x < -700) return 0;
  if (x > 700) x = 700;
  const double k = std::floor(x * kLog2E + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;  // |r| <= ln 2 / 2
  // The Taylor series to r^13, whose next term is below 2^-57.
  constexpr double kInverse[] = {1.0 / 13, 1.0 / 12, 1.0 / 11, 1.0 / 10, 1.0 / 9, 1.0 / 8, 1.0 / 7,
                                 1.0 / 6,  1.0 / 5,  1.0 / 4,  1.0 / 3,  1.0 / 2, 1.0};
  double sum = 1;
  for (const double inverse : kInverse)
    sum = 1 + sum * (r * inverse);
  return sum * PowerOfTwo(static_cast<int64_t>(k));
}

/// ln x for normal x > 0.
inline double SteadyLog(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kSqrtHalf = 0.70710678118654752440;
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1022;
  double fraction = std::bit_cast<double>((bits & 0xfffffffffffffu) | uint64_t{1022} << 52);  // in [1/2, 1)
  if (fraction < kSqrtHalf) {
    fraction *= 2;
    --exponent;
  }
  // ln f = 2 artanh(s), s = (f-1)/(f+1), |s| <= 0.1716; the series to s^21, whose next term is below 2^-57 of
  // the sum.
  const double s = (fraction - 1) / (fraction + 1);
  const double square = s * s;
  double sum = 0;
  for (int n = 21; n >= 3; n -= 2)
    sum = square * (1.0 / n + sum);
  const double log = 2 * s + 2 * s * sum;
  const auto k = static_cast<double>(exponent);
  return k * kLn2High + (log + k * kLn2Low);
}

}  // namespace mergepipe
