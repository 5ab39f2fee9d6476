#pragma once

#include <optional>

#include "format/json.h"
#include "planner/mask.h"

namespace mergepipe {

/// A mask as JSON: {"block_elements", "rows"}; one row for each source but the reference, a flat list of run
/// lengths and states: [count, state, count, state, …], state 0 left out, 1 + s held by source s.
Json MaskRows(const TensorMask& mask);

/// And back, for a tensor of `elements` in blocks of `block_elements`; nothing where the rows do not fit it.
std::optional<TensorMask> MaskFromRows(const Json& json, size_t sources, uint64_t elements,
                                       uint64_t block_elements);

}  // namespace mergepipe
