#pragma once

#include <atomic>
#include <cstdint>

namespace mergepipe {

/// Bytes that a long work has moved so far; read by whoever shows a progress line.
struct ProgressCounters {
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<uint64_t> total_bytes{0};
};

}  // namespace mergepipe
