#pragma once

#include <memory>

#include "executor/scan.h"
#include "kernels/kernels.h"
#include "planner/evidence.h"
#include "planner/plan.h"
#include "storage/ledger.h"

namespace mergepipe {

/// Reads one page of every block, or of evenly spread ones, of those experts that `known` does not know, at
/// most `limit` bytes of experts, and the base beside them; estimates energies and inner products from them.
/// Samples are charged to the ledger as such. The draft's merge must outlive the evidence. Fails with
/// kInterrupted on a signal and with what storage says.
Result<std::unique_ptr<Evidence>> SampleExperts(const Plan& draft, uint64_t limit,
                                                std::shared_ptr<Evidence> known,
                                                const kernels::Kernels& kernels, const ScanLimits& limits,
                                                Ledger& ledger);

}  // namespace mergepipe
