#pragma once

#include <optional>
#include <string>

#include "format/checkpoint.h"

namespace mergepipe {

/// How a mixture-of-experts checkpoint stores its experts, by one of the tensors that show it.
struct ExpertLayout {
  bool fused = false;  ///< all experts of a layer in one tensor, as transformers holds them in memory
  std::string example;
};
/// Nothing where there are no experts.
std::optional<ExpertLayout> ExpertLayoutOf(const Checkpoint& checkpoint);

}  // namespace mergepipe
