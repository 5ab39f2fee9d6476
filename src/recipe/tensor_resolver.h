#pragma once

#include "recipe/resolve_state.h"

namespace mergepipe {

/// Decides the output tensors of every scope: their sources, types, parameters and whether they are merged or
/// copied. Notes in each scope the names that it met; faults go to the state.
void ResolveTensors(ResolveState& state);

}  // namespace mergepipe
