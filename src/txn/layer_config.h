#pragma once

#include "format/json.h"
#include "recipe/resolve.h"

namespace mergepipe {

/// Makes a config say what a stack of layers has become: the number of layers, lists with one entry for each
/// layer (layer_types and the like), and lists of layer numbers. Where a family's layers differ by a rule of
/// their numbers and nothing says so (Gemma 2 and 3, Cohere 2), layer_types is added. Parts for vision and
/// audio are told apart by the stack's prefix, encoders and decoders too. True where anything changed.
bool FitLayers(const SlicedStack& stack, OrderedJson& config);

}  // namespace mergepipe
