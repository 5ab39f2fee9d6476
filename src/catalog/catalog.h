#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catalog/knowledge.h"
#include "format/checkpoint.h"
#include "mergepipe/result.h"

namespace mergepipe {

/// A checkpoint whose content the catalog knows.
struct KnownCheckpoint {
  int64_t id = 0;
  std::string content;  ///< hexadecimal digest over names, dtypes, shapes and stored bytes: the same for every
                        ///< copy, whatever its path, shards or times
};

/// The knowledge about checkpoints, in one SQLite file that processes share. What is read from it belongs to
/// the very bytes that lie on disk: a file whose stamp (device, inode, size, mtime, ctime) is not the one that was
/// analysed is not known. Not safe for concurrent use. docs/catalog.md lists tables and columns.
class Catalog {
 public:
  /// Opens the catalog for reading; null where there is none yet. Fails with kInvalidInput when the file is
  /// damaged, no catalog or of a newer version, with kTransient when it is locked, naming the path and what to do.
  static Result<std::unique_ptr<Catalog>> OpenExisting(const std::string& path);
  /// Opens or creates it for writing, folders included. Fails like OpenExisting, and with kIo, kDiskFull.
  static Result<std::unique_ptr<Catalog>> OpenForWriting(const std::string& path);
  virtual ~Catalog() = default;

  virtual const std::string& path() const = 0;

  /// The checkpoint as it lies on disk now, by the stamps of its shards.
  virtual Result<std::optional<KnownCheckpoint>> Find(const Checkpoint& checkpoint) = 0;

  /// Statistics of a tensor of `expert` against the tensor of the same name of `base` at a block size; nothing
  /// where that was not analysed (or the tensors differ in shape, or are not of floats).
  virtual Result<std::optional<TensorKnowledge>> Load(int64_t expert, int64_t base, const std::string& tensor,
                                                      uint64_t block_bytes) = 0;
  virtual Result<std::optional<BaseColumns>> LoadBase(int64_t base, const std::string& tensor,
                                                      uint64_t block_bytes) = 0;
};

/// Where the catalog lies: `given` when not empty, else $XDG_CACHE_HOME/mergepipe/catalog.db, else
/// ~/.cache/mergepipe/catalog.db.
std::string CatalogPath(const std::string& given);

}  // namespace mergepipe
