#pragma once

#include <functional>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "executor/progress.h"
#include "executor/scan.h"
#include "format/checkpoint.h"
#include "kernels/kernels.h"
#include "mergepipe/result.h"
#include "storage/ledger.h"

namespace mergepipe {

/// A tensor of one expert that is to be analysed.
struct ExpertWish {
  size_t expert = 0;
  std::vector<uint64_t> kept;  ///< counts whose exact thresholds are wanted, each below the tensor's elements
};

/// What is to be found out about the tensors of one name.
struct TensorWish {
  std::string name;
  bool base = false;  ///< digest, and for floats the columns, of the base's own
  std::vector<ExpertWish> experts;
};

/// A checkpoint and the name under which its findings are told.
struct AnalysedCheckpoint {
  const Checkpoint* checkpoint = nullptr;
  std::string stamps;
};

struct AnalyzeJob {
  AnalysedCheckpoint base;
  std::vector<AnalysedCheckpoint> experts;
  uint64_t block_bytes = 0;
  std::vector<TensorWish> tensors;
};

/// True when a tensor's deltas mean something: floats of one shape on both sides.
bool IsComparable(const TensorEntry& a, const TensorEntry* base);

/// Takes what was found out about tensors of one name, the base's first. Called by one thread at a time.
using FindingSink = std::function<Result<void>(std::vector<Finding>)>;

/// Reads what the job asks for once, in blocks, and gathers the statistics of docs/catalog.md; results do not
/// depend on threads, memory or kernels. Buffers and state take limits.memory_bytes at most; where that is
/// too little for all experts at once, the base is read again for the next of them. Fails with kUsage when it
/// is too little for one expert, with kInterrupted on a signal, with what storage or the sink says.
Result<void> ScanForCatalog(const AnalyzeJob& job, const kernels::Kernels& kernels, const ScanLimits& limits,
                            Ledger& ledger, ProgressCounters& progress, const FindingSink& sink);

}  // namespace mergepipe
