#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/parallel.h"
#include "base/text.h"

namespace mergepipe {

/// What a scan over stored bytes may use.
struct ScanLimits {
  size_t threads = 1;
  uint64_t memory_bytes = 0;                      ///< for buffers
  const std::atomic<int>* stop_signal = nullptr;  ///< may be null
};

/// Workers for a scan whose workers each need `worker_bytes` of buffers: enough to keep a disk busy, as far
/// as the memory goes. Fails with kUsage when it is too little for one.
inline Result<size_t> ScanWorkers(const ScanLimits& limits, uint64_t worker_bytes) {
  constexpr size_t kPreferredWorkers = 8;
  const uint64_t affordable = limits.memory_bytes / worker_bytes;
  if (affordable == 0) {
    return Fail(Code::kUsage, Format("--memory {} is too little: {} are needed",
                                     HumanBytes(limits.memory_bytes), HumanBytes(worker_bytes)));
  }
  return static_cast<size_t>(std::min<uint64_t>(affordable, std::max(limits.threads, kPreferredWorkers)));
}

}  // namespace mergepipe
