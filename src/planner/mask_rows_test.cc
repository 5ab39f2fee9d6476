#include "planner/mask_rows.h"

#include <gtest/gtest.h>

#include <random>

namespace mergepipe {
namespace {

struct Shape {
  size_t sources = 0;
  uint64_t elements = 0, block_elements = 0;
};

Shape RandomShape(std::mt19937& random) {
  return {1 + random() % 6, random() % 500, 1 + random() % 40};
}

// Holders are read themselves, as a plan makes them.
TensorMask RandomMask(const Shape& shape, std::mt19937& random) {
  TensorMask mask(shape.sources, shape.elements, shape.block_elements);
  for (size_t b = 0; b < mask.blocks(); ++b) {
    for (size_t s = 1; s < shape.sources; ++s) {
      const size_t other = random() % s;
      if (random() % 3 == 0) continue;
      mask.Set(s, b, random() % 2 == 0 && mask.Reads(other, b) ? other : s);
    }
  }
  return mask;
}

void ExpectEqual(const TensorMask& a, const TensorMask& b) {
  ASSERT_EQ(a.blocks(), b.blocks());
  ASSERT_EQ(a.sources(), b.sources());
  EXPECT_EQ(a.block_elements(), b.block_elements());
  for (size_t s = 0; s < a.sources(); ++s) {
    for (size_t k = 0; k < a.blocks(); ++k)
      EXPECT_EQ(a.From(s, k), b.From(s, k)) << s << " " << k;
  }
}

std::optional<TensorMask> Back(const Json& json, const Shape& shape) {
  return MaskFromRows(json, shape.sources, shape.elements, shape.block_elements);
}

TEST(MaskRows, ComeBackAsTheyWere) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const Shape shape = RandomShape(random);
    const TensorMask mask = RandomMask(shape, random);
    const auto back = Back(Json::parse(MaskRows(mask).dump()), shape);
    if (shape.elements == 0) continue;  // has no blocks, and no mask
    ASSERT_TRUE(back) << MaskRows(mask);
    ExpectEqual(*back, mask);
  }
}

TEST(MaskRows, AreRunsOfEqualStates) {
  TensorMask mask(3, 95, 10);
  for (size_t b = 2; b < 5; ++b)
    mask.Set(1, b, 1);
  mask.Set(2, 4, 1);
  EXPECT_EQ(MaskRows(mask), Json::parse(R"({"block_elements": 10,
      "rows": [[2, 0, 3, 2, 5, 0], [4, 0, 1, 2, 5, 0]]})"));
}

TEST(MaskRows, ThatDoNotFitAreRefused) {
  const Shape shape{.sources = 3, .elements = 95, .block_elements = 10};
  const auto fits = [&](const char* json) { return Back(Json::parse(json), shape).has_value(); };
  EXPECT_FALSE(fits(R"({"block_elements": 10, "rows": [[2, 0, 8, 2], [10, 2]]})"))
      << "nobody reads what it holds";
  EXPECT_TRUE(fits(R"({"block_elements": 10, "rows": [[2, 0, 8, 2], [2, 0, 8, 2]]})"));
  EXPECT_TRUE(fits(R"({"block_elements": 10, "rows": [[10, 1], [10, 3]]})")) << "held by the reference";
  for (const char* bad : {
           R"({"block_elements": 10, "rows": [[10, 2]]})",                    // a row too few
           R"({"block_elements": 10, "rows": [[10, 2], [10, 3], [10, 4]]})",  // and too many
           R"({"block_elements": 10, "rows": [[9, 2], [10, 3]]})",            // blocks too few
           R"({"block_elements": 10, "rows": [[11, 2], [10, 3]]})",           // and too many
           R"({"block_elements": 10, "rows": [[5, 2, 6, 0], [10, 3]]})",      // over two runs
           R"({"block_elements": 10, "rows": [[10, 3], [10, 3]]})",           // a later source holds it
           R"({"block_elements": 10, "rows": [[10, 2], [10, 4]]})",           // no such source
           R"({"block_elements": 10, "rows": [[10, 0], [10, 2]]})",           // the holder is left out
           R"({"block_elements": 10, "rows": [[10, 1], [10, 2]]})",           // the holder is held itself
           R"({"block_elements": 10, "rows": [[10], [10, 3]]})",              // no state
           R"({"block_elements": 10, "rows": [[10, 2, 0], [10, 3]]})",        // a count alone
           R"({"block_elements": 10, "rows": [[], [10, 3]]})",
           R"({"block_elements": 10, "rows": [[-1, 2], [10, 3]]})",
           R"({"block_elements": 10, "rows": [[18446744073709551615, 2], [10, 3]]})",
           R"({"block_elements": 10, "rows": [[10, -1], [10, 3]]})",
           R"({"block_elements": 10, "rows": [["10", 2], [10, 3]]})",
           R"({"block_elements": 10, "rows": [[10, null], [10, 3]]})",
           R"({"block_elements": 10, "rows": [[10.5, 2], [10, 3]]})",
           R"({"block_elements": 10, "rows": [[10, 2.5], [10, 3]]})",
           R"({"block_elements": 10, "rows": [[1e300, 2], [10, 3]]})",
           R"({"block_elements": 10, "rows": [{"10": 2}, [10, 3]]})",
           R"({"block_elements": 10, "rows": [10, 2]})",
           R"({"block_elements": 10, "rows": {"a": [10, 2], "b": [10, 3]}})",
           R"({"block_elements": 10, "rows": null})",
           R"({"block_elements": 10})",
           R"({"block_elements": 0, "rows": [[10, 2], [10, 3]]})",
           R"({"block_elements": -1, "rows": [[10, 2], [10, 3]]})",
           R"({"block_elements": 9, "rows": [[10, 2], [10, 3]]})",
           R"({"block_elements": "10", "rows": [[10, 2], [10, 3]]})",
           R"({"rows": [[10, 2], [10, 3]]})",
           "[]",
           "null",
           "7",
       })
    EXPECT_FALSE(fits(bad)) << bad;
}

TEST(MaskRows, OfTinyBlocksOfALargeTensorTakeNoMemory) {
  const uint64_t elements = 1ull << 46;
  EXPECT_FALSE(MaskFromRows(Json::parse(R"({"block_elements": 1, "rows": [[1, 2]]})"), 2, elements, 8192));
}

// A value somewhere in the rows becomes another.
void Tamper(Json& json, std::mt19937& random) {
  const std::vector<Json> values = {
      nullptr, -1, 0, 1, 2, 3, 1ull << 63, 1.5, 1e19, "", "10", true, Json::array(), Json::object()};
  Json* at = &json;
  while (at->is_structured() && !at->empty() && random() % 8 != 0) {
    auto child = at->begin();
    std::advance(child, random() % at->size());
    at = &*child;
  }
  if (at->is_array() && random() % 2 == 0) {
    at->push_back(values[random() % values.size()]);
  } else {
    *at = values[random() % values.size()];
  }
}

TEST(MaskRows, WhateverTheyHoldIsAMaskThatFitsOrNone) {
  std::mt19937 random(2);
  for (int round = 0; round < 20'000; ++round) {
    const Shape shape = RandomShape(random);
    Json json = MaskRows(RandomMask(shape, random));
    for (uint32_t changes = random() % 4; changes > 0; --changes)
      Tamper(json, random);
    const auto mask = Back(json, shape);
    if (!mask || mask->reads_all()) continue;
    ASSERT_EQ(mask->sources(), shape.sources) << json;
    for (size_t s = 0; s < mask->sources(); ++s) {
      for (size_t b = 0; b < mask->blocks(); ++b) {
        const size_t from = mask->From(s, b);
        ASSERT_TRUE(from == TensorMask::kOmitted || (from <= s && mask->Reads(from, b))) << json;
      }
    }
  }
}

}  // namespace
}  // namespace mergepipe
