#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "txn/record.h"
#include "txn/staging.h"

namespace mergepipe {

/// The list of finished tensors in a staging folder, one JSON line each, so that an interrupted merge can go
/// on. A resumed run believes no line without reading the tensor's bytes again and comparing their digest.
class Journal {
 public:
  /// Starts a journal, or reads the one of an interrupted run of the same plan and checks its tensors against
  /// the files. A journal of another plan fails with kUsage.
  static Result<std::unique_ptr<Journal>> Open(Staging& staging, const Plan& plan, Ledger& ledger);

  /// By position in ResolvedMerge::tensors: what is finished already.
  std::vector<std::optional<TensorRecord>> TakeFinished() { return std::move(finished_); }
  size_t entries() const { return entries_; }

  /// Adds a finished tensor. Not safe for concurrent use.
  Result<void> Add(const std::string& tensor, const TensorRecord& record, const Ledger& ledger);
  /// Removes the journal: the output is complete.
  Result<void> Remove();

 private:
  Journal(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  Result<void> Load(Staging& staging, const Plan& plan, Ledger& ledger);
  Result<void> AppendLine(const std::string& line);

  std::string path_;
  Descriptor file_;
  std::vector<std::optional<TensorRecord>> finished_;
  size_t entries_ = 0;
};

}  // namespace mergepipe
