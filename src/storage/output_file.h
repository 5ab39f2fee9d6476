#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mergepipe/result.h"
#include "storage/descriptor.h"
#include "storage/ledger.h"

namespace mergepipe {

/// A file of known size that is written in place, in any order, by several threads.
class OutputFile {
 public:
  virtual ~OutputFile() = default;

  /// Writes [offset, offset + bytes.size()). Fast when the address of bytes has the same remainder by 4096 as
  /// the offset. Fails with kDiskFull when the disk is full, with kIo otherwise.
  virtual Result<void> Write(uint64_t offset, std::span<const std::byte> bytes) = 0;

  /// Makes all that was written durable.
  virtual Result<void> Sync() = 0;
};

/// Creates `path` (mode 0666 less the umask) with `size` bytes allocated; `resume` opens what is there. Fails
/// with kDiskFull when the disk is full, with kIo otherwise.
Result<std::unique_ptr<OutputFile>> CreateOutputFile(const std::string& path, uint64_t size, bool resume,
                                                     Ledger& ledger);

/// A text file that is written from front to back, piece by piece.
class TextSink {
 public:
  /// Creates or empties `path` (mode 0666 less the umask).
  static Result<std::unique_ptr<TextSink>> Create(const std::string& path, Ledger& ledger);
  Result<void> Write(std::string_view text);
  /// Writes what is buffered and makes the file durable.
  Result<void> Finish();

 private:
  TextSink(Descriptor file, std::string path, Ledger& ledger)
      : file_(std::move(file)), path_(std::move(path)), ledger_(ledger) {}
  Result<void> Flush();

  Descriptor file_;
  std::string path_;
  Ledger& ledger_;
  std::string buffer_;
};

/// Writes a whole small file and makes it durable.
Result<void> WriteSmallFile(const std::string& path, std::string_view text, Ledger& ledger);

/// Appends text to an open file, whole or with an error. Fails with kDiskFull when the disk is full.
Result<void> AppendText(int fd, std::string_view text, const std::string& path);

/// Makes the entries of a folder durable.
Result<void> SyncFolder(const std::string& path);

}  // namespace mergepipe
