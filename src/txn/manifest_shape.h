#pragma once

#include <string>

#include "format/json.h"

namespace mergepipe {

/// Names the first field that a manifest lacks or that is not of the kind that the format says
/// ("core.tensors[3].leaf_bytes"); "" when verify and replay find all that they read. Anybody can write a
/// file with sound digests, so nothing behind this check may trust more than it looked at.
std::string MisshapenField(const Json& manifest);

}  // namespace mergepipe
