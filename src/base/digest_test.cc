#include "base/digest.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace mergepipe {
namespace {

Digest128 Of(std::string_view text) {
  return DigestOf(std::as_bytes(std::span(text)));
}

// Digests are stored in manifests: these values may never change.
TEST(Digest, KnownTextsHaveTheirPublishedDigests) {
  EXPECT_EQ(Hex(Of("")), "99aa06d3014798d86001c324468d497f");  // XXH3-128, seed 0
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hash64("", 0), 0x2d06800538d394c2u);  // XXH3-64
}

TEST(Digest, HexHas32DigitsHighWordFirst) {
  EXPECT_EQ(Hex({.low = 0x1, .high = 0xabc}), "0000000000000abc0000000000000001");
}

TEST(Digest, OneBitAnywhereChangesIt) {
  std::string text(1000, 'x');
  const Digest128 whole = Of(text);
  for (size_t i = 0; i < text.size(); i += 37) {
    text[i] ^= 1;
    EXPECT_FALSE(Of(text) == whole) << i;
    text[i] ^= 1;
  }
}

TEST(Digest, TheOrderOfChildrenCounts) {
  const std::vector<Digest128> children = {Of("a"), Of("b")};
  const std::vector<Digest128> turned = {Of("b"), Of("a")};
  EXPECT_FALSE(DigestOf(std::span(children)) == DigestOf(std::span(turned)));
}

TEST(Hash64, DependsOnTextAndSeed) {
  EXPECT_EQ(Hash64("tensor", 7), Hash64("tensor", 7));
  EXPECT_NE(Hash64("tensor", 7), Hash64("tensor", 8));
  EXPECT_NE(Hash64("tensor", 7), Hash64("tensos", 7));
}

}  // namespace
}  // namespace mergepipe
