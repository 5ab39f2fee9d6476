#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "planner/plan.h"

namespace mergepipe {

/// Digest of one tensor's stored bytes as a tree: leaves of a fixed number of elements (16 KiB of the
/// reference's type), chunks of kLeavesPerChunk leaves, one root. Leaves may be set in any order and by
/// several threads, so that block size, threads and memory do not show in it.
class DigestTree {
 public:
  DigestTree() = default;
  explicit DigestTree(uint64_t leaves) : leaves_(leaves) {}

  /// Hashes `bytes`, which begin at leaf `first`; all leaves but the tensor's last have `leaf_bytes`.
  void Set(uint64_t first, std::span<const std::byte> bytes, uint64_t leaf_bytes) {
    for (uint64_t leaf = first; !bytes.empty(); ++leaf) {
      const size_t size = std::min<size_t>(leaf_bytes, bytes.size());
      leaves_[leaf] = DigestOf(bytes.first(size));
      bytes = bytes.subspan(size);
    }
  }

  /// Takes the digest of one leaf.
  void Put(uint64_t leaf, const Digest128& digest) { leaves_[leaf] = digest; }

  /// Copies the digests of leaves that are known to have the same bytes in another tree.
  void Share(const DigestTree& other, uint64_t first, uint64_t count) {
    for (uint64_t leaf = first; leaf < std::min<uint64_t>(first + count, leaves_.size()); ++leaf)
      leaves_[leaf] = other.leaves_[leaf];
  }

  /// Digest of each run of `leaves` leaves.
  std::vector<Digest128> Chunks(uint64_t leaves = kLeavesPerChunk) const {
    std::vector<Digest128> chunks;
    for (uint64_t i = 0; i < leaves_.size(); i += leaves)
      chunks.push_back(
          DigestOf(std::span(leaves_).subspan(i, std::min<uint64_t>(leaves, leaves_.size() - i))));
    return chunks;
  }

  Digest128 RootDigest() const { return DigestOf(std::span<const Digest128>(Chunks())); }
  std::string Root() const { return Hex(RootDigest()); }

 private:
  std::vector<Digest128> leaves_;
};

}  // namespace mergepipe
