#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"

namespace mergepipe {

/// Which tensors of a checkpoint belong to a module.
class ModuleNames {
 public:
  /// Every tensor.
  ModuleNames() = default;
  /// Everything but what the others hold.
  static ModuleNames AllBut(std::vector<ModuleNames> others);

  bool Holds(const std::string& tensor) const;

 private:
  friend std::optional<ModuleNames> FindModule(const std::string& name, const Checkpoint& checkpoint);
  enum class Kind { kRest, kLayers, kBelow, kText, kVision, kProjector };
  ModuleNames(Kind kind, std::string word) : kind_(kind), word_(std::move(word)) {}

  Kind kind_ = Kind::kRest;
  std::string word_;                 // kLayers: the prefix; kBelow: the part of the name
  std::vector<ModuleNames> others_;  // kRest
};

/// The module that a recipe names in a model: the layers under this prefix ("model.layers"); else all tensors
/// below a part of their names ("vision_tower", "encoder"; "shared" of an encoder and decoder takes the head
/// along); else, where no tensor has that part, what mergekit calls text_decoder, vision_tower and
/// multi_modal_projector, by the names that towers and projectors usually have. Nothing where no tensor
/// belongs to it, or where it would hold several stacks of layers. ("default" is the business of who knows
/// the other modules.)
std::optional<ModuleNames> FindModule(const std::string& name, const Checkpoint& checkpoint);

/// The prefixes of the stacks of layers that a module holds, with their numbers of layers.
std::map<std::string, int64_t> StacksOf(const ModuleNames& names, const Checkpoint& checkpoint);

}  // namespace mergepipe
