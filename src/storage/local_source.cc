#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.h"
#include "base/try.h"
#include "storage/descriptor.h"
#include "storage/source.h"

namespace mergepipe {
namespace {

// Below this size the page cache costs less than direct I/O does.
constexpr uint64_t kDirectFileBytes = 8u << 20;
constexpr uint64_t kDirectReadBytes = 64u << 10;

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

class LocalSource final : public Source {
 public:
  LocalSource(Descriptor buffered, Descriptor direct, std::string name, const FileStamp& stamp)
      : buffered_(std::move(buffered)), direct_(std::move(direct)), name_(std::move(name)), stamp_(stamp) {}

  const std::string& Describe() const override { return name_; }
  uint64_t Size() const override { return stamp_.size; }
  const FileStamp& Stamp() const override { return stamp_; }

  Result<ReadRange> Read(uint64_t offset, uint64_t size, std::span<std::byte> buffer) const override {
    if (offset > stamp_.size || size > stamp_.size - offset) return TooShort(offset + size);
    const bool aligned = reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0;
    if (direct_.is_open() && size >= kDirectReadBytes && aligned) return ReadDirect(offset, size, buffer);
    const std::span<std::byte> payload = buffer.subspan(offset % kAlignment, size);
    MP_TRY(ReadFully(buffered_.get(), offset, payload, size));
    return ReadRange{payload.data(), 0};
  }

 private:
  Result<ReadRange> ReadDirect(uint64_t offset, uint64_t size, std::span<std::byte> buffer) const {
    const uint64_t begin = offset / kAlignment * kAlignment;
    const uint64_t end = (offset + size + kAlignment - 1) / kAlignment * kAlignment;
    // The last page of a file may be cut short; all that the caller asked for must come.
    MP_TRY(ReadFully(direct_.get(), begin, buffer.first(end - begin), offset + size - begin));
    return ReadRange{buffer.data() + (offset - begin), end - begin - size};
  }

  // Reads until `needed` bytes of `out` are there.
  Result<void> ReadFully(int fd, uint64_t offset, std::span<std::byte> out, uint64_t needed) const {
    uint64_t done = 0;
    while (done < needed) {
      const ssize_t got =
          ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Fail(ReadCode(errno), Format("{}: reading failed: {}", name_, SystemText(errno)));
      if (got == 0) return TooShort(offset + needed);
      done += static_cast<uint64_t>(got);
    }
    return {};
  }

  static Code ReadCode(int error) {
    return error == EAGAIN || error == ESTALE || error == ETIMEDOUT ? Code::kTransient : Code::kIo;
  }

  Failure TooShort(uint64_t wanted) const {
    return Fail(
        Code::kInvalidInput,
        Format("{}: ends before byte {} (it had {} bytes when it was opened); was it changed meanwhile?",
               name_, wanted, stamp_.size));
  }

  Descriptor buffered_;
  Descriptor direct_;  // -1 where the file is small or the file system has no direct I/O
  std::string name_;
  FileStamp stamp_;
};

}  // namespace

Result<std::unique_ptr<Source>> OpenLocalSource(const std::string& path, const std::string& name) {
  // Without O_NONBLOCK a pipe would be waited for; to a regular file it means nothing.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) {
    const Code code = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP
                          ? Code::kInvalidInput
                          : Code::kIo;
    return Fail(code, Format("{}: can not be opened: {}", name, SystemText(errno)));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Fail(Code::kIo, Format("{}: {}", name, SystemText(errno)));
  if (!S_ISREG(info.st_mode)) return Fail(Code::kInvalidInput, Format("{}: is not a regular file", name));
  const FileStamp stamp{info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size),
                        Nanoseconds(info.st_mtim), Nanoseconds(info.st_ctim)};
  // Selected blocks are all that may be fetched: no read-ahead around them.
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
  const bool large = stamp.size >= kDirectFileBytes;
  Descriptor direct(large ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT) : -1);
  return std::unique_ptr<Source>(
      std::make_unique<LocalSource>(std::move(fd), std::move(direct), name, stamp));
}

Result<std::string> ReadSmallFile(const std::string& path, uint64_t limit) {
  const auto source = MP_TRY(OpenLocalSource(path, path));
  if (source->Size() > limit) {
    return Fail(Code::kInvalidInput, Format("{}: has {} bytes, more than the {} that such a file may have",
                                            path, source->Size(), limit));
  }
  std::string text(Source::BufferBytes(source->Size()), '\0');
  const auto range = MP_TRY(source->Read(0, source->Size(), std::as_writable_bytes(std::span(text))));
  return std::string(reinterpret_cast<const char*>(range.data), source->Size());
}

}  // namespace mergepipe
