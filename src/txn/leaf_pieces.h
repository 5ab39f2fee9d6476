#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "txn/digest_tree.h"

namespace mergepipe {

/// Hashes runs of stored bytes that need not begin or end where leaves do: the parts of a leaf are kept until
/// the last one is there. Runs of a tensor may come in any order and from several threads.
class LeafPieces {
 public:
  /// Bytes of a whole leaf, and of the tensor.
  LeafPieces(uint64_t leaf_bytes, uint64_t tensor_bytes)
      : leaf_bytes_(leaf_bytes), tensor_bytes_(tensor_bytes) {}

  /// Takes `bytes`, which begin at byte `first` of the tensor.
  void Set(uint64_t first, std::span<const std::byte> bytes, DigestTree& tree) {
    while (!bytes.empty()) {
      const uint64_t leaf = first / leaf_bytes_;
      const uint64_t size = std::min(leaf_bytes_, tensor_bytes_ - leaf * leaf_bytes_);
      const uint64_t begin = first - leaf * leaf_bytes_;
      const auto part = bytes.first(static_cast<size_t>(std::min<uint64_t>(size - begin, bytes.size())));
      if (part.size() == size) {
        tree.Put(leaf, DigestOf(part));
      } else {
        AddPart(leaf, size, begin, part, tree);
      }
      first += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

 private:
  struct Waiting {
    std::vector<std::byte> bytes;
    uint64_t missing = 0;
  };

  void AddPart(uint64_t leaf, uint64_t size, uint64_t begin, std::span<const std::byte> part,
               DigestTree& tree) {
    const std::lock_guard lock(mutex_);
    Waiting& waiting = waiting_[leaf];
    if (waiting.bytes.empty()) waiting = {std::vector<std::byte>(size), size};
    std::memcpy(waiting.bytes.data() + begin, part.data(), part.size());
    waiting.missing -= part.size();
    if (waiting.missing > 0) return;
    tree.Put(leaf, DigestOf(waiting.bytes));
    waiting_.erase(leaf);
  }

  uint64_t leaf_bytes_, tensor_bytes_;
  std::mutex mutex_;
  std::map<uint64_t, Waiting> waiting_;
};

}  // namespace mergepipe
