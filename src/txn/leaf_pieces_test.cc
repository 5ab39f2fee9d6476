#include "txn/leaf_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

namespace mergepipe {
namespace {

constexpr uint64_t kLeaf = 64;

std::vector<std::byte> RandomBytes(size_t count) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

struct Piece {
  size_t first, size;
};

// Cuts at random places, mixed.
std::vector<Piece> Cut(size_t count, size_t most, std::mt19937& random) {
  std::vector<Piece> pieces;
  for (size_t at = 0; at < count;) {
    const size_t size = std::min<size_t>(count - at, 1 + random() % most);
    pieces.push_back({at, size});
    at += size;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

DigestTree TreeFor(size_t count) {
  return DigestTree((count + kLeaf - 1) / kLeaf);
}

TEST(LeafPieces, AnyPiecesInAnyOrderGiveTheDigestsOfTheWhole) {
  std::mt19937 random(2);
  for (const size_t count : {1, 63, 64, 65, 640, 1000}) {
    const std::vector<std::byte> bytes = RandomBytes(count);
    DigestTree whole = TreeFor(count);
    whole.Set(0, bytes, kLeaf);
    for (const size_t most : {1, 7, 64, 100, 400}) {
      DigestTree tree = TreeFor(count);
      LeafPieces pieces(kLeaf, count);
      for (const Piece& piece : Cut(count, most, random))
        pieces.Set(piece.first, std::span(bytes).subspan(piece.first, piece.size), tree);
      EXPECT_EQ(tree.Chunks(1), whole.Chunks(1)) << count << " bytes in pieces of up to " << most;
    }
  }
}

TEST(LeafPieces, TakesPiecesFromSeveralThreads) {
  constexpr size_t kCount = 100'000;
  std::mt19937 random(3);
  const std::vector<std::byte> bytes = RandomBytes(kCount);
  DigestTree whole = TreeFor(kCount), tree = TreeFor(kCount);
  whole.Set(0, bytes, kLeaf);
  LeafPieces pieces(kLeaf, kCount);
  const std::vector<Piece> cut = Cut(kCount, 90, random);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < cut.size(); i += 4)
        pieces.Set(cut[i].first, std::span(bytes).subspan(cut[i].first, cut[i].size), tree);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(tree.Chunks(1), whole.Chunks(1));
}

}  // namespace
}  // namespace mergepipe
