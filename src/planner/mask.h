#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace mergepipe {

/// Adjacent elements, counted from the tensor's start.
struct ElementRun {
  uint64_t first = 0;
  uint64_t count = 0;
};

/// The access set A of one output tensor: for each (source, block) whether it is read, left out (Δ = 0
/// there), or has the same bytes as the block of another source, which is read once for both. The reference
/// is always read.
class TensorMask {
 public:
  static constexpr size_t kOmitted = std::numeric_limits<size_t>::max();

  /// Reads everything.
  TensorMask() = default;
  /// Leaves out everything but the reference, source 0.
  TensorMask(size_t sources, uint64_t elements, uint64_t block_elements)
      : block_elements_(block_elements),
        blocks_(static_cast<size_t>((elements + block_elements - 1) / block_elements)),
        from_(sources * blocks_, 0) {
    for (size_t b = 0; b < blocks_ && sources > 0; ++b)
      from_[b] = 1;
  }

  bool reads_all() const { return from_.empty(); }
  uint64_t block_elements() const { return block_elements_; }
  size_t blocks() const { return blocks_; }
  size_t sources() const { return blocks_ == 0 ? 0 : from_.size() / blocks_; }

  /// The source whose bytes hold this block: itself, another, or kOmitted.
  size_t From(size_t source, size_t block) const {
    if (reads_all()) return source;
    const uint16_t from = from_[source * blocks_ + block];
    return from == 0 ? kOmitted : from - 1u;
  }
  size_t FromAt(size_t source, uint64_t element) const {
    return reads_all() ? source : From(source, static_cast<size_t>(element / block_elements_));
  }
  bool Reads(size_t source, size_t block) const { return From(source, block) == source; }

  /// The runs of adjacent blocks among elements [first, first + count) that are read of a source.
  std::vector<ElementRun> RunsRead(size_t source, uint64_t first, uint64_t count) const {
    if (reads_all()) return {{first, count}};
    std::vector<ElementRun> runs;
    const uint64_t end = first + count;
    for (uint64_t at = first; at < end;) {
      const uint64_t n = std::min(end, (at / block_elements_ + 1) * block_elements_) - at;
      const bool reads = Reads(source, static_cast<size_t>(at / block_elements_));
      if (reads && !runs.empty() && runs.back().first + runs.back().count == at) {
        runs.back().count += n;
      } else if (reads) {
        runs.push_back({at, n});
      }
      at += n;
    }
    return runs;
  }

  void Set(size_t source, size_t block, size_t from) {
    from_[source * blocks_ + block] = static_cast<uint16_t>(from == kOmitted ? 0 : from + 1);
  }

 private:
  uint64_t block_elements_ = 0;
  size_t blocks_ = 0;
  std::vector<uint16_t> from_;  // [sources, blocks]: 0 left out, else 1 + the source that holds it
};

}  // namespace mergepipe
