#pragma once

#include <string>
#include <vector>

#include "format/json.h"
#include "planner/plan.h"
#include "storage/ledger.h"
#include "txn/record.h"

namespace mergepipe {

/// Numbers of one run that the plan does not hold.
struct RunFacts {
  std::string output;
  double seconds = 0;
  uint64_t peak_memory_bytes = 0;
  std::string root_digest;
  std::string target;  ///< kernels
  std::vector<std::string> warnings;
  bool resumed = false;
};

/// {merged, copied, dropped}.
Json TensorCounts(const ResolvedMerge& merge);
/// Bytes by purpose, with one entry for each checkpoint.
Json LedgerJson(const Ledger& ledger);

Json MergeReportJson(const Plan& plan, const Ledger& ledger, const RunFacts& facts);
std::string MergeReportText(const Plan& plan, const Ledger& ledger, const RunFacts& facts);

Json PlanReportJson(const Plan& plan, const Ledger& ledger, const std::vector<std::string>& warnings);
std::string PlanReportText(const Plan& plan);

}  // namespace mergepipe
