#pragma once

#include <cstddef>
#include <cstdint>

namespace mergepipe {

/// The access set A: one bit per (output tensor, source, block); 1 = read it. Until a budget is given all
/// bits are one.
class AccessMask {
 public:
  bool Reads(size_t /*tensor*/, size_t /*source*/, uint64_t /*block*/) const { return true; }
  bool all_ones() const { return true; }
};

}  // namespace mergepipe
