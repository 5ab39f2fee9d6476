#include <set>

#include "base/text.h"
#include "base/try.h"
#include "catalog/catalog_file.h"

namespace mergepipe {
namespace {

// True when the checkpoint at this path is still the one with these stamps.
bool StillThere(const std::string& path, const std::string& stamps) {
  Ledger ledger;
  const auto checkpoint = Checkpoint::Open(path, path, ledger);
  return checkpoint && StampKey(**checkpoint) == stamps;
}

}  // namespace

Result<std::vector<CatalogEntry>> CatalogFile::List() {
  std::vector<CatalogEntry> entries;
  Statement& row = *MP_TRY(
      Prepared("SELECT c.id, coalesce(c.content, ''), coalesce(max(l.bytes), 0), coalesce(max(l.tensors), 0) "
               "FROM checkpoint c LEFT JOIN location l ON l.checkpoint = c.id GROUP BY c.id ORDER BY c.id"));
  while (MP_TRY(row.Step())) {
    entries.push_back({.id = row.Integer(0),
                       .content = row.Text(1),
                       .bytes = static_cast<uint64_t>(row.Integer(2)),
                       .tensors = static_cast<uint64_t>(row.Integer(3)),
                       .paths = {},
                       .analyses = {}});
  }
  for (CatalogEntry& entry : entries) {
    MP_TRY(AddPaths(entry));
    MP_TRY(AddAnalyses(entry));
  }
  return entries;
}

Result<void> CatalogFile::AddPaths(CatalogEntry& entry) {
  Statement& row = *MP_TRY(Prepared("SELECT path FROM location WHERE checkpoint = ? ORDER BY path"));
  row.Bind(entry.id);
  while (MP_TRY(row.Step()))
    entry.paths.push_back(row.Text(0));
  return {};
}

Result<void> CatalogFile::AddAnalyses(CatalogEntry& entry) {
  Statement& row =
      *MP_TRY(Prepared("SELECT a.base, coalesce(c.content, ''), a.block_bytes, (SELECT count(*) FROM part e "
                       "JOIN part b ON b.checkpoint = "
                       "a.base AND b.name = e.name JOIN threshold t ON t.expert = e.tensor AND t.base = "
                       "b.tensor WHERE e.checkpoint = "
                       "a.expert) FROM analysis a JOIN checkpoint c ON c.id = a.base WHERE a.expert = ? "
                       "ORDER BY a.base, a.block_bytes"));
  row.Bind(entry.id);
  while (MP_TRY(row.Step())) {
    entry.analyses.push_back({row.Integer(0), row.Text(1), static_cast<uint64_t>(row.Integer(2)),
                              static_cast<uint64_t>(row.Integer(3))});
  }
  return {};
}

Result<void> CatalogFile::RemoveCheckpoint(int64_t id) {
  MP_TRY(Change("DELETE FROM location WHERE checkpoint = ?", id));
  MP_TRY(Change("DELETE FROM part WHERE checkpoint = ?", id));
  MP_TRY(Change("DELETE FROM analysis WHERE expert = ? OR base = ?", id, id));
  return Change("DELETE FROM checkpoint WHERE id = ?", id);
}

// Statistics go with the last checkpoint that holds one of their tensors.
Result<CatalogRemoval> CatalogFile::Sweep(uint64_t checkpoints) {
  MP_TRY(database_->Execute("DELETE FROM tensor WHERE id NOT IN (SELECT tensor FROM part)"));
  const CatalogRemoval removal{checkpoints, static_cast<uint64_t>(database_->ChangedRows())};
  MP_TRY(database_->Execute("DELETE FROM base_columns WHERE tensor NOT IN (SELECT id FROM tensor)"));
  for (const char* table : {"delta_columns", "threshold"}) {
    MP_TRY(database_->Execute(
        Format("DELETE FROM {} WHERE expert NOT IN (SELECT id FROM tensor) OR base NOT IN (SELECT id "
               "FROM tensor)",
               table)));
  }
  return removal;
}

Result<void> CatalogFile::ForgetStamps(const std::string& stamps) {
  Transaction transaction = MP_TRY(Transaction::Begin(*database_));
  MP_TRY(Change("DELETE FROM location WHERE stamps = ?", stamps));
  return transaction.Commit();
}

Result<CatalogRemoval> CatalogFile::Forget(int64_t checkpoint) {
  Transaction transaction = MP_TRY(Transaction::Begin(*database_));
  MP_TRY(RemoveCheckpoint(checkpoint));
  const CatalogRemoval removal = MP_TRY(Sweep(1));
  MP_TRY(transaction.Commit());
  return removal;
}

Result<CatalogRemoval> CatalogFile::CollectGarbage() {
  std::set<std::string> gone;
  Statement& row = *MP_TRY(Prepared("SELECT path, stamps FROM location"));
  while (MP_TRY(row.Step())) {
    if (!StillThere(row.Text(0), row.Text(1))) gone.insert(row.Text(1));
  }
  Transaction transaction = MP_TRY(Transaction::Begin(*database_));
  for (const std::string& stamps : gone)
    MP_TRY(Change("DELETE FROM location WHERE stamps = ?", stamps));
  std::vector<int64_t> homeless;
  Statement& checkpoints =
      *MP_TRY(Prepared("SELECT id FROM checkpoint WHERE id NOT IN (SELECT checkpoint FROM location)"));
  while (MP_TRY(checkpoints.Step()))
    homeless.push_back(checkpoints.Integer(0));
  for (const int64_t id : homeless)
    MP_TRY(RemoveCheckpoint(id));
  const CatalogRemoval removal = MP_TRY(Sweep(homeless.size()));
  MP_TRY(transaction.Commit());
  statements_.clear();  // an open one would keep the file from being written anew
  MP_TRY(database_->Execute("VACUUM"));
  MP_TRY(database_->Execute("PRAGMA wal_checkpoint(TRUNCATE)"));
  return removal;
}

}  // namespace mergepipe
