#pragma once

#include "planner/plan.h"

namespace mergepipe {

/// The output's shards. A merge that keeps the donor's tensors keeps its shard names and order; any other
/// gets model.safetensors, or shards of at most 5 GB in layer order.
std::vector<Unit> LayOutUnits(const ResolvedMerge& merge);

}  // namespace mergepipe
