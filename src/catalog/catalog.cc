#include "catalog/catalog.h"

#include <bit>
#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "base/try.h"
#include "catalog/catalog_file.h"
#include "catalog/packing.h"
#include "catalog/schema.h"

namespace mergepipe {
namespace {

// "[4096, 11008]", as ShapeText writes it.
std::optional<std::vector<uint64_t>> ShapeOf(std::string_view text) {
  if (!StartsWith(text, "[") || !EndsWith(text, "]")) return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::vector<uint64_t> shape;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(", "), text.size());
    const auto extent = ParseUnsigned(text.substr(0, comma));
    if (!extent) return std::nullopt;
    shape.push_back(*extent);
    text.remove_prefix(std::min(comma + 2, text.size()));
  }
  return shape;
}

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

int64_t SealOf(const Digest128& expert, const Digest128& base, uint64_t block_bytes,
               const std::vector<std::span<const std::byte>>& columns) {
  std::vector<Digest128> parts = {expert, base, {block_bytes, columns.size()}};
  for (const auto column : columns)
    parts.push_back(DigestOf(column));
  return std::bit_cast<int64_t>(DigestOf(std::span<const Digest128>(parts)).low);
}

int64_t SealOf(const Digest128& expert, const Digest128& base, const ExactThreshold& t) {
  const uint64_t numbers[] = {t.kept,
                              t.threshold.key,
                              t.threshold.equal_total,
                              t.threshold.equal_kept,
                              t.threshold.cut_index.value_or(0),
                              std::bit_cast<uint64_t>(t.l1_whole),
                              std::bit_cast<uint64_t>(t.l1_kept)};
  return SealOf(expert, base, 0, {std::as_bytes(std::span(numbers))});
}

BlockGrid GridOf(const TensorContent& base, uint64_t block_bytes) {
  BlockGrid grid{
      .block_bytes = block_bytes, .elements = 1, .block_elements = block_bytes / DTypeBytes(base.dtype)};
  for (const uint64_t extent : base.shape)
    grid.elements *= extent;
  return grid;
}

Result<Statement*> CatalogFile::Prepared(const std::string& sql) {
  auto at = statements_.find(sql);
  if (at == statements_.end()) {
    Statement statement = MP_TRY(database_->Prepare(sql));
    at = statements_.emplace(sql, std::move(statement)).first;
  }
  at->second.Reset();
  return &at->second;
}

// Columns digest, dtype and shape of the table tensor.
Result<TensorContent> CatalogFile::ContentAt(const Statement& row, int first_column) const {
  const auto digest = ColumnOf<Digest128>(row.Blob(first_column), 1);
  const auto dtype = DTypeFromName(row.Text(first_column + 1));
  const auto shape = ShapeOf(row.Text(first_column + 2));
  if (!digest || !dtype || !shape) return database_->Damaged("a tensor's entry makes no sense");
  return TensorContent{*dtype, *shape, digest->front()};
}

Result<std::optional<CatalogFile::StoredTensor>> CatalogFile::Part(int64_t checkpoint,
                                                                   const std::string& name) {
  Statement& row =
      *MP_TRY(Prepared("SELECT t.id, t.digest, t.dtype, t.shape FROM part p JOIN tensor t ON t.id = p.tensor "
                       "WHERE p.checkpoint = ? AND p.name = ?"));
  const bool found = MP_TRY(row.Bind(checkpoint).Bind(name).Step());
  if (!found) return std::optional<StoredTensor>();
  TensorContent content = MP_TRY(ContentAt(row, 1));
  StoredTensor tensor{row.Integer(0), std::move(content)};
  row.Reset();  // an open row would hold the file's lock
  return std::optional(std::move(tensor));
}

Result<bool> CatalogFile::IsAnalysed(int64_t expert, int64_t base, uint64_t block_bytes) {
  Statement& row =
      *MP_TRY(Prepared("SELECT 1 FROM analysis WHERE expert = ? AND base = ? AND block_bytes = ?"));
  const bool found = MP_TRY(row.Bind(expert).Bind(base).Bind(static_cast<int64_t>(block_bytes)).Step());
  row.Reset();
  return found;
}

Result<std::optional<KnownCheckpoint>> CatalogFile::Find(const Checkpoint& checkpoint) {
  Statement& row =
      *MP_TRY(Prepared("SELECT c.id, c.content FROM location l JOIN checkpoint c ON c.id = l.checkpoint "
                       "WHERE l.stamps = ? AND c.content IS NOT NULL"));
  const bool found = MP_TRY(row.Bind(StampKey(checkpoint)).Step());
  if (!found) return std::optional<KnownCheckpoint>();
  const KnownCheckpoint known{row.Integer(0), row.Text(1)};
  row.Reset();
  // The content follows from the tensors, so that no damage can pass one checkpoint off as another.
  if (ContentOf(MP_TRY(Tensors(known.id))) != known.content)
    return database_->Damaged("a checkpoint's tensors do not fit");
  return std::optional(known);
}

Result<std::optional<TensorKnowledge>> CatalogFile::Load(int64_t expert, int64_t base,
                                                         const std::string& tensor, uint64_t block_bytes,
                                                         bool histogram) {
  const auto of_expert = MP_TRY(Part(expert, tensor));
  const auto of_base = MP_TRY(Part(base, tensor));
  if (!of_expert || !of_base) return std::optional<TensorKnowledge>();
  Statement& row = *MP_TRY(
      Prepared("SELECT seal, l1, energy, max_key, nonzeros, octaves, sketch_scale, sketch, digest, histogram "
               "FROM delta_columns WHERE expert = ? AND base = ? AND block_bytes = ?"));
  const bool found =
      MP_TRY(row.Bind(of_expert->id).Bind(of_base->id).Bind(static_cast<int64_t>(block_bytes)).Step());
  if (!found || row.IsNull(1)) {
    row.Reset();
    return std::optional<TensorKnowledge>();
  }
  const BlockGrid grid = GridOf(of_base->content, block_bytes);
  TensorKnowledge knowledge = MP_TRY(Unpack(row, of_expert->content, of_base->content, grid));
  if (histogram) {
    auto unpacked = UnpackHistogram(row.Blob(9), grid.elements);
    if (!unpacked) return database_->Damaged("a histogram makes no sense");
    knowledge.histogram = std::move(*unpacked);
  }
  row.Reset();
  knowledge.thresholds = MP_TRY(ThresholdsOf(*of_expert, *of_base));
  return std::optional(std::move(knowledge));
}

Result<std::optional<std::vector<ExactThreshold>>> CatalogFile::LoadThresholds(int64_t expert, int64_t base,
                                                                               const std::string& tensor,
                                                                               uint64_t block_bytes) {
  const auto of_expert = MP_TRY(Part(expert, tensor));
  const auto of_base = MP_TRY(Part(base, tensor));
  if (!of_expert || !of_base) return std::optional<std::vector<ExactThreshold>>();
  const bool known = MP_TRY(HasRow(
      "SELECT 1 FROM delta_columns WHERE expert = ? AND base = ? AND block_bytes = ? AND l1 IS NOT NULL",
      {of_expert->id, of_base->id, static_cast<int64_t>(block_bytes)}));
  if (!known) return std::optional<std::vector<ExactThreshold>>();
  return std::optional(MP_TRY(ThresholdsOf(*of_expert, *of_base)));
}

Result<TensorKnowledge> CatalogFile::Unpack(const Statement& row, const TensorContent& expert,
                                            const TensorContent& base, const BlockGrid& grid) const {
  const double l1 = row.Real(1);
  std::vector<std::span<const std::byte>> columns = {BytesOf(l1)};
  for (int column = 2; column <= 9; ++column)
    columns.push_back(row.Blob(column));
  if (SealOf(expert.digest, base.digest, grid.block_bytes, columns) != row.Integer(0))
    return database_->Damaged("statistics do not fit their tensor");
  auto energy = ColumnOf<double>(row.Blob(2), grid.blocks());
  auto max_key = ColumnOf<uint32_t>(row.Blob(3), grid.blocks());
  auto nonzeros = ColumnOf<uint32_t>(row.Blob(4), grid.blocks());
  auto octaves = ColumnOf<uint32_t>(row.Blob(5), grid.blocks() * kOctaves);
  auto scale = ColumnOf<float>(row.Blob(6), grid.blocks());
  auto sketch = ColumnOf<int8_t>(row.Blob(7), grid.blocks() * kSketchBuckets);
  auto digest = ColumnOf<Digest128>(row.Blob(8), grid.blocks());
  if (!energy || !max_key || !nonzeros || !octaves || !scale || !sketch || !digest)
    return database_->Damaged("columns have the wrong length");
  TensorKnowledge knowledge;
  knowledge.blocks = {.block_elements = grid.block_elements,
                      .elements = grid.elements,
                      .energy = std::move(*energy),
                      .max_key = std::move(*max_key),
                      .nonzeros = std::move(*nonzeros),
                      .octaves = std::move(*octaves),
                      .sketch_scale = std::move(*scale),
                      .sketch = std::move(*sketch),
                      .digest = std::move(*digest)};
  knowledge.l1 = l1;
  return knowledge;
}

Result<std::vector<ExactThreshold>> CatalogFile::ThresholdsOf(const StoredTensor& expert,
                                                              const StoredTensor& base) {
  std::vector<ExactThreshold> thresholds;
  Statement& row = *MP_TRY(
      Prepared("SELECT kept, key, equal_total, equal_kept, cut_index, l1_whole, l1_kept, seal FROM threshold "
               "WHERE expert = ? AND base = ? ORDER BY kept"));
  row.Bind(expert.id).Bind(base.id);
  while (MP_TRY(row.Step())) {
    const auto number = [&](int column) { return static_cast<uint64_t>(row.Integer(column)); };
    ExactThreshold t{.kept = number(0),
                     .threshold = {.key = static_cast<uint32_t>(row.Integer(1)),
                                   .equal_total = number(2),
                                   .equal_kept = number(3),
                                   .cut_index = number(4)},
                     .l1_whole = row.Real(5),
                     .l1_kept = row.Real(6)};
    if (SealOf(expert.content.digest, base.content.digest, t) != row.Integer(7))
      return database_->Damaged("a threshold does not fit its tensor");
    thresholds.push_back(t);
  }
  return thresholds;
}

Result<std::optional<BaseColumns>> CatalogFile::LoadBase(int64_t base, const std::string& tensor,
                                                         uint64_t block_bytes) {
  const auto part = MP_TRY(Part(base, tensor));
  if (!part) return std::optional<BaseColumns>();
  Statement& row =
      *MP_TRY(Prepared("SELECT seal, energy, digest FROM base_columns WHERE tensor = ? AND block_bytes = ?"));
  const bool found = MP_TRY(row.Bind(part->id).Bind(static_cast<int64_t>(block_bytes)).Step());
  if (!found || row.IsNull(1)) {
    row.Reset();
    return std::optional<BaseColumns>();
  }
  const Digest128& digest = part->content.digest;
  const bool sealed = SealOf(digest, digest, block_bytes, {row.Blob(1), row.Blob(2)}) == row.Integer(0);
  if (!sealed) return database_->Damaged("statistics do not fit their tensor");
  const uint64_t blocks = GridOf(part->content, block_bytes).blocks();
  auto energy = ColumnOf<double>(row.Blob(1), blocks);
  auto digests = ColumnOf<Digest128>(row.Blob(2), blocks);
  row.Reset();
  if (!energy || !digests) return database_->Damaged("columns have the wrong length");
  return std::optional(BaseColumns{std::move(*energy), std::move(*digests)});
}

Result<std::map<std::string, TensorContent>> CatalogFile::Tensors(int64_t checkpoint) {
  std::map<std::string, TensorContent> tensors;
  Statement& row = *MP_TRY(
      Prepared("SELECT p.name, t.digest, t.dtype, t.shape FROM part p JOIN tensor t ON t.id = p.tensor "
               "WHERE p.checkpoint = ?"));
  row.Bind(checkpoint);
  while (MP_TRY(row.Step()))
    tensors[row.Text(0)] = MP_TRY(ContentAt(row, 1));
  return tensors;
}

Result<std::unique_ptr<Catalog>> Catalog::OpenExisting(const std::string& path) {
  auto database = MP_TRY(OpenCatalogForReading(path));
  if (database == nullptr) return std::unique_ptr<Catalog>();
  return std::unique_ptr<Catalog>(std::make_unique<CatalogFile>(std::move(database)));
}

Result<std::unique_ptr<Catalog>> Catalog::OpenForWriting(const std::string& path) {
  return std::unique_ptr<Catalog>(std::make_unique<CatalogFile>(MP_TRY(OpenCatalogForWriting(path))));
}

std::string CatalogPath(const std::string& given) {
  if (!given.empty()) return given;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // The standard says that a relative path there counts for nothing.
  const bool has_cache = cache != nullptr && cache[0] == '/';
  if (!has_cache && (home == nullptr || home[0] == '\0')) return "";
  const std::string folder = has_cache ? cache : std::string(home) + "/.cache";
  return folder + "/mergepipe/catalog.db";
}

}  // namespace mergepipe
