#include "planner/mask.h"

#include <gtest/gtest.h>

namespace mergepipe {
namespace {

TEST(TensorMask, ReadsEverythingUntilItIsMade) {
  const TensorMask mask;
  EXPECT_TRUE(mask.reads_all());
  for (const size_t source : {0u, 1u, 7u}) {
    EXPECT_EQ(mask.From(source, 12), source);
    EXPECT_EQ(mask.FromAt(source, 1ull << 40), source);
    EXPECT_TRUE(mask.Reads(source, 3));
  }
}

TEST(TensorMask, IsMadeToReadTheReferenceAlone) {
  const TensorMask mask(3, 100, 32);
  EXPECT_FALSE(mask.reads_all());
  EXPECT_EQ(mask.blocks(), 4u);
  EXPECT_EQ(mask.sources(), 3u);
  for (size_t b = 0; b < mask.blocks(); ++b) {
    EXPECT_TRUE(mask.Reads(0, b));
    for (const size_t s : {1u, 2u}) {
      EXPECT_EQ(mask.From(s, b), TensorMask::kOmitted);
      EXPECT_FALSE(mask.Reads(s, b));
    }
  }
}

TEST(TensorMask, TheLastBlockMayBeShort) {
  EXPECT_EQ(TensorMask(2, 1, 32).blocks(), 1u);
  EXPECT_EQ(TensorMask(2, 32, 32).blocks(), 1u);
  EXPECT_EQ(TensorMask(2, 33, 32).blocks(), 2u);
}

TEST(TensorMask, WhatIsSetChangesThatBlockOfThatSourceAlone) {
  TensorMask mask(4, 100, 10);
  mask.Set(2, 5, 2);
  mask.Set(3, 5, 2);
  for (size_t s = 0; s < 4; ++s) {
    for (size_t b = 0; b < 10; ++b) {
      const bool read = s == 0 || (b == 5 && s == 2);
      EXPECT_EQ(mask.Reads(s, b), read) << s << " " << b;
      EXPECT_EQ(mask.From(s, b) == TensorMask::kOmitted, !read && !(b == 5 && s == 3)) << s << " " << b;
    }
  }
}

TEST(TensorMask, ASharedBlockIsHeldByAnotherAndNotRead) {
  TensorMask mask(3, 100, 10);
  mask.Set(1, 0, 1);
  mask.Set(2, 0, 1);
  EXPECT_EQ(mask.From(2, 0), 1u);
  EXPECT_FALSE(mask.Reads(2, 0));
  EXPECT_TRUE(mask.Reads(1, 0));
  mask.Set(2, 0, TensorMask::kOmitted);
  EXPECT_EQ(mask.From(2, 0), TensorMask::kOmitted);
}

TEST(TensorMask, ElementsBelongToTheBlockThatTheyLieIn) {
  TensorMask mask(2, 100, 10);
  mask.Set(1, 3, 1);
  for (uint64_t element = 0; element < 100; ++element)
    EXPECT_EQ(mask.FromAt(1, element), element / 10 == 3 ? 1u : TensorMask::kOmitted) << element;
}

TEST(TensorMask, ManySourcesKeepTheirNumbers) {
  TensorMask mask(1'000, 1, 1);
  for (size_t s = 1; s < 1'000; ++s)
    mask.Set(s, 0, s % 2 == 1 ? s : s - 1);
  for (size_t s = 1; s < 1'000; ++s)
    EXPECT_EQ(mask.From(s, 0), s % 2 == 1 ? s : s - 1);
}

}  // namespace
}  // namespace mergepipe
