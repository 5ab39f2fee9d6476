#include "catalog/identity.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace {

constexpr int64_t kSettlingNanoseconds = 50'000'000;

std::string ShardPath(const Checkpoint& checkpoint, const Shard& shard) {
  return checkpoint.folder() + "/" + shard.file_name;
}

int64_t WallClock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool IsFresh(int64_t time, int64_t now) {
  return time <= now && now - time < kSettlingNanoseconds;
}

}  // namespace

std::string StampKey(const Checkpoint& checkpoint) {
  Sha256 sha;
  for (const Shard& shard : checkpoint.shards()) {
    const FileStamp& stamp = shard.source->Stamp();
    sha.Update(Format("{} {} {} {} {} {}\n", stamp.device, stamp.inode, stamp.size, stamp.mtime_ns,
                      stamp.ctime_ns, shard.header.digest));
  }
  // An index decides which of two copies of a tensor counts.
  for (const auto& [name, place] : checkpoint.tensors())
    sha.Update(Format("{} {} {}\n", place.shard, place.index, name));
  return sha.FinishHex();
}

Result<void> CheckUnchanged(const Checkpoint& checkpoint) {
  for (const Shard& shard : checkpoint.shards()) {
    const auto now = OpenLocalSource(ShardPath(checkpoint, shard), shard.source->Describe());
    if (now && (*now)->Stamp() == shard.source->Stamp()) continue;
    return Fail(Code::kInvalidInput,
                Format("{}: was changed while it was analysed; analyse it again when nobody writes to it",
                       shard.source->Describe()));
  }
  return {};
}

bool WaitUntilSettled(const Checkpoint& checkpoint) {
  const int64_t now = WallClock();
  const bool fresh =
      std::any_of(checkpoint.shards().begin(), checkpoint.shards().end(), [&](const Shard& shard) {
        const FileStamp& stamp = shard.source->Stamp();
        return IsFresh(stamp.mtime_ns, now) || IsFresh(stamp.ctime_ns, now);
      });
  if (fresh) std::this_thread::sleep_for(std::chrono::nanoseconds(kSettlingNanoseconds));
  return fresh;
}

std::string ContentOf(const std::map<std::string, TensorContent>& tensors) {
  Sha256 sha;
  for (const auto& [name, tensor] : tensors) {
    sha.Update(Format("{} {} {} {} {}\n", name.size(), name, DTypeName(tensor.dtype), ShapeText(tensor.shape),
                      Hex(tensor.digest)));
  }
  return sha.FinishHex();
}

}  // namespace mergepipe
