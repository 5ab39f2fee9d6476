#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mergepipe/result.h"

namespace mergepipe {

/// "Still the same file": a shortcut, never an identity of content.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

/// Where a range landed in the caller's buffer, and what the read took around it.
struct ReadRange {
  const std::byte* data =
      nullptr;  ///< first payload byte: in the buffer at the offset's remainder by kAlignment
  uint64_t alignment_bytes = 0;  ///< bytes fetched beside the payload
};

/// Readable bytes of one stored object. Positioned reads only; safe for concurrent use; never writes.
class Source {
 public:
  virtual ~Source() = default;

  /// How a person names the object ("experts/math/model.safetensors").
  virtual const std::string& Describe() const = 0;
  virtual uint64_t Size() const = 0;
  virtual const FileStamp& Stamp() const = 0;

  /// Reads exactly [offset, offset + size) into `buffer`, which must hold BufferBytes(size) bytes (and
  /// should start at a multiple of kAlignment: else large reads go through the page cache). Fails with kIo,
  /// with kTransient where trying again may help, with kInvalidInput when the object has become shorter.
  virtual Result<ReadRange> Read(uint64_t offset, uint64_t size, std::span<std::byte> buffer) const = 0;

  static constexpr uint64_t kAlignment = 4096;
  /// Bytes that a buffer needs for any range of `size` bytes: the aligned hull.
  static constexpr uint64_t BufferBytes(uint64_t size) {
    return (size + 2 * kAlignment - 1) / kAlignment * kAlignment;
  }
};

/// Opens a local file, following symbolic links. `path` is opened, `name` is what messages say. Fails with
/// kInvalidInput when it does not exist or is no regular file, with kIo otherwise.
Result<std::unique_ptr<Source>> OpenLocalSource(const std::string& path, const std::string& name);

/// Reads a whole small file as text. Fails like OpenLocalSource, and with kInvalidInput above `limit` bytes.
Result<std::string> ReadSmallFile(const std::string& path, uint64_t limit);

}  // namespace mergepipe
