#pragma once

#include "command.h"
#include "mergepipe/mergepipe.h"

namespace mergepipe::cli {

/// Flags that merge and plan share.
std::vector<FlagSpec> MergeFlags();
/// Builds the request from flags and the two positionals (RECIPE OUT, or OUT alone beside --base, --method,
/// --expert). Fails with kUsage.
Result<MergeRequest> MergeRequestOf(const Arguments& arguments, bool needs_output);

}  // namespace mergepipe::cli
