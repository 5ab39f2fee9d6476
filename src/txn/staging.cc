#include "txn/staging.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include <algorithm>
#include <filesystem>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "storage/source.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kSpareBytes = 4u << 20;  // manifest, card, and what a file system needs for itself
constexpr uint64_t kMaxSideFileBytes = 4ull << 30;

// The final path without trailing slashes, absolute, with symbolic links of its parents resolved.
fs::path Normal(const std::string& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  fs::path canonical = fs::weakly_canonical(absolute, error);
  return error ? absolute : canonical;
}

bool IsInside(const fs::path& inner, const fs::path& outer) {
  const auto [at, rest] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return at == outer.end();
}

bool LooksLikeCheckpoint(const fs::path& folder) {
  std::error_code error;
  if (fs::is_empty(folder, error)) return true;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == "config.json" || EndsWith(name, ".safetensors") || EndsWith(name, ".index.json")) return true;
  }
  return false;
}

Result<void> CheckExisting(const fs::path& output, bool force) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(output, error))) return {};
  if (!fs::is_directory(output, error))
    return Fail(Code::kUsage, Format("{}: exists and is no folder; choose another output", output.string()));
  if (fs::is_empty(output, error)) return {};
  if (!force)
    return Fail(
        Code::kUsage,
        Format("{}: exists already; choose another output or give --force to replace it", output.string()));
  if (!LooksLikeCheckpoint(output))
    return Fail(Code::kUsage,
                Format("{}: holds no checkpoint, so --force does not replace it", output.string()));
  return {};
}

fs::path ExistingParent(fs::path path) {
  std::error_code error;
  do {
    path = path.parent_path();
  } while (!fs::exists(path, error) && path.has_relative_path());
  return path;
}

// The topmost folder of a path that does not exist; empty where all do.
fs::path FirstMissing(fs::path path) {
  std::error_code error;
  fs::path missing;
  for (; !path.empty() && !fs::exists(path, error); path = path.parent_path())
    missing = path;
  return missing;
}

int Rename(const std::string& from, const std::string& to, unsigned flags) {
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
}

// Bytes on the disk that the files of a folder take.
uint64_t OccupiedBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

void RemoveTree(const std::string& folder) {
  std::error_code ignored;  // what can not be removed does no harm: it is not the output
  fs::remove_all(folder, ignored);
}

}  // namespace

Result<void> CheckTarget(const std::string& output, const std::vector<std::string>& inputs, uint64_t bytes,
                         bool force) {
  const fs::path target = Normal(output);
  for (const std::string& input : inputs) {
    const fs::path other = Normal(input);
    if (target == other)
      return Fail(Code::kUsage, Format("{}: is an input of this merge; choose another output", output));
    if (IsInside(target, other))
      return Fail(Code::kUsage, Format("{}: lies inside the input {}; choose another output", output, input));
    if (IsInside(other, target))
      return Fail(Code::kUsage, Format("{}: holds the input {}; choose another output", output, input));
  }
  MP_TRY(CheckExisting(target, force));
  const fs::path parent = ExistingParent(target);
  std::error_code error;
  if (!fs::is_directory(parent, error))
    return Fail(Code::kUsage, Format("{}: can not be made: {} is no folder", output, parent.string()));
  if (::access(parent.c_str(), W_OK | X_OK) != 0)
    return Fail(Code::kUsage, Format("{}: can not be made: {} is not writable: {}", output, parent.string(),
                                     SystemText(errno)));
  struct statvfs space {};
  if (::statvfs(parent.c_str(), &space) != 0) return {};
  // What an earlier run left is written over by --resume and removed without it.
  const uint64_t free_bytes =
      static_cast<uint64_t>(space.f_bavail) * space.f_frsize + OccupiedBytes(StagingFolder(output));
  if (free_bytes < bytes + kSpareBytes) {
    return Fail(Code::kNoSpace, Format("{}: the output needs {} ({} bytes, its manifest and a reserve "
                                       "included) but the disk has {} ({} bytes) free",
                                       output, HumanBytes(bytes + kSpareBytes), bytes + kSpareBytes,
                                       HumanBytes(free_bytes), free_bytes));
  }
  return {};
}

std::string StagingFolder(const std::string& output) {
  const fs::path target = Normal(output);
  return (target.parent_path() / ("." + target.filename().string() + ".mergepipe-staging")).string();
}

Result<std::unique_ptr<Staging>> Staging::Open(const std::string& output, bool resume, Ledger& ledger) {
  std::unique_ptr<Staging> staging(new Staging(Normal(output).string(), ledger));
  const std::string folder = StagingFolder(output);
  std::error_code error;
  staging->first_parent_ = FirstMissing(fs::path(folder).parent_path()).string();
  fs::create_directories(fs::path(folder).parent_path(), error);
  if (error)
    return Fail(WriteCode(error.value()), Format("{}: can not be made: {}", output, error.message()));
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool made = ::mkdir(folder.c_str(), 0777) == 0;
    if (!made && errno != EEXIST)
      return Fail(WriteCode(errno), Format("{}: can not be made: {}", folder, SystemText(errno)));
    staging->lock_ = Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!staging->lock_.is_open()) return Fail(Code::kIo, Format("{}: {}", folder, SystemText(errno)));
    if (::flock(staging->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      return Fail(Code::kUsage,
                  Format("{}: another merge is writing this output; wait for it or choose another", output));
    }
    const bool unfinished = !made && fs::exists(fs::path(folder) / kJournalName, error);
    staging->discards_ = staging->discards_ || (unfinished && !resume);
    // A folder without a journal is no unfinished work: an output that --force replaced and that was not
    // removed, say.
    if (made || (resume && unfinished)) {
      staging->folder_ = folder;
      staging->resumed_ = !made;
      return staging;
    }
    RemoveTree(folder);
  }
  return Fail(Code::kIo,
              Format("{}: left over by an earlier run, can not be removed; remove it by hand", folder));
}

Staging::~Staging() {
  if (keep_ || folder_.empty()) return;
  RemoveTree(folder_);
  // Parents that were made for this output go too, as far as they are empty.
  for (fs::path parent = fs::path(folder_).parent_path(); !first_parent_.empty();
       parent = parent.parent_path()) {
    if (::rmdir(parent.c_str()) != 0 || parent == first_parent_) return;
  }
}

Result<std::unique_ptr<OutputFile>> Staging::CreateFile(const std::string& name, uint64_t size) {
  return CreateOutputFile(folder_ + "/" + name, size, resumed_, ledger_);
}

Result<std::unique_ptr<TextSink>> Staging::CreateText(const std::string& name) {
  return TextSink::Create(folder_ + "/" + name, ledger_);
}

Result<void> Staging::MakeParents(const std::string& name) {
  std::error_code error;
  fs::create_directories((fs::path(folder_) / name).parent_path(), error);
  if (error) return Fail(WriteCode(error.value()), Format("{}/{}: {}", folder_, name, error.message()));
  return {};
}

Result<void> Staging::WriteText(const std::string& name, std::string_view text) {
  MP_TRY(MakeParents(name));
  return WriteSmallFile(folder_ + "/" + name, text, ledger_);
}

Result<std::string> Staging::CopyFile(const std::string& from, const std::string& name, size_t account) {
  const std::string text = MP_TRY(ReadSmallFile(from, kMaxSideFileBytes));
  ledger_.Charge(account, Purpose::kSideFile, text.size());
  MP_TRY(WriteText(name, text));
  return Hex(DigestOf(std::as_bytes(std::span(text))));
}

Result<void> Staging::Publish(bool force) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory()) MP_TRY(SyncFolder(it->path().string()));
  }
  MP_TRY(SyncFolder(folder_));
  ::rmdir(output_.c_str());  // an empty folder may stand there; anything else stays and is met below
  if (Rename(folder_, output_, RENAME_NOREPLACE) == 0) {
    folder_.clear();
  } else if (errno == EEXIST && force) {
    if (Rename(folder_, output_, RENAME_EXCHANGE) != 0)
      return Fail(Code::kIo, Format("{}: can not be replaced: {}", output_, SystemText(errno)));
  } else if (errno == EEXIST) {
    return Fail(Code::kUsage, Format("{}: appeared while the merge ran; nothing was replaced", output_));
  } else if (errno == EINVAL || errno == ENOSYS) {  // a file system without the flag
    if (::rename(folder_.c_str(), output_.c_str()) != 0)
      return Fail(Code::kIo, Format("{}: can not be published: {}", output_, SystemText(errno)));
    folder_.clear();
  } else {
    return Fail(Code::kIo, Format("{}: can not be published: {}", output_, SystemText(errno)));
  }
  return SyncFolder(fs::path(output_).parent_path().string());
}

}  // namespace mergepipe
