#pragma once

#include <string>

#include "base/dtype.h"

namespace mergepipe::tests {

inline constexpr uint64_t kSmallBlock = 16u << 10;

struct FamilyOptions {
  uint32_t seed = 1;
  size_t experts = 3;
  bool mixed = false;  ///< experts store some tensors wider than the base
};

/// Writes "base", "expert1", … into a folder: tensors of every float type, of several 16 KiB blocks and of
/// less than one, at odd offsets. Blocks of experts differ in size of delta; some equal the base, some those
/// of another expert, some cancel those of another.
void WriteFamily(const std::string& folder, const FamilyOptions& options);

}  // namespace mergepipe::tests
