#include "recipe/layers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "base/text.h"

namespace mergepipe {

std::optional<LayerName> SplitLayerName(const std::string& tensor) {
  constexpr size_t kMaxDigits = 9;
  size_t dot = tensor.find('.');
  while (dot != std::string::npos) {
    const size_t next = tensor.find('.', dot + 1);
    if (next == std::string::npos) return std::nullopt;
    const std::string part = tensor.substr(dot + 1, next - dot - 1);
    const bool digits =
        !part.empty() && part.size() <= kMaxDigits &&
        std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    if (digits) return LayerName{tensor.substr(0, dot), std::stoll(part), tensor.substr(next + 1)};
    dot = next;
  }
  return std::nullopt;
}

std::string JoinLayerName(const std::string& prefix, int64_t layer, const std::string& suffix) {
  return Format("{}.{}.{}", prefix, layer, suffix);
}

std::map<std::string, int64_t> CountLayers(const Checkpoint& checkpoint) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, place] : checkpoint.tensors()) {
    const auto split = SplitLayerName(name);
    if (split) counts[split->prefix] = std::max(counts[split->prefix], split->layer + 1);
  }
  return counts;
}

bool StandsBeforeLayers(const std::string& tensor) {
  if (tensor.find("embed_out") != std::string::npos) return false;  // the head of GPT-NeoX
  constexpr std::array<std::string_view, 5> kEmbeddings = {"embed", "wte", "wpe", "shared.weight",
                                                           "position"};
  return std::any_of(kEmbeddings.begin(), kEmbeddings.end(),
                     [&](std::string_view word) { return tensor.find(word) != std::string::npos; });
}

}  // namespace mergepipe
