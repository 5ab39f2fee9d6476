#pragma once

#include "planner/plan.h"

namespace mergepipe {

/// The output's shards. A merge that keeps the donor's tensors keeps its shard names and order; any other
/// gets model.safetensors, or shards of at most form.shard_bytes (else 5 GB) of weights in layer order; a
/// larger tensor has one of its own.
std::vector<Unit> LayOutUnits(const ResolvedMerge& merge);

}  // namespace mergepipe
