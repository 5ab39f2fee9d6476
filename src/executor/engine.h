#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "executor/progress.h"
#include "kernels/kernels.h"
#include "planner/plan.h"
#include "txn/record.h"
#include "txn/staging.h"

namespace mergepipe {

struct EngineOptions {
  const kernels::Kernels* kernels = nullptr;
  bool allow_nonfinite = false;
  const std::atomic<int>* stop_signal =
      nullptr;                           ///< a signal number other than 0 stops the work; may be null
  ProgressCounters* progress = nullptr;  ///< may be null
  /// Called once for each finished tensor, from one thread at a time. An error stops the work. May be empty.
  std::function<Result<void>(size_t tensor, const TensorRecord&)> on_tensor;
};

struct EngineResult {
  std::vector<TensorRecord> records;  ///< by position in ResolvedMerge::tensors
  uint64_t nonfinite_tensors = 0;     ///< with allow_nonfinite: tensors that hold NaN or infinity
};

/// Executes a plan into a staging folder: reads ahead, computes on plan.options.threads cores, writes in
/// place. `finished` holds the records of tensors that an interrupted run left complete. Reads are charged to
/// `ledger`. Fails with kInvalidInput on values that are not finite, kInterrupted on a signal, and with what
/// storage says.
Result<EngineResult> RunEngine(const Plan& plan, const EngineOptions& options,
                               std::vector<std::optional<TensorRecord>> finished, Staging& staging,
                               Ledger& ledger);

}  // namespace mergepipe
