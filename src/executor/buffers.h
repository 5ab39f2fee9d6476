#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <span>

#include "base/text.h"
#include "mergepipe/result.h"

namespace mergepipe {

/// The one fixed pool of memory: mapped once, backed by huge pages where the system has them (direct I/O into
/// small pages is several times slower), handed out in page-aligned pieces, never grown.
class BufferPool {
 public:
  static Result<BufferPool> Map(uint64_t bytes) {
    constexpr uint64_t kHuge = 2u << 20;
    const uint64_t size = (bytes + kHuge - 1) / kHuge * kHuge + kHuge;
    void* start =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
      return Fail(Code::kTransient,
                  Format("{} of buffers can not be had; lower --memory", HumanBytes(bytes)));
    ::madvise(start, size, MADV_HUGEPAGE);
    return BufferPool(static_cast<std::byte*>(start), size);
  }
  BufferPool(BufferPool&& other) noexcept
      : start_(std::exchange(other.start_, nullptr)), size_(other.size_), next_(other.next_) {}
  BufferPool& operator=(BufferPool&&) = delete;
  ~BufferPool() {
    if (start_ != nullptr) ::munmap(start_, size_);
  }

  /// The next piece of at least `bytes`, at a multiple of 4096.
  std::span<std::byte> Take(uint64_t bytes) {
    constexpr uint64_t kPage = 4096;
    const std::span<std::byte> piece(start_ + next_, bytes);
    next_ += (bytes + kPage - 1) / kPage * kPage;
    return piece;
  }

 private:
  BufferPool(std::byte* start, uint64_t size) : start_(start), size_(size) {
    constexpr uint64_t kHuge = 2u << 20;
    next_ = (kHuge - reinterpret_cast<uintptr_t>(start) % kHuge) % kHuge;
  }
  std::byte* start_;
  uint64_t size_;
  uint64_t next_ = 0;
};

}  // namespace mergepipe
