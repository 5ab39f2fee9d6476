#include "recipe/expert_layout.h"

#include <cctype>

#include "base/text.h"

namespace mergepipe {

std::optional<ExpertLayout> ExpertLayoutOf(const Checkpoint& checkpoint) {
  static const std::string kPart = ".experts.";
  for (const auto& [name, place] : checkpoint.tensors()) {
    const size_t at = name.find(kPart);
    if (at == std::string::npos) continue;
    const std::string rest = name.substr(at + kPart.size());
    const bool numbered = !rest.empty() && std::isdigit(static_cast<unsigned char>(rest[0])) != 0;
    if (numbered) return ExpertLayout{false, name};
    if (rest == "gate_up_proj" || rest == "down_proj") return ExpertLayout{true, name};
  }
  return std::nullopt;
}

}  // namespace mergepipe
