#pragma once

#include "recipe/resolve_state.h"

namespace mergepipe {

/// Decides the chat template of the output from the recipe's `chat_template`: a template that comes with the
/// program, the most common one of the models ("auto"; of equally common ones the first model's), or the text
/// itself. Adds a fault where it is none of these.
void ChooseChatTemplate(ResolveState& state);

}  // namespace mergepipe
