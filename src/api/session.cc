#include "api/session.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace mergepipe {

ProgressReporter::ProgressReporter(const RunOptions& options, const ProgressCounters& counters)
    : options_(options), counters_(counters) {
  if (options_.on_progress) thread_ = std::thread([this] { Run(); });
}

ProgressReporter::~ProgressReporter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// The last call comes when the work is done, so that even a short one is seen once.
void ProgressReporter::Run() {
  constexpr auto kInterval = std::chrono::milliseconds(200);
  std::unique_lock lock(mutex_);
  for (bool done = false; !done;) {
    done = wake_.wait_for(lock, kInterval, [this] { return done_; });
    options_.on_progress({counters_.done_bytes.load(), counters_.total_bytes.load(), watch_.Seconds()});
  }
}

size_t ThreadsOf(const RunOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::max(1u, std::thread::hardware_concurrency());
}

uint64_t MemoryOf(const RunOptions& options) {
  if (options.memory_bytes > 0) return options.memory_bytes;
  const auto ram =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
  return std::min<uint64_t>(2ull << 30, ram / 4);
}

// Not getrusage: a child starts with the peak of the process that it was forked from.
uint64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

Result<const kernels::Kernels*> KernelsFromEnvironment() {
  const char* forced = std::getenv("MERGEPIPE_TARGET");
  return kernels::ChooseKernels(forced == nullptr ? "" : forced);
}

}  // namespace mergepipe
