#pragma once

#include <memory>
#include <string>

#include "format/checkpoint.h"

namespace mergepipe {

/// Opens a model that a command line names: a path, else "name" or "name@revision" of the Hugging Face Hub
/// where it was downloaded. Fails with kInvalidInput.
Result<std::unique_ptr<Checkpoint>> OpenModel(const std::string& model, Ledger& ledger);

}  // namespace mergepipe
