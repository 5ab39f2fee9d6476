#include <bit>
#include <optional>

#include "base/text.h"
#include "base/try.h"
#include "catalog/catalog_file.h"
#include "catalog/packing.h"

namespace mergepipe {
namespace {

// Where a checkpoint stands, as its user would name it.
std::string PlaceOf(const Checkpoint& checkpoint) {
  if (!checkpoint.is_single_file()) return checkpoint.folder();
  return checkpoint.folder() + "/" + checkpoint.shards().front().file_name;
}

int64_t Signed(uint64_t number) {
  return static_cast<int64_t>(number);
}

}  // namespace

Result<int64_t> CatalogFile::CheckpointOf(const std::string& stamps) {
  Statement& row = *MP_TRY(Prepared("SELECT checkpoint FROM location WHERE stamps = ?"));
  if (!MP_TRY(row.Bind(stamps).Step())) {
    return Fail(
        Code::kTransient,
        Format("{}: another process made the catalog forget what is being analysed; try again", path()));
  }
  const int64_t id = row.Integer(0);
  row.Reset();
  return id;
}

Result<bool> CatalogFile::HasRow(const std::string& sql, const std::vector<int64_t>& values) {
  Statement& row = *MP_TRY(Prepared(sql));
  for (const int64_t value : values)
    row.Bind(value);
  const bool found = MP_TRY(row.Step());
  row.Reset();
  return found;
}

// A file that was written anew is known by its old stamps no longer.
Result<void> CatalogFile::Begin(const Checkpoint& checkpoint) {
  const std::string stamps = StampKey(checkpoint);
  const std::string place = PlaceOf(checkpoint);
  Transaction transaction = MP_TRY(Transaction::Begin(*database_));
  MP_TRY(Change("DELETE FROM location WHERE path = ? AND stamps <> ?", place, stamps));
  MP_TRY(database_->Execute(
      "DELETE FROM checkpoint WHERE content IS NULL AND id NOT IN (SELECT checkpoint FROM location)"));
  MP_TRY(database_->Execute("DELETE FROM part WHERE checkpoint NOT IN (SELECT id FROM checkpoint)"));
  MP_TRY(Change("UPDATE location SET path = ? WHERE stamps = ?", place, stamps));
  if (database_->ChangedRows() == 0) {
    MP_TRY(database_->Execute("INSERT INTO checkpoint (content) VALUES (NULL)"));
    const int64_t id = database_->LastId();
    MP_TRY(Change("INSERT INTO location (stamps, checkpoint, path, bytes, tensors) VALUES (?, ?, ?, ?, ?)",
                  stamps, id, place, Signed(checkpoint.data_bytes()), Signed(checkpoint.tensors().size())));
  }
  return transaction.Commit();
}

Result<std::vector<uint64_t>> CatalogFile::KeptCounts(int64_t expert, int64_t base) {
  std::vector<uint64_t> kept;
  Statement& row = *MP_TRY(Prepared("SELECT kept FROM threshold WHERE expert = ? AND base = ?"));
  row.Bind(expert).Bind(base);
  while (MP_TRY(row.Step()))
    kept.push_back(static_cast<uint64_t>(row.Integer(0)));
  return kept;
}

Result<std::map<std::string, StoredFinding>> CatalogFile::Stored(const std::string& checkpoint,
                                                                 const std::string& base,
                                                                 uint64_t block_bytes) {
  const int64_t id = MP_TRY(CheckpointOf(checkpoint));
  const int64_t base_id = base.empty() ? id : MP_TRY(CheckpointOf(base));
  std::map<std::string, StoredFinding> stored;
  const auto tensors = MP_TRY(Tensors(id));
  for (const auto& [name, content] : tensors) {
    const auto own = MP_TRY(Part(id, name));
    const auto of_base = MP_TRY(Part(base_id, name));
    StoredFinding finding{.content = content, .kept = {}};
    if (base.empty()) {
      const std::string sql = "SELECT 1 FROM base_columns WHERE tensor = ? AND block_bytes = ?";
      finding.has_columns = MP_TRY(HasRow(sql, {own->id, Signed(block_bytes)}));
      finding.is_finite = MP_TRY(HasRow(sql + " AND energy IS NOT NULL", {own->id, Signed(block_bytes)}));
    } else if (of_base) {
      const std::string sql = "SELECT 1 FROM delta_columns WHERE expert = ? AND base = ? AND block_bytes = ?";
      const std::vector<int64_t> key = {own->id, of_base->id, Signed(block_bytes)};
      finding.has_columns = MP_TRY(HasRow(sql, key));
      finding.is_finite = MP_TRY(HasRow(sql + " AND energy IS NOT NULL", key));
      finding.kept = MP_TRY(KeptCounts(own->id, of_base->id));
    }
    stored[name] = std::move(finding);
  }
  return stored;
}

Result<void> CatalogFile::Store(const std::vector<Finding>& findings) {
  Transaction transaction = MP_TRY(Transaction::Begin(*database_));
  for (const Finding& finding : findings)
    MP_TRY(StoreOne(finding));
  return transaction.Commit();
}

Result<void> CatalogFile::StoreOne(const Finding& finding) {
  const int64_t checkpoint = MP_TRY(CheckpointOf(finding.checkpoint));
  const int64_t tensor = MP_TRY(StoreTensor(checkpoint, finding));
  if (!finding.has_columns) return {};
  if (finding.base.empty()) return StoreBaseColumns(tensor, finding);
  const int64_t base_checkpoint = MP_TRY(CheckpointOf(finding.base));
  const auto base = MP_TRY(Part(base_checkpoint, finding.name));
  if (!base) return Fail(Code::kInternal, Format("'{}' of the base is not stored yet", finding.name));
  MP_TRY(StoreDeltaColumns(tensor, *base, finding));
  return StoreThresholds(tensor, *base, finding);
}

Result<int64_t> CatalogFile::StoreTensor(int64_t checkpoint, const Finding& finding) {
  const TensorContent& content = finding.content;
  const auto digest = std::as_bytes(std::span(&content.digest, 1));
  const std::string shape = ShapeText(content.shape);
  MP_TRY(Change("INSERT OR IGNORE INTO tensor (digest, dtype, shape) VALUES (?, ?, ?)", digest,
                DTypeName(content.dtype), shape));
  Statement& row = *MP_TRY(Prepared("SELECT id FROM tensor WHERE digest = ? AND dtype = ? AND shape = ?"));
  if (!MP_TRY(row.Bind(digest).Bind(DTypeName(content.dtype)).Bind(shape).Step()))
    return database_->Damaged("a tensor that was stored is missing");
  const int64_t id = row.Integer(0);
  row.Reset();
  const auto before = MP_TRY(Part(checkpoint, finding.name));
  if (before && before->id != id) {
    return Fail(Code::kInvalidInput,
                Format("tensor '{}' has other bytes than when it was analysed, though its file has the same "
                       "times; analyse again with --force",
                       finding.name));
  }
  MP_TRY(Change("INSERT OR REPLACE INTO part (checkpoint, name, tensor) VALUES (?, ?, ?)", checkpoint,
                finding.name, id));
  return id;
}

Result<void> CatalogFile::StoreBaseColumns(int64_t tensor, const Finding& finding) {
  Statement& row =
      *MP_TRY(Prepared("INSERT OR REPLACE INTO base_columns (tensor, block_bytes, seal, energy, digest) "
                       "VALUES (?, ?, ?, ?, ?)"));
  row.Bind(tensor).Bind(Signed(finding.block_bytes));
  if (!finding.base_columns) return row.Bind(int64_t{0}).BindNull().BindNull().Run();
  const auto energy = ColumnBytes(finding.base_columns->energy);
  const auto digests = ColumnBytes(finding.base_columns->digest);
  const Digest128& digest = finding.content.digest;
  return row.Bind(SealOf(digest, digest, finding.block_bytes, {energy, digests}))
      .Bind(energy)
      .Bind(digests)
      .Run();
}

Result<void> CatalogFile::StoreDeltaColumns(int64_t expert, const StoredTensor& base,
                                            const Finding& finding) {
  Statement& row = *MP_TRY(Prepared(
      "INSERT OR REPLACE INTO delta_columns (expert, base, block_bytes, seal, l1, energy, max_key, nonzeros, "
      "octaves, sketch_scale, sketch, digest, histogram) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  row.Bind(expert).Bind(base.id).Bind(Signed(finding.block_bytes));
  if (!finding.knowledge) return row.Bind(int64_t{0}).Run();  // what is not bound is NULL
  const TensorKnowledge& k = *finding.knowledge;
  const std::vector<std::byte> histogram = PackHistogram(k.histogram);
  const std::vector<std::span<const std::byte>> columns = {
      std::as_bytes(std::span(&k.l1, 1)), ColumnBytes(k.blocks.energy),  ColumnBytes(k.blocks.max_key),
      ColumnBytes(k.blocks.nonzeros),     ColumnBytes(k.blocks.octaves), ColumnBytes(k.blocks.sketch_scale),
      ColumnBytes(k.blocks.sketch),       ColumnBytes(k.blocks.digest),  histogram};
  row.Bind(SealOf(finding.content.digest, base.content.digest, finding.block_bytes, columns)).Bind(k.l1);
  for (size_t column = 1; column < columns.size(); ++column)
    row.Bind(columns[column]);
  return row.Run();
}

Result<void> CatalogFile::StoreThresholds(int64_t expert, const StoredTensor& base, const Finding& finding) {
  if (!finding.knowledge) return {};
  for (const ExactThreshold& t : finding.knowledge->thresholds) {
    MP_TRY(
        Change("INSERT OR REPLACE INTO threshold (expert, base, kept, seal, key, equal_total, equal_kept, "
               "cut_index, "
               "l1_whole, l1_kept) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
               expert, base.id, Signed(t.kept), SealOf(finding.content.digest, base.content.digest, t),
               int64_t{t.threshold.key}, Signed(t.threshold.equal_total), Signed(t.threshold.equal_kept),
               Signed(t.threshold.cut_index.value_or(0)), t.l1_whole, t.l1_kept));
  }
  return {};
}

// Gives a checkpoint its content, or its places to the one that has this content already.
Result<int64_t> CatalogFile::Adopt(int64_t id, const std::string& content) {
  Statement& row = *MP_TRY(Prepared("SELECT id FROM checkpoint WHERE content = ?"));
  const bool exists = MP_TRY(row.Bind(content).Step());
  const int64_t known = exists ? row.Integer(0) : id;
  row.Reset();
  if (!exists) {
    MP_TRY(Change("UPDATE checkpoint SET content = ? WHERE id = ?", content, id));
  } else if (known != id) {
    MP_TRY(Change("UPDATE location SET checkpoint = ? WHERE checkpoint = ?", known, id));
    MP_TRY(RemoveCheckpoint(id));
  }
  return known;
}

Result<KnownCheckpoint> CatalogFile::Finish(const Checkpoint& checkpoint, const Checkpoint& base,
                                            uint64_t block_bytes) {
  Transaction transaction = MP_TRY(Transaction::Begin(*database_));
  const int64_t id = MP_TRY(CheckpointOf(StampKey(checkpoint)));
  const auto tensors = MP_TRY(Tensors(id));
  if (tensors.size() != checkpoint.tensors().size())
    return Fail(Code::kInternal, Format("{}: {} of {} tensors were analysed", checkpoint.name(),
                                        tensors.size(), checkpoint.tensors().size()));
  KnownCheckpoint known{0, ContentOf(tensors)};
  known.id = MP_TRY(Adopt(id, known.content));
  const int64_t base_id = MP_TRY(CheckpointOf(StampKey(base)));
  MP_TRY(Change("INSERT OR IGNORE INTO analysis (expert, base, block_bytes) VALUES (?, ?, ?)", known.id,
                base_id, Signed(block_bytes)));
  MP_TRY(transaction.Commit());
  return known;
}

}  // namespace mergepipe
