#include "recipe/module_names.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/text.h"
#include "recipe/layers.h"

namespace mergepipe {
namespace {

constexpr std::array<std::string_view, 4> kTowers = {"vision_tower", "vision_model", "visual",
                                                     "vision_encoder"};
constexpr std::array<std::string_view, 5> kProjectors = {"multi_modal_projector", "mm_projector", "connector",
                                                         "merger", "deepstack_merger_list"};
constexpr std::array<std::string_view, 2> kEars = {"audio_tower", "audio_model"};

// The part of a name before its layer number, where there is one: what stands behind it says what a layer is
// made of.
std::string PlaceOf(const std::string& tensor) {
  const auto split = SplitLayerName(tensor);
  return split ? split->prefix : tensor;
}

bool HasPart(const std::string& tensor, std::string_view part) {
  return ("." + PlaceOf(tensor) + ".").find("." + std::string(part) + ".") != std::string::npos;
}

template <size_t N>
bool HasAny(const std::string& tensor, const std::array<std::string_view, N>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return HasPart(tensor, part); });
}

bool IsHead(const std::string& tensor) {
  return StartsWith(tensor, "lm_head.");
}

}  // namespace

ModuleNames ModuleNames::AllBut(std::vector<ModuleNames> others) {
  ModuleNames names;
  names.others_ = std::move(others);
  return names;
}

bool ModuleNames::Holds(const std::string& tensor) const {
  switch (kind_) {
    case Kind::kRest:
      return std::none_of(others_.begin(), others_.end(),
                          [&](const ModuleNames& other) { return other.Holds(tensor); });
    case Kind::kLayers: {
      const auto split = SplitLayerName(tensor);
      return split && split->prefix == word_;
    }
    case Kind::kBelow:
      return HasPart(tensor, word_) || (word_ == "shared" && IsHead(tensor));
    case Kind::kProjector:
      return HasAny(tensor, kProjectors);
    case Kind::kVision:
      return HasAny(tensor, kTowers) && !HasAny(tensor, kProjectors);
    case Kind::kText:
      return !HasAny(tensor, kTowers) && !HasAny(tensor, kProjectors) && !HasAny(tensor, kEars);
  }
  return false;
}

std::map<std::string, int64_t> StacksOf(const ModuleNames& names, const Checkpoint& checkpoint) {
  auto stacks = CountLayers(checkpoint);
  std::erase_if(stacks,
                [&](const auto& stack) { return !names.Holds(JoinLayerName(stack.first, 0, "weight")); });
  return stacks;
}

std::optional<ModuleNames> FindModule(const std::string& name, const Checkpoint& checkpoint) {
  using Kind = ModuleNames::Kind;
  if (CountLayers(checkpoint).count(name) > 0) return ModuleNames(Kind::kLayers, name);
  std::vector<ModuleNames> meanings = {ModuleNames(Kind::kBelow, name)};
  if (name == "text_decoder") meanings.push_back(ModuleNames(Kind::kText, ""));
  if (name == "vision_tower" || name == "vision_model") meanings.push_back(ModuleNames(Kind::kVision, ""));
  if (name == "multi_modal_projector") meanings.push_back(ModuleNames(Kind::kProjector, ""));
  for (const ModuleNames& meaning : meanings) {
    const auto& tensors = checkpoint.tensors();
    const bool holds_some = std::any_of(tensors.begin(), tensors.end(),
                                        [&](const auto& tensor) { return meaning.Holds(tensor.first); });
    const bool is_projector = meaning.kind_ == Kind::kProjector;
    if (holds_some && (is_projector || StacksOf(meaning, checkpoint).size() <= 1)) return meaning;
  }
  return std::nullopt;
}

}  // namespace mergepipe
