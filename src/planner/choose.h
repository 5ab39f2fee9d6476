#pragma once

#include "planner/plan.h"

namespace mergepipe {

/// Chooses what a drafted plan reads under a budget: first what is lossless to leave out, then by the
/// policy's order, cut at the first step that does not fit; sets masks, costs, predictions and certificate. A
/// budget as large as the full read leaves out only what changes nothing. Fails with kUsage when what can not
/// be left out passes the budget, or a deviation is asked for that the evidence can not promise.
Result<void> ChooseReads(Plan& plan, const Budget& budget, Evidence& evidence);

/// Fails with kUsage when what can not be left out passes the budget.
Result<void> CheckFits(const Plan& draft, uint64_t budget_bytes);

/// True when a merge under this budget profits from samples: it must leave something out, by a policy that
/// looks at values.
bool WantsSamples(const Plan& draft, const Budget& budget, const Evidence& evidence);
/// Bytes that samples may take: at most 1 % of the full read, a tenth of the budget, and what the budget
/// leaves beside that which can not be left out.
uint64_t SampleLimit(const Plan& draft, const Budget& budget);

}  // namespace mergepipe
