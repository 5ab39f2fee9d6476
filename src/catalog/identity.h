#pragma once

#include <map>
#include <string>

#include "base/digest.h"
#include "format/checkpoint.h"
#include "mergepipe/result.h"

namespace mergepipe {

/// What a checkpoint looks like from outside: SHA-256 over the stamps and headers of its shards and which of
/// them holds which tensor. The same for as long as nothing was written; says nothing about content.
std::string StampKey(const Checkpoint& checkpoint);

/// Fails with kInvalidInput when a shard is no longer the file that was opened.
Result<void> CheckUnchanged(const Checkpoint& checkpoint);

/// Where a shard was written a moment ago, waits until the clock of the file system has moved on, so that a
/// later write can not leave the same stamp. True when it had to wait: what was opened may have been changed.
bool WaitUntilSettled(const Checkpoint& checkpoint);

/// One stored tensor: what of it is content.
struct TensorContent {
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  Digest128 digest;  ///< root of DigestTree over its stored bytes in leaves of 16 KiB
};

/// Identity of content: SHA-256 over names, dtypes, shapes and digests, in order of names.
std::string ContentOf(const std::map<std::string, TensorContent>& tensors);

}  // namespace mergepipe
