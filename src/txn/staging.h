#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mergepipe/result.h"
#include "storage/descriptor.h"
#include "storage/ledger.h"
#include "storage/output_file.h"

namespace mergepipe {

/// Checks, before anything is read or written, that `output` can be made: its parent is there and writable,
/// it does not exist yet (or `force` and it is a checkpoint), it is no input, holds none and lies in none,
/// and the disk has room for `bytes`, what an earlier run left in the staging folder counted as free. Fails
/// with kUsage or kNoSpace.
Result<void> CheckTarget(const std::string& output, const std::vector<std::string>& inputs, uint64_t bytes,
                         bool force);

/// The folder in which an output is built, beside its final place; one at a time for each output.
class Staging {
 public:
  /// Creates `.NAME.mergepipe-staging` beside the output and locks it. What an earlier run left there is
  /// removed, or kept when `resume` is true and it holds a journal. Fails with kUsage when another process is
  /// at it.
  static Result<std::unique_ptr<Staging>> Open(const std::string& output, bool resume, Ledger& ledger);
  /// Removes the folder unless it was published or kept.
  ~Staging();

  const std::string& folder() const { return folder_; }
  bool resumed() const { return resumed_; }
  /// Unfinished work of an earlier run was thrown away.
  bool discards() const { return discards_; }

  Result<std::unique_ptr<OutputFile>> CreateFile(const std::string& name, uint64_t size);
  /// Creates a text file in the folder itself.
  Result<std::unique_ptr<TextSink>> CreateText(const std::string& name);
  /// Writes a small file, making folders on the way.
  Result<void> WriteText(const std::string& name, std::string_view text);
  /// Copies a side file (mode 0666 less the umask), charges its bytes to `account`, and returns its digest.
  Result<std::string> CopyFile(const std::string& from, const std::string& name, size_t account);

  /// Makes everything durable and moves it to its place in one step; an existing output is exchanged and then
  /// removed.
  Result<void> Publish(bool force);
  /// Leaves the folder for `--resume`.
  void Keep() { keep_ = true; }

 private:
  Staging(std::string output, Ledger& ledger) : output_(std::move(output)), ledger_(ledger) {}
  Result<void> MakeParents(const std::string& name);

  std::string output_;
  std::string folder_;
  Ledger& ledger_;
  Descriptor lock_;
  std::string first_parent_;  // topmost parent folder that was made for this output; "" where none was
  bool resumed_ = false;
  bool discards_ = false;
  bool keep_ = false;
};

/// The list of finished tensors in a staging folder; see txn/journal.h.
inline constexpr const char* kJournalName = ".journal.jsonl";

/// Name of the staging folder of an output.
std::string StagingFolder(const std::string& output);

}  // namespace mergepipe
