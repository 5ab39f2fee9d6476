#pragma once

#include "planner/plan.h"
#include "storage/ledger.h"

namespace mergepipe {

/// Reads the pairs of tensors that the merge takes for equal (heads that a config ties to the embedding) and
/// demands that they are. Reads are charged like those of the model's other data. Fails with kInvalidInput,
/// naming both.
Result<void> CheckEqualPairs(const Plan& plan, Ledger& ledger);

}  // namespace mergepipe
