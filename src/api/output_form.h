#pragma once

#include "format/json.h"
#include "mergepipe/mergepipe.h"

namespace mergepipe {

/// As plans and manifests keep it.
Json OutputFormJson(const OutputForm& form);
/// Throws Json::exception where it is none.
OutputForm OutputFormFrom(const Json& json);

}  // namespace mergepipe
