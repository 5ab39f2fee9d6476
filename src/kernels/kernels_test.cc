#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace mergepipe::kernels {
namespace {

const Kernels& Scalar() {
  return **ChooseKernels("scalar");
}

class EveryTarget : public testing::TestWithParam<std::string> {
 protected:
  const Kernels& kernels() const { return **ChooseKernels(GetParam()); }
};

// Every 16-bit pattern, or random bits of floats: NaN, infinities, subnormals and both zeros among them.
std::vector<uint16_t> AllPatterns() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<uint16_t>(i);
  return all;
}

std::vector<float> RandomBits(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values)
    v = std::bit_cast<float>(static_cast<uint32_t>(random()));
  return values;
}

std::vector<float> RandomNumbers(size_t count, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& v : values)
    v = normal(random);
  for (size_t i = 0; i < count; i += 7)
    values[i] = 0;
  return values;
}

template <typename V>
bool SameBits(const std::vector<V>& a, const std::vector<V>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(V)) == 0;
}

TEST_P(EveryTarget, SixteenBitTypesSurviveTheRoundTrip) {
  const std::vector<uint16_t> all = AllPatterns();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> wide(all.size());
    std::vector<uint16_t> back(all.size());
    kernels().f32.widen(dtype, all.data(), wide.data(), all.size());
    kernels().f32.narrow(dtype, wide.data(), back.data(), all.size());
    EXPECT_TRUE(SameBits(all, back)) << DTypeName(dtype);
  }
}

// Float16 values computed from the definition: (-1)^s 2^(e-15) (1 + m/1024), subnormal 2^-14 m/1024.
TEST_P(EveryTarget, WidenFollowsTheDefinition) {
  const std::vector<uint16_t> all = AllPatterns();
  std::vector<float> half(all.size()), brain(all.size());
  kernels().f32.widen(DType::kF16, all.data(), half.data(), all.size());
  kernels().f32.widen(DType::kBF16, all.data(), brain.data(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const int exponent = (all[i] >> 10) & 31;
    const int mantissa = all[i] & 1023;
    const double sign = (all[i] & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(half[i]), mantissa != 0);
    } else {
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(half[i], sign * value);
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(brain[i]), static_cast<uint32_t>(all[i]) << 16);
  }
}

// The nearest of all representable values, ties to the even pattern, found by search.
TEST_P(EveryTarget, NarrowRoundsToNearestEven) {
  const std::vector<uint16_t> all = AllPatterns();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> wide(all.size());
    kernels().f32.widen(dtype, all.data(), wide.data(), all.size());
    std::vector<float> values = RandomNumbers(20000, 3, 1.0f);
    const uint16_t top = dtype == DType::kF16 ? 0x7bff : 0x7f7f;
    for (uint16_t p = 0; p < top; p = static_cast<uint16_t>(p + 97)) {  // midpoints and their neighbours
      const float middle = static_cast<float>((static_cast<double>(wide[p]) + wide[p + 1]) / 2);
      for (const float v : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e30f), -middle})
        values.push_back(v);
    }
    std::vector<uint16_t> out(values.size());
    kernels().f32.narrow(dtype, values.data(), out.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = std::fabs(static_cast<double>(values[i]));
      uint32_t low = 0, high = top;
      while (low < high) {  // the largest pattern not above x
        const uint32_t middle = (low + high + 1) / 2;
        (wide[middle] <= x ? low : high) = wide[middle] <= x ? middle : middle - 1;
      }
      const double below = x - wide[low];
      const double above = low < top ? wide[low + 1] - x : INFINITY;
      const uint32_t nearest = below < above || (below == above && low % 2 == 0) ? low : low + 1;
      EXPECT_EQ(out[i] & 0x7fff, nearest) << values[i];
    }
  }
}

TEST_P(EveryTarget, NarrowingDoublesRoundsOnce) {
  // Just above the midpoint of two BF16 values, by less than a float32 can tell.
  const std::vector<double> values = {1.0 + 0x1p-8 + 0x1p-40, -(1.0 + 0x1p-8 + 0x1p-40), 1.0 + 0x1p-8,
                                      1.0 + 0x1p-8 - 0x1p-40};
  std::vector<uint16_t> out(values.size());
  kernels().f64.narrow(DType::kBF16, values.data(), out.data(), values.size());
  EXPECT_EQ(out, (std::vector<uint16_t>{0x3f81, 0xbf81, 0x3f80, 0x3f80}));
}

TEST_P(EveryTarget, EqualsTheScalarTargetBitForBit) {
  const auto& mine = kernels().f32;
  const auto& oracle = Scalar().f32;
  for (const size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{4096}, size_t{4095}}) {
    const std::vector<float> x = RandomBits(n, 1), y = RandomNumbers(n, 2, 0.5f),
                             z = RandomNumbers(n, 3, 2.0f);
    const auto both = [&](const char* what, auto run) {
      std::vector<float> a = z, b = z;
      run(mine, a);
      run(oracle, b);
      EXPECT_TRUE(SameBits(a, b)) << what << " at " << n;
    };
    both("subtract", [&](const auto& k, auto& out) { k.subtract(y.data(), z.data(), out.data(), n); });
    both("add_to_base", [&](const auto& k, auto& out) { k.add_to_base(x.data(), y.data(), out.data(), n); });
    both("add_scaled", [&](const auto& k, auto& out) { k.add_scaled(out.data(), y.data(), 0.3f, n); });
    both("scale", [&](const auto& k, auto& out) { k.scale(out.data(), 1.1f, n); });
    both("divide", [&](const auto& k, auto& out) { k.divide(out.data(), 0.7f, n); });
    both("divide_by", [&](const auto& k, auto& out) { k.divide_by(out.data(), y.data(), n); });
    both("keep_at_least",
         [&](const auto& k, auto& out) { k.keep_at_least(out.data(), std::bit_cast<uint32_t>(1.0f), n); });
    both("keep_below",
         [&](const auto& k, auto& out) { k.keep_below(out.data(), std::bit_cast<uint32_t>(1.0f), n); });
    both("keep_random", [&](const auto& k, auto& out) { k.keep_random(out.data(), 99, 1234567, 0.4f, n); });
    both("add_agreeing", [&](const auto& k, auto& out) {
      std::vector<float> weight(n, 0.0f);
      k.add_agreeing(y.data(), z.data(), -0.4f, out.data(), weight.data(), n);
      for (size_t i = 0; i < n; ++i)
        out[i] += weight[i];
    });
    EXPECT_EQ(mine.sum_abs(y.data(), n), oracle.sum_abs(y.data(), n));
    EXPECT_EQ(mine.dot(y.data(), z.data(), n), oracle.dot(y.data(), z.data(), n));
    EXPECT_EQ(mine.all_finite(y.data(), n), true);
  }
}

TEST_P(EveryTarget, DeltasOfStoredValuesAreWidenedDifferences) {
  const auto& loops = kernels().f32;
  constexpr size_t kCount = 1500;
  for (const DType x_dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    for (const DType base_dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
      std::vector<float> x = RandomNumbers(kCount, 11, 0.1f), base = RandomNumbers(kCount, 12, 0.1f);
      for (size_t i = 0; i < kCount; i += 5)
        x[i] = base[i];
      base[0] = x[0] = INFINITY;
      std::vector<double> stored_x(kCount), stored_base(kCount);  // room for every type
      loops.narrow(x_dtype, x.data(), stored_x.data(), kCount);
      loops.narrow(base_dtype, base.data(), stored_base.data(), kCount);
      std::vector<float> delta(kCount), want(kCount);
      loops.delta(x_dtype, stored_x.data(), base_dtype, stored_base.data(), delta.data(), kCount);
      Scalar().f32.widen(x_dtype, stored_x.data(), x.data(), kCount);
      Scalar().f32.widen(base_dtype, stored_base.data(), base.data(), kCount);
      Scalar().f32.subtract(x.data(), base.data(), want.data(), kCount);
      EXPECT_TRUE(SameBits(delta, want)) << DTypeName(x_dtype) << " - " << DTypeName(base_dtype);
      EXPECT_EQ(delta[0], 0.0f);
    }
  }
}

TEST_P(EveryTarget, OneBadValueAnywhereIsSeen) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (size_t at = 0; at < 100; at += 9) {
      std::vector<float> x(100, 1.0f);
      x[at] = bad;
      EXPECT_FALSE(kernels().f32.all_finite(x.data(), x.size()));
      EXPECT_FALSE(kernels().f32.all_stored_finite(DType::kF32, x.data(), x.size()));
      std::vector<uint16_t> stored(x.size());
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        kernels().f32.narrow(dtype, x.data(), stored.data(), x.size());
        EXPECT_FALSE(kernels().f32.all_stored_finite(dtype, stored.data(), x.size()));
      }
    }
  }
}

TEST_P(EveryTarget, NoUpdateKeepsTheBasesBits) {
  std::vector<float> base = {-0.0f, 0.0f, 1e-45f, std::bit_cast<float>(0x7fc01234u), INFINITY, 1.5f};
  std::vector<float> delta(base.size()), out(base.size());
  kernels().f32.subtract(base.data(), base.data(), delta.data(), base.size());
  for (const float d : delta)
    EXPECT_EQ(d, 0.0f);
  kernels().f32.add_to_base(base.data(), delta.data(), out.data(), base.size());
  EXPECT_TRUE(SameBits(base, out));
}

TEST_P(EveryTarget, CountsFindEveryElementOnce) {
  const std::vector<float> x = RandomNumbers(10001, 5, 1e-3f);
  std::vector<uint32_t> high(kHighBuckets, 0);
  kernels().f32.count_high(x.data(), x.size(), high.data());
  uint64_t total = 0;
  uint32_t fullest = 1;
  for (uint32_t b = 0; b < kHighBuckets; ++b) {
    total += high[b];
    if (b > 0 && high[b] > high[fullest]) fullest = b;
  }
  EXPECT_EQ(total, x.size());
  std::vector<uint32_t> low(kLowBuckets, 0);
  kernels().f32.count_low(x.data(), x.size(), fullest, low.data());
  uint64_t inside = 0;
  for (const uint32_t c : low)
    inside += c;
  EXPECT_EQ(inside, high[fullest]);
}

TEST_P(EveryTarget, RandomKeepingHasItsRateAndDependsOnTheIndexAlone) {
  const size_t n = 100000;
  std::vector<float> whole(n, 1.0f);
  kernels().f32.keep_random(whole.data(), 42, 0, 0.3f, n);
  double kept = 0;
  for (const float v : whole)
    kept += v;
  EXPECT_NEAR(kept / n, 0.3, 0.01);
  std::vector<float> parts(n, 1.0f);
  kernels().f32.keep_random(parts.data(), 42, 0, 0.3f, 777);
  kernels().f32.keep_random(parts.data() + 777, 42, 777, 0.3f, n - 777);
  EXPECT_TRUE(SameBits(whole, parts));
}

template <typename T>
std::vector<T> SketchByDefinition(const std::vector<T>& x, uint64_t first_row) {
  const auto mixed = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  std::vector<T> sums(kSketchBuckets, T{0});
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t h = mixed(first_row + i / kSketchBuckets + kGolden);
    const size_t j = i % kSketchBuckets;
    const size_t at = (h & 4095) + j;
    const bool positive = ((mixed((at / 64 + 1) * kGolden) >> (at % 64)) & 1) != 0;
    sums[(j + 16 * ((h >> 12) & 7)) % kSketchBuckets] += positive ? x[i] : -x[i];
  }
  return sums;
}

TEST_P(EveryTarget, SketchesFollowTheDefinition) {
  for (const size_t n : {size_t{1}, size_t{127}, size_t{128}, size_t{4096}, size_t{1000}}) {
    const std::vector<float> x = RandomNumbers(n, 21, 0.1f);
    const std::vector<double> wide(x.begin(), x.end());
    for (const uint64_t row : {uint64_t{0}, uint64_t{123456789}}) {
      std::vector<float> sums(kSketchBuckets, 0.0f);
      kernels().f32.add_sketch(x.data(), n, row, sums.data());
      EXPECT_TRUE(SameBits(sums, SketchByDefinition(x, row))) << n;
      std::vector<double> wide_sums(kSketchBuckets, 0.0);
      kernels().f64.add_sketch(wide.data(), n, row, wide_sums.data());
      EXPECT_TRUE(SameBits(wide_sums, SketchByDefinition(wide, row))) << n;
    }
  }
}

TEST_P(EveryTarget, SketchesOfRunsAddUp) {
  const std::vector<float> x = RandomNumbers(1024, 22, 1.0f);
  std::vector<float> whole(kSketchBuckets, 0.0f), parts(kSketchBuckets, 0.0f);
  kernels().f32.add_sketch(x.data(), x.size(), 5, whole.data());
  kernels().f32.add_sketch(x.data(), 256, 5, parts.data());
  kernels().f32.add_sketch(x.data() + 256, x.size() - 256, 7, parts.data());
  EXPECT_TRUE(SameBits(whole, parts));
}

TEST_P(EveryTarget, LargestKeysAndNonzerosAreCounted) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{33}, size_t{4096}}) {
    const std::vector<float> x = RandomBits(n, 23), y = RandomNumbers(n, 24, 1.0f);
    uint32_t largest = 0;
    for (const float v : x)
      largest = std::max(largest, std::bit_cast<uint32_t>(v) & 0x7fffffffu);
    EXPECT_EQ(kernels().f32.max_key(x.data(), n), largest);
    EXPECT_EQ(kernels().f32.count_nonzero(y.data(), n),
              n - static_cast<size_t>(std::count(y.begin(), y.end(), 0.0f)));
    const std::vector<double> tiny(n, 1e-300);
    EXPECT_EQ(kernels().f64.count_nonzero(tiny.data(), n), n);
    EXPECT_EQ(kernels().f64.max_key(tiny.data(), n), 0u);
  }
}

TEST_P(EveryTarget, ProductsOfSketchesAreExact) {
  std::mt19937 random(25);
  for (const size_t count : {size_t{1}, size_t{2}, size_t{16}, size_t{37}}) {
    std::vector<int8_t> values(count * kSketchBuckets);
    for (int8_t& v : values)
      v = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
    std::vector<const int8_t*> sketches;
    for (size_t i = 0; i < count; ++i)
      sketches.push_back(values.data() + i * kSketchBuckets);
    std::vector<int32_t> products(count * count);
    kernels().multiply_sketches(sketches.data(), count, products.data());
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) {
        int32_t want = 0;
        for (size_t k = 0; k < kSketchBuckets; ++k)
          want += sketches[i][k] * sketches[j][k];
        ASSERT_EQ(products[i * count + j], want) << i << " " << j << " of " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, EveryTarget, testing::ValuesIn(RunnableTargets()),
                         [](const auto& target) { return target.param; });

TEST(Kernels, ForcingATargetWorks) {
  for (const std::string& name : RunnableTargets())
    EXPECT_EQ((*ChooseKernels(name))->target, name);
  EXPECT_FALSE(ChooseKernels("quantum").has_value());
  EXPECT_EQ((*ChooseKernels(""))->target, RunnableTargets().back());
}

}  // namespace
}  // namespace mergepipe::kernels
