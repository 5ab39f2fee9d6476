#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "executor/progress.h"
#include "kernels/kernels.h"
#include "mergepipe/mergepipe.h"

namespace mergepipe {

/// Seconds since it was made.
class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Calls on_progress some times a second while it lives.
class ProgressReporter {
 public:
  ProgressReporter(const RunOptions& options, const ProgressCounters& counters);
  ~ProgressReporter();
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;

 private:
  void Run();

  const RunOptions& options_;
  const ProgressCounters& counters_;
  Stopwatch watch_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

size_t ThreadsOf(const RunOptions& options);
uint64_t MemoryOf(const RunOptions& options);
uint64_t PeakMemoryBytes();

/// The kernels that MERGEPIPE_TARGET names, or the fastest.
Result<const kernels::Kernels*> KernelsFromEnvironment();

}  // namespace mergepipe
