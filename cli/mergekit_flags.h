#pragma once

#include "command.h"

namespace mergepipe::cli {

/// The flags that people type after mergekit-yaml and that need none of ours: those that do what mergekit
/// does, and those that mean nothing here and say so.
std::vector<FlagSpec> MergekitFlags();
/// Fills in what they say. Fails with kUsage.
Result<void> TakeMergekitFlags(const Arguments& arguments, MergeRequest& request);

}  // namespace mergepipe::cli
