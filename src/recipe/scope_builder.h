#pragma once

#include "recipe/resolve_state.h"

namespace mergepipe {

/// Divides a merge into scopes: one for a whole model or module, one for each slice. Chooses the donor,
/// checks layer ranges, the number of inputs and the presence of the base. Needs all models opened; faults go
/// to the state.
void BuildScopes(ResolveState& state);

}  // namespace mergepipe
