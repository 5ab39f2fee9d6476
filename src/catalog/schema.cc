#include "catalog/schema.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kApplicationId = 0x6d706361;  // "mpca"

// Small pages: most rows are a few KiB, and what is left of a row's last page is lost.
constexpr const char* kSettings = "PRAGMA page_size = 1024";

// docs/catalog.md says what each column holds.
constexpr const char* kTables = R"(
CREATE TABLE checkpoint (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  content TEXT UNIQUE
);
CREATE TABLE location (
  stamps TEXT PRIMARY KEY,
  checkpoint INTEGER NOT NULL,
  path TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  tensors INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE tensor (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  digest BLOB NOT NULL,
  dtype TEXT NOT NULL,
  shape TEXT NOT NULL,
  UNIQUE (digest, dtype, shape)
);
CREATE TABLE part (
  checkpoint INTEGER NOT NULL,
  name TEXT NOT NULL,
  tensor INTEGER NOT NULL,
  PRIMARY KEY (checkpoint, name)
) WITHOUT ROWID;
CREATE TABLE base_columns (
  tensor INTEGER NOT NULL,
  block_bytes INTEGER NOT NULL,
  seal INTEGER NOT NULL,
  energy BLOB,
  digest BLOB,
  PRIMARY KEY (tensor, block_bytes)
);
CREATE TABLE delta_columns (
  expert INTEGER NOT NULL,
  base INTEGER NOT NULL,
  block_bytes INTEGER NOT NULL,
  seal INTEGER NOT NULL,
  l1 REAL,
  energy BLOB,
  max_key BLOB,
  nonzeros BLOB,
  octaves BLOB,
  sketch_scale BLOB,
  sketch BLOB,
  digest BLOB,
  histogram BLOB,
  PRIMARY KEY (expert, base, block_bytes)
);
CREATE TABLE threshold (
  expert INTEGER NOT NULL,
  base INTEGER NOT NULL,
  kept INTEGER NOT NULL,
  seal INTEGER NOT NULL,
  key INTEGER NOT NULL,
  equal_total INTEGER NOT NULL,
  equal_kept INTEGER NOT NULL,
  cut_index INTEGER NOT NULL,
  l1_whole REAL NOT NULL,
  l1_kept REAL NOT NULL,
  PRIMARY KEY (expert, base, kept)
) WITHOUT ROWID;
CREATE TABLE analysis (
  expert INTEGER NOT NULL,
  base INTEGER NOT NULL,
  block_bytes INTEGER NOT NULL,
  PRIMARY KEY (expert, base, block_bytes)
) WITHOUT ROWID;
)";

// What a file says that it is.
struct Label {
  int64_t application = 0, version = 0, tables = 0;
};

Result<Label> ReadNumbers(const Database& database) {
  Label label;
  label.application = MP_TRY(database.Number("PRAGMA application_id"));
  label.version = MP_TRY(database.Number("PRAGMA user_version"));
  label.tables = MP_TRY(database.Number("SELECT count(*) FROM sqlite_schema"));
  return label;
}

// In one transaction: another process may be making the catalog at this moment.
Result<Label> ReadLabel(const Database& database) {
  MP_TRY(database.Execute("SAVEPOINT label"));
  auto label = ReadNumbers(database);
  MP_TRY(database.Execute("RELEASE label"));
  return label;
}

// True for a catalog, false for a file without anything in it yet. Fails on everything else.
Result<bool> IsCatalog(const Database& database) {
  const auto [application, version, tables] = MP_TRY(ReadLabel(database));
  if (application == 0 && version == 0 && tables == 0) return false;
  if (application != kApplicationId) {
    return Fail(Code::kInvalidInput,
                Format("{}: is an SQLite file of another program, no catalog; name another with --catalog "
                       "or MERGEPIPE_CATALOG",
                       database.path()));
  }
  if (version > kCatalogVersion) {
    return Fail(Code::kInvalidInput, Format("{}: the catalog has format {} but this version of mergepipe "
                                            "knows formats up to {}; update mergepipe, or "
                                            "name another with --catalog or MERGEPIPE_CATALOG",
                                            database.path(), version, kCatalogVersion));
  }
  if (version < 1) return database.Damaged(Format("it names the format {}", version));
  return true;
}

// A file that somebody else is making at this moment can not be switched; the busy handler is not asked then.
Result<void> SwitchToWal(const Database& database) {
  constexpr int kAttempts = 100;
  constexpr auto kPause = std::chrono::milliseconds(20);
  auto done = database.Execute("PRAGMA journal_mode = WAL");
  for (int i = 0; i < kAttempts && !done && done.error().code == Code::kTransient; ++i) {
    std::this_thread::sleep_for(kPause);
    done = database.Execute("PRAGMA journal_mode = WAL");
  }
  return done;
}

Result<void> MakeTables(const Database& database) {
  Transaction transaction = MP_TRY(Transaction::Begin(database));
  if (MP_TRY(IsCatalog(database))) return {};  // another process was faster
  MP_TRY(database.Execute(kTables));
  MP_TRY(database.Execute(Format("PRAGMA application_id = {}", kApplicationId)));
  MP_TRY(database.Execute(Format("PRAGMA user_version = {}", kCatalogVersion)));
  return transaction.Commit();
}

bool IsWritable(const fs::path& path) {
  return ::access(path.c_str(), W_OK) == 0;
}

uint64_t SizeOf(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// Locks need files beside the catalog. Where none can be made nobody writes either, unless one is at it now.
DatabaseMode ReadingMode(const std::string& path) {
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  const bool can_lock = IsWritable(path) && IsWritable(folder);
  return can_lock || SizeOf(path + "-wal") > 0 ? DatabaseMode::kRead : DatabaseMode::kImmutable;
}

Result<void> CheckIsFile(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    return Fail(
        Code::kInvalidInput,
        Format("{}: is no file, so no catalog; name another with --catalog or MERGEPIPE_CATALOG", path));
  return {};
}

}  // namespace

Result<std::unique_ptr<Database>> OpenCatalogForReading(const std::string& path) {
  if (path.empty()) return std::unique_ptr<Database>();
  MP_TRY(CheckIsFile(path));
  if (SizeOf(path) == 0) return std::unique_ptr<Database>();
  auto database = MP_TRY(Database::Open(path, ReadingMode(path)));
  if (!MP_TRY(IsCatalog(*database))) return std::unique_ptr<Database>();
  return database;
}

Result<std::unique_ptr<Database>> OpenCatalogForWriting(const std::string& path) {
  if (path.empty())
    return Fail(Code::kUsage,
                "there is no home folder for the catalog; name one with --catalog or MERGEPIPE_CATALOG");
  MP_TRY(CheckIsFile(path));
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) {
    return Fail(Code::kInvalidInput,
                Format("{}: the catalog's folder can not be made: {}; name another with --catalog or "
                       "MERGEPIPE_CATALOG",
                       folder.string(), error.message()));
  }
  auto database = MP_TRY(Database::Open(path, DatabaseMode::kWrite));
  const bool exists = MP_TRY(IsCatalog(*database));
  if (!exists) MP_TRY(database->Execute(kSettings));
  MP_TRY(SwitchToWal(*database));
  MP_TRY(database->Execute("PRAGMA synchronous = NORMAL"));
  if (!exists) MP_TRY(MakeTables(*database));
  // A file that can only be read opens all the same; better told now than after the work.
  Transaction probe = MP_TRY(Transaction::Begin(*database));
  return database;
}

}  // namespace mergepipe
