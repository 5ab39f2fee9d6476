#include "catalog/packing.h"

#include <gtest/gtest.h>

#include "kernels/kernels.h"

namespace mergepipe {
namespace {

std::vector<std::byte> Cut(std::vector<std::byte> bytes, size_t by) {
  bytes.resize(bytes.size() - by);
  return bytes;
}

TEST(Packing, HistogramsSurvive) {
  const std::vector<MagnitudeHistogram> all = {
      {},
      {{0, 1}},
      {{kernels::kHighBuckets - 1, 5}},
      {{0, 1}, {1, 1}, {2, 300}, {40000, 1}, {65535, uint64_t{1} << 40}},
  };
  for (const MagnitudeHistogram& histogram : all) {
    uint64_t elements = 0;
    for (const auto& [bucket, count] : histogram)
      elements += count;
    const auto back = UnpackHistogram(PackHistogram(histogram), elements);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, histogram);
  }
}

TEST(Packing, WhatIsNoHistogramIsRefused) {
  const auto sound = PackHistogram({{7, 100}, {500, 3000}});
  EXPECT_TRUE(UnpackHistogram(sound, 3100).has_value());
  EXPECT_FALSE(UnpackHistogram(sound, 3099).has_value());
  EXPECT_FALSE(UnpackHistogram(sound, 3101).has_value());
  EXPECT_FALSE(UnpackHistogram(Cut(sound, 1), 3100).has_value());
  const std::vector<std::byte> endless(20, std::byte{0xff});
  EXPECT_FALSE(UnpackHistogram(endless, ~uint64_t{0}).has_value());
  EXPECT_FALSE(UnpackHistogram(PackHistogram({{65535, 1}, {65536, 1}}), 2).has_value());
}

TEST(Packing, ColumnsOfTheWrongLengthAreRefused) {
  const std::vector<uint32_t> column = {1, 2, 3};
  EXPECT_EQ(ColumnOf<uint32_t>(ColumnBytes(column), 3), column);
  EXPECT_FALSE(ColumnOf<uint32_t>(ColumnBytes(column), 2).has_value());
  EXPECT_FALSE(ColumnOf<uint32_t>(ColumnBytes(column), 4).has_value());
  EXPECT_FALSE(ColumnOf<uint32_t>(ColumnBytes(column).first(11), 2).has_value());
  EXPECT_TRUE(ColumnOf<uint32_t>({}, 0).has_value());
}

}  // namespace
}  // namespace mergepipe
