#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "mergepipe/result.h"

namespace mergepipe {

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
