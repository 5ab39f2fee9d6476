#include "catalog/sqlite.h"

#include <sqlite3.h>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace {

constexpr int kBusyMilliseconds = 5000;

// A path as SQLite's URI: what has a meaning there is escaped.
std::string UriOf(const std::string& path, const char* query) {
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '?' || c == '#' || c == '%') {
      uri += Format("%{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      uri += c;
    }
  }
  return uri + query;
}

int FlagsOf(DatabaseMode mode) {
  if (mode == DatabaseMode::kWrite) return SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  return mode == DatabaseMode::kRead ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
}

}  // namespace

Statement& Statement::Reset() {
  sqlite3_reset(statement_.get());  // repeats the error that Step told
  sqlite3_clear_bindings(statement_.get());
  bound_ = 0;
  failed_ = SQLITE_OK;
  return *this;
}

Statement& Statement::Bind(int64_t value) {
  Check(sqlite3_bind_int64(statement_.get(), ++bound_, value));
  return *this;
}

Statement& Statement::Bind(double value) {
  Check(sqlite3_bind_double(statement_.get(), ++bound_, value));
  return *this;
}

Statement& Statement::Bind(std::string_view text) {
  Check(sqlite3_bind_text64(statement_.get(), ++bound_, text.data(), text.size(), SQLITE_TRANSIENT,
                            SQLITE_UTF8));
  return *this;
}

Statement& Statement::Bind(std::span<const std::byte> blob) {
  const void* data = blob.empty() ? static_cast<const void*>("") : blob.data();  // null would be NULL
  Check(sqlite3_bind_blob64(statement_.get(), ++bound_, data, blob.size(), SQLITE_TRANSIENT));
  return *this;
}

Statement& Statement::BindNull() {
  Check(sqlite3_bind_null(statement_.get(), ++bound_));
  return *this;
}

void Statement::Check(int code) {
  if (failed_ == SQLITE_OK) failed_ = code;
}

void Statement::Finalize(sqlite3_stmt* statement) {
  sqlite3_finalize(statement);
}

Result<bool> Statement::Step() {
  if (failed_ != SQLITE_OK) return database_->Refusal(failed_);
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_->Refusal(code);
}

Result<void> Statement::Run() {
  while (MP_TRY(Step())) {
  }
  return {};
}

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

int64_t Statement::Integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

double Statement::Real(int column) const {
  return sqlite3_column_double(statement_.get(), column);
}

std::string Statement::Text(int column) const {
  const auto blob = Blob(column);
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

std::span<const std::byte> Statement::Blob(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  return {data, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

Result<std::unique_ptr<Database>> Database::Open(const std::string& path, DatabaseMode mode) {
  sqlite3* handle = nullptr;
  const std::string uri = UriOf(path, mode == DatabaseMode::kImmutable ? "?immutable=1" : "");
  const int code =
      sqlite3_open_v2(uri.c_str(), &handle, FlagsOf(mode) | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<Database> database(new Database(handle, path));
  if (handle == nullptr)
    return Fail(Code::kTransient, Format("{}: memory ran out while the catalog was opened", path));
  if (code != SQLITE_OK) return database->Refusal(code);
  sqlite3_busy_timeout(handle, kBusyMilliseconds);
  return database;
}

void Database::Close(sqlite3* handle) {
  sqlite3_close(handle);
}

Result<Statement> Database::Prepare(const std::string& sql) const {
  sqlite3_stmt* statement = nullptr;
  const int code =
      sqlite3_prepare_v2(handle_.get(), sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  if (code != SQLITE_OK) return Refusal(code);
  return Statement(statement, this);
}

Result<void> Database::Execute(const std::string& sql) const {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return Refusal(code);
  return {};
}

Result<int64_t> Database::Number(const std::string& sql) const {
  Statement statement = MP_TRY(Prepare(sql));
  if (!MP_TRY(statement.Step())) return Damaged("an answer is missing");
  return statement.Integer(0);
}

int64_t Database::LastId() const {
  return sqlite3_last_insert_rowid(handle_.get());
}

int64_t Database::ChangedRows() const {
  return sqlite3_changes64(handle_.get());
}

Failure Database::Damaged(const std::string& what) const {
  return Fail(
      Code::kInvalidInput,
      Format(
          "{}: the catalog is damaged ({}); remove it with rm '{}'* and analyse again: nothing else is lost",
          path_, what, path_));
}

// SQLITE_ERROR is what a missing table or column gives: the file was made by something else.
Failure Database::Refusal(int code) const {
  const std::string what = sqlite3_errmsg(handle_.get());
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Fail(Code::kTransient, Format("{}: the catalog is locked by another process; try again", path_));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_ERROR:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
      return Damaged(what);
    case SQLITE_FULL:
      return Fail(Code::kDiskFull, Format("{}: the disk is full", path_));
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return Fail(
          Code::kInvalidInput,
          Format("{}: the catalog can not be {} ({}); name another with --catalog or MERGEPIPE_CATALOG",
                 path_, (code & 0xff) == SQLITE_CANTOPEN ? "opened" : "written", what));
    case SQLITE_NOMEM:
      return Fail(Code::kTransient, Format("{}: memory ran out", path_));
    default:
      return Fail(Code::kIo, Format("{}: the catalog failed: {}", path_, what));
  }
}

Result<Transaction> Transaction::Begin(const Database& database) {
  MP_TRY(database.Execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) static_cast<void>(database_->Execute("ROLLBACK"));
}

Result<void> Transaction::Commit() {
  MP_TRY(database_->Execute("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace mergepipe
