#include "methods/ranked_drop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/uniform.h"

namespace mergepipe {
namespace {

// The chance grows with the magnitude, falls, or is the same for all.
const KeepRule kRules[] = {
    {.kind = KeepRule::Kind::kRanked, .probability = 0.2f, .span = 0.25f, .stream = 99},
    {.kind = KeepRule::Kind::kRanked, .probability = 0.9f, .span = -0.35f, .stream = 98},
    {.kind = KeepRule::Kind::kRanked, .probability = 0.4f, .span = 0, .stream = 97}};

RankGroups Groups(const std::vector<uint64_t>& shape) {
  const uint64_t elements = std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies());
  return RankGroups::Of({.elements = elements, .shape = shape});
}

// Few magnitudes, so that many are equal, among others of any size.
std::vector<float> Deltas(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> deltas(count);
  for (float& d : deltas)
    d = random() % 3 == 0 ? std::ldexp(static_cast<float>(random()), -static_cast<int>(random() % 60))
                          : static_cast<float>(random() % 9) * (random() % 2 == 0 ? 1.0f : -1.0f);
  return deltas;
}

// By sorting each row along the second axis.
std::vector<float> KeepBySorting(const KeepRule& rule, std::vector<float> deltas,
                                 const std::vector<uint64_t>& shape) {
  const uint64_t row = shape.size() < 2 ? deltas.size() : shape[1];
  uint64_t stride = 1;
  for (size_t axis = 2; axis < shape.size(); ++axis)
    stride *= shape[axis];
  const std::vector<float> all = deltas;
  for (uint64_t start = 0; start < all.size(); ++start) {
    if (start / stride % row != 0) continue;  // no row begins here
    std::vector<uint64_t> at(row);
    for (uint64_t k = 0; k < row; ++k)
      at[k] = start + k * stride;
    std::stable_sort(at.begin(), at.end(),
                     [&](uint64_t a, uint64_t b) { return std::fabs(all[a]) < std::fabs(all[b]); });
    for (uint64_t rank = 0; rank < row; ++rank) {
      const float share = row > 1 ? static_cast<float>(rank) / static_cast<float>(row - 1) : 0.5f;
      const float chance = share * 2 * rule.span + rule.probability;
      if (!(kernels::UniformAt(rule.stream, at[rank]) < chance)) deltas[at[rank]] = 0;
    }
  }
  return deltas;
}

const std::vector<uint64_t> kShapes[] = {{1000},      {1},          {7, 1},       {40, 3},
                                         {6, 256},    {6, 257},     {3, 5000},    {4, 6, 5},
                                         {2, 300, 7}, {3, 1, 8, 2}, {2, 4, 3, 5}, {1, 900}};

TEST(RankedKeep, KeepsWhatSortingSays) {
  for (const auto& shape : kShapes) {
    const uint64_t count = std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies());
    const std::vector<float> deltas = Deltas(count, 3);
    RankedKeep keep;
    for (const KeepRule& rule : kRules) {
      keep.Begin(Groups(shape), 0, count, 1);
      keep.Take(rule, 0, deltas.data(), count);
      std::vector<float> kept = deltas;
      keep.Apply(0, kept.data(), count, 0);
      EXPECT_EQ(kept, KeepBySorting(rule, deltas, shape)) << testing::PrintToString(shape);
    }
  }
}

// Items at the borders of groups, several inputs, and runs of any length.
TEST(RankedKeep, DoesNotDependOnHowTheWorkIsCut) {
  std::mt19937 random(5);
  for (const auto& shape : kShapes) {
    const RankGroups groups = Groups(shape);
    const uint64_t count = std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies());
    const std::vector<float> inputs[] = {Deltas(count, 3), Deltas(count, 4)};
    RankedKeep keep;
    for (uint64_t first = 0; first < count;) {
      const uint64_t item =
          groups.elements() * std::min<uint64_t>((count - first) / groups.elements(), 1 + random() % 3);
      keep.Begin(groups, first, item, 2);
      for (size_t i = 0; i < 2; ++i) {
        for (uint64_t at = 0; at < item;) {
          const uint64_t n = std::min<uint64_t>(item - at, 1 + random() % 400);
          keep.Take(kRules[i], i, inputs[i].data() + first + at, n);
          at += n;
        }
      }
      for (size_t i = 0; i < 2; ++i) {
        const std::vector<float> want = KeepBySorting(kRules[i], inputs[i], shape);
        for (uint64_t at = 0; at < item;) {
          const uint64_t n = std::min<uint64_t>(item - at, 1 + random() % 400);
          std::vector<float> run(inputs[i].begin() + static_cast<long>(first + at),
                                 inputs[i].begin() + static_cast<long>(first + at + n));
          keep.Apply(i, run.data(), n, first + at);
          ASSERT_TRUE(std::equal(run.begin(), run.end(), want.begin() + static_cast<long>(first + at)))
              << testing::PrintToString(shape) << " from " << first + at;
          at += n;
        }
      }
      first += item;
    }
  }
}

}  // namespace
}  // namespace mergepipe
