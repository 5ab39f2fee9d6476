#include "txn/digest_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace mergepipe {
namespace {

constexpr uint64_t kLeaf = 64;

std::string Content(size_t bytes) {
  std::mt19937 random(2);
  std::string content(bytes, '\0');
  for (char& byte : content)
    byte = static_cast<char>(random());
  return content;
}

std::span<const std::byte> Bytes(const std::string& content, size_t first, size_t count) {
  return std::as_bytes(std::span(content)).subspan(first, count);
}

uint64_t LeavesOf(const std::string& content) {
  return (content.size() + kLeaf - 1) / kLeaf;
}

// The tree of content set in runs of `leaves` leaves, the last run first.
DigestTree TreeOf(const std::string& content, size_t leaves) {
  DigestTree tree(LeavesOf(content));
  const size_t run = leaves * kLeaf;
  for (size_t i = (content.size() + run - 1) / run; i-- > 0;)
    tree.Set(i * leaves, Bytes(content, i * run, std::min(run, content.size() - i * run)), kLeaf);
  return tree;
}

TEST(DigestTree, HowTheLeavesWereSetDoesNotShow) {
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{65}, size_t{16 * 64}, size_t{5'000}}) {
    const std::string content = Content(bytes);
    const DigestTree whole = TreeOf(content, LeavesOf(content));
    for (const size_t leaves : {size_t{1}, size_t{3}, size_t{16}, size_t{40}}) {
      EXPECT_EQ(TreeOf(content, leaves).Root(), whole.Root()) << bytes << ", " << leaves;
      EXPECT_EQ(TreeOf(content, leaves).Chunks(), whole.Chunks()) << bytes << ", " << leaves;
    }
  }
}

TEST(DigestTree, AChangedByteShowsInItsChunkAndTheRootAlone) {
  std::string content = Content(kLeaf * kLeavesPerChunk * 5 + 10);
  const DigestTree before = TreeOf(content, 7);
  for (const size_t at : {size_t{0}, size_t{kLeaf * kLeavesPerChunk}, content.size() - 1}) {
    content[at] ^= 4;
    const DigestTree after = TreeOf(content, 7);
    content[at] ^= 4;
    EXPECT_NE(after.Root(), before.Root());
    ASSERT_EQ(after.Chunks().size(), 6u);
    for (size_t chunk = 0; chunk < 6; ++chunk)
      EXPECT_EQ(after.Chunks()[chunk] == before.Chunks()[chunk], chunk != at / (kLeaf * kLeavesPerChunk));
  }
}

TEST(DigestTree, AChunkIsTheTreeOfItsOwnLeaves) {
  const std::string content = Content(kLeaf * kLeavesPerChunk * 3 + 100);
  const std::vector<Digest128> chunks = TreeOf(content, 4).Chunks();
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const std::string part = content.substr(chunk * kLeaf * kLeavesPerChunk, kLeaf * kLeavesPerChunk);
    EXPECT_EQ(TreeOf(part, 1).Chunks(), std::vector<Digest128>{chunks[chunk]});
  }
}

TEST(DigestTree, NothingHasADigestOfItsOwn) {
  EXPECT_TRUE(DigestTree(0).Chunks().empty());
  EXPECT_NE(DigestTree(0).Root(), TreeOf("x", 1).Root());
}

}  // namespace
}  // namespace mergepipe
