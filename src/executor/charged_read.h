#pragma once

#include <span>

#include "planner/plan.h"
#include "storage/ledger.h"
#include "storage/source.h"

namespace mergepipe {

/// Reads bytes [first, first + bytes) of a stored tensor into `buffer` (see Source::Read) and charges them:
/// a reference's as base data, others' as `expert` data, whose budget is kept.
Result<ReadRange> ReadCharged(const Plan& plan, const TensorSource& source, uint64_t first, uint64_t bytes,
                              std::span<std::byte> buffer, Ledger& ledger,
                              Purpose expert = Purpose::kExpertData);

/// Where a stored tensor begins in its file.
uint64_t FileOffset(const ResolvedMerge& merge, const TensorSource& source);

}  // namespace mergepipe
