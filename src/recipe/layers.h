#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "format/checkpoint.h"

namespace mergepipe {

/// The name of a layer's tensor, cut at its layer number: "model.layers.7.mlp.up_proj.weight" is
/// {"model.layers", 7, "mlp.up_proj.weight"}. The number is the first part of the name that is all digits,
/// between two dots.
struct LayerName {
  std::string prefix;
  int64_t layer = 0;
  std::string suffix;
};
std::optional<LayerName> SplitLayerName(const std::string& tensor);
std::string JoinLayerName(const std::string& prefix, int64_t layer, const std::string& suffix);

/// Layer counts by prefix: largest number + 1.
std::map<std::string, int64_t> CountLayers(const Checkpoint& checkpoint);

/// True for tensors outside the layers that stand before them (embeddings); all others (final norm, head)
/// stand behind.
bool StandsBeforeLayers(const std::string& tensor);

}  // namespace mergepipe
