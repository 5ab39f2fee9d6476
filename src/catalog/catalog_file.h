#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/try.h"
#include "catalog/catalog.h"
#include "catalog/sqlite.h"

namespace mergepipe {

/// Blocks of a tensor, and elements of a whole one, as its base's type decides them.
struct BlockGrid {
  uint64_t block_bytes = 0;
  uint64_t elements = 0;
  uint64_t block_elements = 0;
  uint64_t blocks() const { return (elements + block_elements - 1) / block_elements; }
};
BlockGrid GridOf(const TensorContent& base, uint64_t block_bytes);

/// The catalog in an SQLite file. Reading stands in catalog.cc, writing in catalog_store.cc, upkeep in
/// catalog_upkeep.cc.
class CatalogFile final : public Catalog {
 public:
  explicit CatalogFile(std::unique_ptr<Database> database) : database_(std::move(database)) {}

  const std::string& path() const override { return database_->path(); }
  Result<std::optional<KnownCheckpoint>> Find(const Checkpoint& checkpoint) override;
  Result<std::optional<TensorKnowledge>> Load(int64_t expert, int64_t base, const std::string& tensor,
                                              uint64_t block_bytes, bool histogram) override;
  Result<bool> IsAnalysed(int64_t expert, int64_t base, uint64_t block_bytes) override;
  Result<std::optional<std::vector<ExactThreshold>>> LoadThresholds(int64_t expert, int64_t base,
                                                                    const std::string& tensor,
                                                                    uint64_t block_bytes) override;
  Result<std::optional<BaseColumns>> LoadBase(int64_t base, const std::string& tensor,
                                              uint64_t block_bytes) override;

  Result<void> Begin(const Checkpoint& checkpoint) override;
  Result<std::map<std::string, StoredFinding>> Stored(const std::string& checkpoint, const std::string& base,
                                                      uint64_t block_bytes) override;
  Result<void> Store(const std::vector<Finding>& findings) override;
  Result<KnownCheckpoint> Finish(const Checkpoint& checkpoint, const Checkpoint& base,
                                 uint64_t block_bytes) override;

  Result<std::vector<CatalogEntry>> List() override;
  Result<std::map<std::string, TensorContent>> Tensors(int64_t checkpoint) override;
  Result<void> ForgetStamps(const std::string& stamps) override;
  Result<CatalogRemoval> Forget(int64_t checkpoint) override;
  Result<CatalogRemoval> CollectGarbage() override;

 private:
  // A row of the table tensor.
  struct StoredTensor {
    int64_t id = 0;
    TensorContent content;
  };

  // A statement that is prepared once.
  Result<Statement*> Prepared(const std::string& sql);
  // Runs a statement that yields no rows.
  template <typename... Values>
  Result<void> Change(const std::string& sql, const Values&... values) {
    Statement* statement = MP_TRY(Prepared(sql));
    (statement->Bind(values), ...);
    return statement->Run();
  }
  Result<TensorContent> ContentAt(const Statement& row, int first_column) const;
  Result<std::optional<StoredTensor>> Part(int64_t checkpoint, const std::string& name);
  Result<std::vector<ExactThreshold>> ThresholdsOf(const StoredTensor& expert, const StoredTensor& base);
  Result<TensorKnowledge> Unpack(const Statement& row, const TensorContent& expert, const TensorContent& base,
                                 const BlockGrid& grid) const;

  Result<int64_t> CheckpointOf(const std::string& stamps);
  Result<int64_t> StoreTensor(int64_t checkpoint, const Finding& finding);
  Result<void> StoreOne(const Finding& finding);
  Result<void> StoreBaseColumns(int64_t tensor, const Finding& finding);
  Result<void> StoreDeltaColumns(int64_t expert, const StoredTensor& base, const Finding& finding);
  Result<void> StoreThresholds(int64_t expert, const StoredTensor& base, const Finding& finding);
  Result<std::vector<uint64_t>> KeptCounts(int64_t expert, int64_t base);
  Result<bool> HasRow(const std::string& sql, const std::vector<int64_t>& values);
  Result<int64_t> Adopt(int64_t id, const std::string& content);

  Result<void> AddPaths(CatalogEntry& entry);
  Result<void> AddAnalyses(CatalogEntry& entry);
  Result<void> RemoveCheckpoint(int64_t id);
  Result<CatalogRemoval> Sweep(uint64_t checkpoints);

  std::unique_ptr<Database> database_;
  std::map<std::string, Statement> statements_;
};

/// Ties stored columns to the tensors that they describe: a hash over digests, block size and all columns.
/// What does not have it is damaged.
int64_t SealOf(const Digest128& expert, const Digest128& base, uint64_t block_bytes,
               const std::vector<std::span<const std::byte>>& columns);
int64_t SealOf(const Digest128& expert, const Digest128& base, const ExactThreshold& threshold);

}  // namespace mergepipe
