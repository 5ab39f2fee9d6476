#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/engine.h"
#include "support/merges.h"

namespace mergepipe::tests {

/// What a run left in its staging folder, and what the engine said.
struct Ran {
  std::map<std::string, std::string> files;
  EngineResult result;
};

/// Executes a plan in a folder of its own. Kernels are the fastest where the options name none.
Result<Ran> RunPlan(const Planned& planned, EngineOptions options = {},
                    std::vector<std::optional<TensorRecord>> finished = {});

/// The output tensors in the files of a run, by name.
std::map<std::string, StoredTensor> TensorsOf(const Planned& planned, const Ran& ran);

}  // namespace mergepipe::tests
