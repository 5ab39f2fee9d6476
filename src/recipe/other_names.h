#pragma once

#include <map>
#include <string>

#include "format/checkpoint.h"

namespace mergepipe {

/// What the tensors of a checkpoint are called in another one of the same family that names them otherwise:
/// by stored name, only those that differ. Known are one part more or less in front ("bert.", "transformer.",
/// "model."), `gamma` and `beta` for `weight` and `bias` of a LayerNorm, and `block_sparse_moe` for `mlp`. A
/// name that the checkpoint or the other one has as it stands is never changed.
std::map<std::string, std::string> NamesIn(const Checkpoint& other, const Checkpoint& checkpoint);

}  // namespace mergepipe
