#pragma once

#include <string>
#include <vector>

#include "executor/progress.h"
#include "executor/scan.h"
#include "format/json.h"
#include "mergepipe/result.h"
#include "storage/ledger.h"

namespace mergepipe {

/// One place where an output is not what its manifest says.
struct Difference {
  std::string file;
  std::string what;
  std::string tensor;     ///< "" where the file as a whole differs
  uint64_t element = 0;   ///< first element of the run that differs somewhere
  uint64_t elements = 0;  ///< length of that run
};

struct VerifyFindings {
  std::vector<Difference> differences;
  std::vector<std::string> notes;  ///< files that people edited or added: no difference
  uint64_t checked_bytes = 0;
  size_t tensors = 0;
};

/// Re-reads every file of an output folder and compares it with its manifest. Buffers take
/// limits.memory_bytes at most. Fails with kUsage when that is too little, with kInterrupted on a signal,
/// with kIo or kTransient when reading fails. The manifest is
/// one that ReadManifest has checked.
Result<VerifyFindings> ScanAgainstManifest(const std::string& folder, const Json& manifest,
                                           const ScanLimits& limits, ProgressCounters& progress);

}  // namespace mergepipe
