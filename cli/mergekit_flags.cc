#include "mergekit_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>

namespace mergepipe::cli {
namespace {

constexpr const char* kShardSize = "--out-shard-size";
constexpr const char* kCopyTokenizer = "--copy-tokenizer";
constexpr const char* kModelCard = "--write-model-card";
constexpr const char* kSafetensors = "--safe-serialization";
constexpr const char* kTruncate = "--unsafe-truncate-embeddings";
constexpr const char* kHubCache = "--transformers-cache";
constexpr const char* kNoEffect = "mergekit's flags that have no effect here";

/// A flag of mergekit's that means nothing here.
struct IdleFlag {
  const char* name;
  const char* value;  ///< "" for a switch
  const char* why;
  bool negatable = true;
};

constexpr const char* kNoGpu = "merging runs on the CPU, as fast as the disk delivers";
constexpr const char* kNoAdapters = "adapters are not supported yet";

const IdleFlag kIdleFlags[] = {
    {"--allow-crimes", "", "tensors are merged by name and shape, whatever architecture a config names"},
    {"--trust-remote-code", "", "no code of a model is ever run"},
    {"--clone-tensors", "", "tensors are written one by one and share nothing"},
    {"--lazy-unpickle", "", "safetensors are read piece by piece; pickles are not read"},
    {"--low-cpu-memory", "", "memory is bounded by --memory"},
    {"--async-write", "", "reading, computing and writing always overlap"},
    {"--write-threads", "N", "writing is divided among the --threads"},
    {"--cuda", "", kNoGpu},
    {"--device", "NAME", kNoGpu},
    {"--read-to-gpu", "", kNoGpu},
    {"--multi-gpu", "", kNoGpu},
    {"--gpu-rich", "", kNoGpu},
    {"--lora-merge-cache", "DIR", kNoAdapters},
    {"--lora-merge-dtype", "TYPE", kNoAdapters},
    {"-v", "", "warnings are always told, and results are in the report", false},
};

// "-v" has no long name.
bool IsLong(const IdleFlag& flag) {
  return std::string(flag.name).rfind("--", 0) == 0;
}

bool IsGiven(const IdleFlag& flag, const Arguments& arguments) {
  return arguments.Has(flag.name) ||
         (IsLong(flag) && arguments.Has("--no-" + std::string(flag.name).substr(2)));
}

Failure NoShardSize(const std::string& text) {
  return Fail(Code::kUsage, std::string(kShardSize) + ": '" + text +
                                "' is not a size; write a whole number with K, M or B (thousand, million, "
                                "billion bytes), or a number with KB, KiB, MB, MiB, GB, GiB, TB or TiB");
}

// mergekit's "5B", "100M" and "200K" are whole powers of ten, and what is below 1 is no limit; else a size as
// everywhere.
Result<uint64_t> ShardBytesOf(const std::string& text) {
  const std::map<std::string, uint64_t> factors = {
      {"", 1}, {"K", 1'000}, {"M", 1'000'000}, {"B", 1'000'000'000}};
  const auto factor =
      factors.find(text.substr(std::min(text.size(), text.find_first_not_of("+-.0123456789"))));
  if (factor == factors.end()) {
    auto bytes = ParseByteCount(text);
    return bytes ? std::move(bytes) : NoShardSize(text);
  }
  int64_t count = 0;
  const char* last = text.data() + text.size() - factor->first.size();
  const auto [end, error] = std::from_chars(text.data(), last, count);
  if (error != std::errc() || end != last || count > INT64_MAX / static_cast<int64_t>(factor->second))
    return NoShardSize(text);
  return count <= 0 ? 0 : static_cast<uint64_t>(count) * factor->second;
}

}  // namespace

std::vector<FlagSpec> MergekitFlags() {
  std::vector<FlagSpec> flags = {
      {.name = kShardSize,
       .value = "SIZE",
       .help =
           "new output files of at most this many bytes, such as 5B (billion), 100M or 4GiB; 0: one file; "
           "default the base's files, else 5B"},
      {.name = kCopyTokenizer,
       .help = "copy the tokenizer's files from the base (default); --no-copy-tokenizer leaves them out",
       .negatable = true},
      {.name = kModelCard,
       .help = "write a model card, README.md (default); --no-write-model-card leaves it out",
       .negatable = true},
      {.name = kSafetensors,
       .help = "write safetensors, as always; there is no other format",
       .negatable = true},
      {.name = kHubCache,
       .value = "DIR",
       .help = "also look in this Hugging Face cache for models that are no local path"},
      {.name = kTruncate,
       .help = "not supported: cut rows are other tokens'; set tokenizer_source in the recipe instead",
       .negatable = true},
  };
  for (const IdleFlag& flag : kIdleFlags) {
    flags.push_back({.name = flag.name,
                     .value = flag.value,
                     .help = flag.why,
                     .negatable = flag.negatable && *flag.value == '\0',
                     .group = kNoEffect});
  }
  return flags;
}

Result<void> TakeMergekitFlags(const Arguments& arguments, MergeRequest& request) {
  if (arguments.Has("--no-safe-serialization"))
    return Fail(Code::kUsage,
                "--no-safe-serialization: only safetensors are written; every loader of .bin files reads "
                "them too");
  if (arguments.Has(kTruncate))
    return Fail(Code::kUsage,
                std::string(kTruncate) +
                    ": embeddings are not cut by position, since a row may then be another token's; set "
                    "'tokenizer_source: base' (or union) in the recipe, which goes by token");
  if (arguments.Has(kShardSize)) {
    auto bytes = ShardBytesOf(arguments.Get(kShardSize));
    if (!bytes) return Fail(std::move(bytes).error());
    request.form.shard_bytes = *bytes;
  }
  request.form.copies_tokenizer = !arguments.Has("--no-copy-tokenizer");
  request.form.writes_card = !arguments.Has("--no-write-model-card");
  if (arguments.Has(kHubCache)) request.hub_caches.push_back(arguments.Get(kHubCache));
  for (const IdleFlag& flag : kIdleFlags) {
    if (IsGiven(flag, arguments))
      request.remarks.push_back(std::string(flag.name) + " has no effect: " + flag.why);
  }
  return {};
}

}  // namespace mergepipe::cli
