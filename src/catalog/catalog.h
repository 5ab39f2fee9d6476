#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catalog/identity.h"
#include "catalog/knowledge.h"
#include "format/checkpoint.h"
#include "mergepipe/result.h"

namespace mergepipe {

/// A checkpoint whose content the catalog knows.
struct KnownCheckpoint {
  int64_t id = 0;
  std::string content;  ///< hexadecimal digest over names, dtypes, shapes and stored bytes: the same for
                        ///< every copy, whatever its path, shards or times
};

/// What an analysis has found out about one stored tensor. Checkpoints are named by their StampKey.
struct Finding {
  std::string checkpoint;
  std::string base;  ///< of the deltas; "" for the base's own tensors and for what was not compared
  std::string name;
  TensorContent content;
  uint64_t block_bytes = 0;
  bool has_columns =
      false;  ///< the columns belong to the finding; missing ones say that values are not finite
  std::optional<BaseColumns> base_columns;
  std::optional<TensorKnowledge> knowledge;
};

/// What the catalog has of one tensor of a checkpoint already.
struct StoredFinding {
  TensorContent content;
  bool has_columns = false;    ///< there are columns, or it is known that there can be none
  bool is_finite = false;      ///< there are columns
  std::vector<uint64_t> kept;  ///< counts of the thresholds
};

/// One analysis that was finished: what an expert (or, against itself, a base) is known against.
struct FinishedAnalysis {
  int64_t base = 0;
  std::string base_content;
  uint64_t block_bytes = 0;
  uint64_t thresholds = 0;  ///< stored, over all tensors
};

/// One checkpoint as `catalog list` shows it.
struct CatalogEntry {
  int64_t id = 0;
  std::string content;  ///< "" where its analysis is not finished
  uint64_t bytes = 0;
  uint64_t tensors = 0;
  std::vector<std::string> paths;
  std::vector<FinishedAnalysis> analyses;
};

/// What was removed.
struct CatalogRemoval {
  uint64_t checkpoints = 0;
  uint64_t tensors = 0;  ///< distinct ones, that no other checkpoint has
};

/// The knowledge about checkpoints, in one SQLite file that processes share. What is read from it belongs to
/// the very bytes that lie on disk: a file whose stamp (device, inode, size, mtime, ctime) is not the one
/// that was analysed is not known. Not safe for concurrent use. docs/catalog.md lists tables and columns.
class Catalog {
 public:
  /// Opens the catalog for reading; null where there is none yet. Fails with kInvalidInput when the file is
  /// damaged, no catalog or of a newer version, with kTransient when it is locked, naming the path and what
  /// to do.
  static Result<std::unique_ptr<Catalog>> OpenExisting(const std::string& path);
  /// Opens or creates it for writing, folders included. Fails like OpenExisting, and with kIo, kDiskFull.
  static Result<std::unique_ptr<Catalog>> OpenForWriting(const std::string& path);
  virtual ~Catalog() = default;

  virtual const std::string& path() const = 0;

  /// The checkpoint as it lies on disk now, by the stamps of its shards.
  virtual Result<std::optional<KnownCheckpoint>> Find(const Checkpoint& checkpoint) = 0;
  /// True when the analysis of `expert` against `base` at a block size was finished.
  virtual Result<bool> IsAnalysed(int64_t expert, int64_t base, uint64_t block_bytes) = 0;

  /// Statistics of a tensor of `expert` against the tensor of the same name of `base` at a block size;
  /// nothing where that was not analysed (or the tensors differ in shape, or are not of floats). The
  /// histogram is left empty where the caller has no use for it: to unpack it takes longer than the rest.
  virtual Result<std::optional<TensorKnowledge>> Load(int64_t expert, int64_t base, const std::string& tensor,
                                                      uint64_t block_bytes, bool histogram = true) = 0;
  /// The thresholds alone, where Load has something.
  virtual Result<std::optional<std::vector<ExactThreshold>>> LoadThresholds(int64_t expert, int64_t base,
                                                                            const std::string& tensor,
                                                                            uint64_t block_bytes) = 0;
  virtual Result<std::optional<BaseColumns>> LoadBase(int64_t base, const std::string& tensor,
                                                      uint64_t block_bytes) = 0;

  // --- analysis; each call is one transaction of its own

  /// Notes that a checkpoint is being analysed; what is known of it stays.
  virtual Result<void> Begin(const Checkpoint& checkpoint) = 0;
  /// What is stored of the tensors of a checkpoint that was begun, by name, against a base that was begun
  /// ("": of a base itself).
  virtual Result<std::map<std::string, StoredFinding>> Stored(const std::string& checkpoint,
                                                              const std::string& base,
                                                              uint64_t block_bytes) = 0;
  /// Stores findings, those of a base before those against it. Fails with kTransient when somebody made the
  /// catalog forget their checkpoint meanwhile.
  virtual Result<void> Store(const std::vector<Finding>& findings) = 0;
  /// Ends the analysis of a checkpoint against a base (itself: of a base) whose tensors are all stored.
  /// Checkpoints of equal content become one.
  virtual Result<KnownCheckpoint> Finish(const Checkpoint& checkpoint, const Checkpoint& base,
                                         uint64_t block_bytes) = 0;

  // --- upkeep

  virtual Result<std::vector<CatalogEntry>> List() = 0;
  /// The tensors of a checkpoint by name.
  virtual Result<std::map<std::string, TensorContent>> Tensors(int64_t checkpoint) = 0;
  /// Takes back that files with this StampKey are known, whatever was analysed of them.
  virtual Result<void> ForgetStamps(const std::string& stamps) = 0;
  /// Removes a checkpoint, whichever paths it has, and what is known of its tensors alone.
  virtual Result<CatalogRemoval> Forget(int64_t checkpoint) = 0;
  /// Removes checkpoints none of whose paths holds any longer what was analysed, and gives the room back.
  virtual Result<CatalogRemoval> CollectGarbage() = 0;
};

/// Where the catalog lies: `given` when not empty, else $XDG_CACHE_HOME/mergepipe/catalog.db, else
/// ~/.cache/mergepipe/catalog.db, else "": nowhere, so that there is none and none can be made.
std::string CatalogPath(const std::string& given);

}  // namespace mergepipe
