#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "mergepipe/result.h"

struct sqlite3;  // SQLite's; its header stays in sqlite.cc
struct sqlite3_stmt;

namespace mergepipe {

/// What a connection may do.
enum class DatabaseMode {
  kWrite,      ///< reads and writes; creates the file
  kRead,       ///< reads; the file exists, and its lock files can be made beside it
  kImmutable,  ///< reads a file that nobody can change, without locks
};

/// One prepared statement. Columns count from 0, parameters from 1; both in the order of the text.
class Statement {
 public:
  /// Ready to be bound and run again.
  Statement& Reset();
  Statement& Bind(int64_t value);
  Statement& Bind(double value);
  Statement& Bind(std::string_view text);
  Statement& Bind(std::span<const std::byte> blob);
  Statement& BindNull();

  /// Moves to the next row; false after the last one. Fails like Database::Execute.
  Result<bool> Step();
  /// Runs to the end.
  Result<void> Run();

  bool IsNull(int column) const;
  int64_t Integer(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;
  /// Valid until the next Step.
  std::span<const std::byte> Blob(int column) const;

 private:
  friend class Database;
  Statement(sqlite3_stmt* statement, const class Database* database)
      : statement_(statement, &Finalize), database_(database) {}
  static void Finalize(sqlite3_stmt* statement);
  void Check(int code);

  std::unique_ptr<sqlite3_stmt, void (*)(sqlite3_stmt*)> statement_;
  const class Database* database_;
  int bound_ = 0;
  int failed_ = 0;  // the first error of a Bind
};

/// One connection to an SQLite file. Not safe for concurrent use.
class Database {
 public:
  /// Fails with kInvalidInput when the file is damaged, no database, or can not be used, with kTransient when
  /// it is locked, with kDiskFull and kIo.
  static Result<std::unique_ptr<Database>> Open(const std::string& path, DatabaseMode mode);

  Result<Statement> Prepare(const std::string& sql) const;
  /// Runs statements that yield no rows. Fails with kInvalidInput, kTransient, kDiskFull or kIo as Open does.
  Result<void> Execute(const std::string& sql) const;
  /// The first column of the first row of a query.
  Result<int64_t> Number(const std::string& sql) const;

  const std::string& path() const { return path_; }
  int64_t LastId() const;
  int64_t ChangedRows() const;

  /// The error of an SQLite code, in the words of this program.
  Failure Refusal(int code) const;
  /// "the catalog is damaged (what); …"
  Failure Damaged(const std::string& what) const;

 private:
  Database(sqlite3* handle, std::string path) : handle_(handle, &Close), path_(std::move(path)) {}
  static void Close(sqlite3* handle);

  std::unique_ptr<sqlite3, void (*)(sqlite3*)> handle_;
  std::string path_;
};

/// A transaction that is rolled back unless Commit succeeds.
class Transaction {
 public:
  /// Takes the write lock at once, so that no later statement fails for want of it.
  static Result<Transaction> Begin(const Database& database);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Result<void> Commit();

 private:
  explicit Transaction(const Database& database) : database_(&database) {}
  const Database* database_;
};

}  // namespace mergepipe
