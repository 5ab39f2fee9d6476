#pragma once

#include <string>
#include <vector>

#include "format/json.h"
#include "planner/plan.h"
#include "storage/ledger.h"

namespace mergepipe {

/// One budget of a sweep.
struct SweepPoint {
  std::string budget;  ///< as given
  BudgetOutcome planned;
  uint64_t read_bytes = 0;  ///< planned expert bytes, samples included
  Deviation measured;
  uint64_t random_read_bytes = 0;  ///< the same for random blocks
  Deviation random;
};

/// What a sweep found.
struct SweepFacts {
  std::string method;
  size_t models = 0;
  std::vector<SweepPoint> points;
  Deviation do_nothing;
  double seconds = 0;
  uint64_t peak_memory_bytes = 0;
  std::vector<std::string> warnings;
};

Json SweepReportJson(const SweepFacts& facts, const Ledger& ledger);
/// A table with a line for each budget and one for doing nothing.
std::string SweepReportText(const SweepFacts& facts, const Ledger& ledger);

}  // namespace mergepipe
