#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/json.h"
#include "planner/plan.h"
#include "storage/ledger.h"

namespace mergepipe {

/// What the plan does with one expert.
struct ExpertSummary {
  size_t model = 0;
  uint64_t available_bytes = 0;  ///< that a full read fetches
  uint64_t read_bytes = 0;       ///< planned, samples not counted
  uint64_t lossless_bytes = 0;
  /// Its part in the error of all that is left out: 0 where that is nothing, and nothing where nobody knows
  /// it.
  std::optional<double> omitted_error_share;
};
std::vector<ExpertSummary> ExpertSummaries(const Plan& plan);

/// Adds budget_bytes, policy, lossless_skipped_bytes, predicted_deviation, certificate, statistics and
/// experts to a report. Bytes read are those of `ledger` where `measured`, else those planned.
void AddBudgetFields(const Plan& plan, const Ledger& ledger, bool measured, Json& report);

/// The same for people; "" where all is read and nothing is known.
std::string BudgetText(const Plan& plan);

}  // namespace mergepipe
