#include "storage/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/text.h"
#include "base/try.h"
#include "storage/descriptor.h"

namespace mergepipe {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kDirectFileBytes = 8u << 20;
constexpr uint64_t kDirectWriteBytes = 64u << 10;

Result<void> WriteFully(int fd, uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Fail(WriteCode(errno), Format("{}: writing failed: {}", path, SystemText(errno)));
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return {};
}

class LocalOutputFile final : public OutputFile {
 public:
  LocalOutputFile(Descriptor buffered, Descriptor direct, std::string path, Ledger& ledger)
      : buffered_(std::move(buffered)), direct_(std::move(direct)), path_(std::move(path)), ledger_(ledger) {}

  // Whole pages go to the disk directly; the ragged ends, whose pages other writes share, go through the page
  // cache.
  Result<void> Write(uint64_t offset, std::span<const std::byte> bytes) override {
    ledger_.ChargeWrite(bytes.size());
    const uint64_t head = std::min<uint64_t>((kPage - offset % kPage) % kPage, bytes.size());
    const uint64_t middle = (bytes.size() - head) / kPage * kPage;
    const bool aligned = reinterpret_cast<uintptr_t>(bytes.data() + head) % kPage == 0;
    if (!direct_.is_open() || middle < kDirectWriteBytes || !aligned)
      return WriteFully(buffered_.get(), offset, bytes, path_);
    MP_TRY(WriteFully(buffered_.get(), offset, bytes.first(head), path_));
    MP_TRY(WriteFully(direct_.get(), offset + head, bytes.subspan(head, middle), path_));
    return WriteFully(buffered_.get(), offset + head + middle, bytes.subspan(head + middle), path_);
  }

  Result<void> Sync() override {
    if (::fdatasync(buffered_.get()) != 0)
      return Fail(WriteCode(errno), Format("{}: making it durable failed: {}", path_, SystemText(errno)));
    return {};
  }

 private:
  Descriptor buffered_;
  Descriptor direct_;
  std::string path_;
  Ledger& ledger_;
};

Result<void> Allocate(int fd, uint64_t size, const std::string& path) {
  struct stat info {};
  const bool longer = ::fstat(fd, &info) == 0 && static_cast<uint64_t>(info.st_size) > size;  // a leftover
  if (longer && ::ftruncate(fd, static_cast<off_t>(size)) != 0)
    return Fail(WriteCode(errno), Format("{}: {}", path, SystemText(errno)));
  if (size == 0 || ::fallocate(fd, 0, 0, static_cast<off_t>(size)) == 0) return {};
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
    return Fail(WriteCode(errno),
                Format("{}: allocating {} failed: {}", path, HumanBytes(size), SystemText(errno)));
  }
  if (::ftruncate(fd, static_cast<off_t>(size)) != 0)
    return Fail(WriteCode(errno), Format("{}: {}", path, SystemText(errno)));
  return {};
}

}  // namespace

Result<std::unique_ptr<OutputFile>> CreateOutputFile(const std::string& path, uint64_t size, bool resume,
                                                     Ledger& ledger) {
  const int mode = O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_EXCL);
  Descriptor fd(::open(path.c_str(), mode, 0666));
  if (!fd.is_open())
    return Fail(WriteCode(errno), Format("{}: can not be created: {}", path, SystemText(errno)));
  MP_TRY(Allocate(fd.get(), size, path));
  Descriptor direct(size >= kDirectFileBytes ? ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT) : -1);
  return std::unique_ptr<OutputFile>(
      std::make_unique<LocalOutputFile>(std::move(fd), std::move(direct), path, ledger));
}

Result<std::unique_ptr<TextSink>> TextSink::Create(const std::string& path, Ledger& ledger) {
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.is_open())
    return Fail(WriteCode(errno), Format("{}: can not be created: {}", path, SystemText(errno)));
  return std::unique_ptr<TextSink>(new TextSink(std::move(fd), path, ledger));
}

Result<void> TextSink::Write(std::string_view text) {
  constexpr size_t kBufferBytes = 1u << 16;
  buffer_ += text;
  return buffer_.size() < kBufferBytes ? Result<void>() : Flush();
}

Result<void> TextSink::Flush() {
  ledger_.ChargeWrite(buffer_.size());
  MP_TRY(AppendText(file_.get(), buffer_, path_));
  buffer_.clear();
  return {};
}

Result<void> TextSink::Finish() {
  MP_TRY(Flush());
  if (::fsync(file_.get()) != 0)
    return Fail(WriteCode(errno), Format("{}: making it durable failed: {}", path_, SystemText(errno)));
  return {};
}

Result<void> WriteSmallFile(const std::string& path, std::string_view text, Ledger& ledger) {
  const auto sink = MP_TRY(TextSink::Create(path, ledger));
  MP_TRY(sink->Write(text));
  return sink->Finish();
}

Result<void> AppendText(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int error = put == 0 ? ENOSPC : errno;
      return Fail(WriteCode(error), Format("{}: writing failed: {}", path, SystemText(error)));
    }
    text.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

Result<void> SyncFolder(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open() || ::fsync(fd.get()) != 0)
    return Fail(Code::kIo, Format("{}: making it durable failed: {}", path, SystemText(errno)));
  return {};
}

}  // namespace mergepipe
