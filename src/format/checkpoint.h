#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/json.h"
#include "format/planned_checkpoint.h"
#include "format/safetensors.h"
#include "mergepipe/result.h"
#include "storage/ledger.h"
#include "storage/source.h"

namespace mergepipe {

/// One safetensors file of a checkpoint.
struct Shard {
  std::string file_name;  ///< relative to the checkpoint's folder, without any '/'
  std::unique_ptr<Source> source;
  SafetensorsHeader header;
};

/// Where a tensor stands: shard number, and position in that shard's header.
struct TensorPlace {
  size_t shard = 0;
  size_t index = 0;
};

/// A checkpoint on storage: one safetensors file, or the shards that an index names. Headers only; owns the
/// open sources. Immutable after Open, safe for concurrent use.
class Checkpoint {
 public:
  /// Opens a folder (model.safetensors.index.json, else model.safetensors, else its only *.safetensors) or a
  /// single file, and checks headers and index against each other, both ways. `name` is what messages say;
  /// reads are charged to a new account of that name. Fails with all faults at once: kInvalidInput.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& path, const std::string& name,
                                                  Ledger& ledger);

  /// A checkpoint that will be made: its headers can be asked, its data can not be read.
  static Result<std::unique_ptr<Checkpoint>> OpenPlanned(std::shared_ptr<const PlannedCheckpoint> planned,
                                                         const std::string& name, Ledger& ledger);

  /// Gives tensors other names, by stored name, under which they are found from now on; their entries keep
  /// what the files say.
  void Rename(const std::map<std::string, std::string>& names);

  const std::string& name() const { return name_; }
  const std::string& folder() const { return folder_; }  ///< absolute; "" never
  bool is_single_file() const {
    return single_file_;
  }  ///< opened as a file, so that side files are not its own
  bool is_planned() const { return planned_ != nullptr; }
  size_t account() const { return account_; }
  const std::vector<Shard>& shards() const { return shards_; }
  bool has_index() const { return index_.has_value(); }
  const std::optional<Json>& index() const { return index_; }

  /// Tensors by name, sorted. A tensor that the index does not name (a superseded copy) is not here.
  const std::map<std::string, TensorPlace>& tensors() const { return tensors_; }
  const TensorEntry& entry(const TensorPlace& place) const {
    return shards_[place.shard].header.tensors[place.index];
  }
  const TensorEntry* Find(const std::string& tensor_name) const;
  uint64_t data_bytes() const;  ///< of all tensors in tensors()

  /// config.json, or null where there is none. Fails with kInvalidInput when it does not parse.
  Result<OrderedJson> Config() const;
  /// Paths of all side files relative to the folder (sorted), folders included by their files; no weights, no
  /// index, nothing hidden, no *.bin, *.pt, *.gguf and the like. Empty for a single file.
  Result<std::vector<std::string>> SideFiles() const;

  /// Where one of them comes from; nothing where there is none of that name.
  std::optional<SideFileOrigin> OriginOf(const std::string& side_file) const;
  /// Its text; nothing where there is none. Fails with kInvalidInput above `limit` bytes.
  Result<std::optional<std::string>> ReadSideFile(const std::string& side_file,
                                                  uint64_t limit = kMaxSideTextBytes) const;
  static constexpr uint64_t kMaxSideTextBytes = 16u << 20;

  /// Digest over all headers, in shard order: identity of what the headers tell.
  std::string HeaderDigest() const;
  /// Notes for the reader of a report: superseded copies, stray shards of another save.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  friend class CheckpointOpener;
  std::string name_, folder_;
  bool single_file_ = false;
  std::shared_ptr<const PlannedCheckpoint> planned_;  // null for one that exists
  size_t account_ = 0;
  std::vector<Shard> shards_;
  std::optional<Json> index_;
  std::map<std::string, TensorPlace> tensors_;
  std::vector<std::string> notes_;
};

inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kSingleName = "model.safetensors";
inline constexpr const char* kConfigName = "config.json";

}  // namespace mergepipe
