#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "base/text.h"
#include "mergepipe/result.h"

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

/// Runs body(worker, item) for every item in [0, items) on `workers` threads. The first error stops the rest
/// and is returned; a signal number other than 0 in `stop_signal` (may be null) ends it with kInterrupted,
/// and memory that runs out with kTransient.
inline Result<void> ParallelScan(uint64_t items, size_t workers, const std::atomic<int>* stop_signal,
                                 const std::function<Result<void>(size_t worker, uint64_t item)>& body) {
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::optional<Error> failure;
  const auto stop = [&](Error error) {
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::move(error);
    next = items;
  };
  const auto work = [&](size_t worker) {
    try {
      for (uint64_t item = next++; item < items; item = next++) {
        if (stop_signal != nullptr && stop_signal->load() != 0)
          return stop(Error{Code::kInterrupted, "interrupted", {}});
        auto done = body(worker, item);
        if (!done) return stop(std::move(done).error());
      }
    } catch (const std::bad_alloc&) {
      stop(Error{Code::kTransient, "memory ran out; lower --memory or free some", {}});
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t worker = 0; worker < workers; ++worker)
      threads.emplace_back(work, worker);
  }
  if (failure) return Fail(std::move(*failure));
  return {};
}

}  // namespace mergepipe
