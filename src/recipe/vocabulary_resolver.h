#pragma once

#include "recipe/resolve_state.h"

namespace mergepipe {

/// Where the recipe has a `tokenizer`: reads the models' tokenizers and decides the output's tokens, and
/// where each model has them. Needs the scopes; faults go to the state.
void ResolveVocabulary(ResolveState& state);

}  // namespace mergepipe
