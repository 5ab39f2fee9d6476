#pragma once

#include <map>
#include <string>
#include <vector>

#include "format/hub_cache.h"
#include "recipe/resolve.h"

namespace mergepipe {

/// The models of one merge: each folder opened once, however often and in whatever spelling the recipe names
/// it.
class ModelShelf {
 public:
  ModelShelf(std::string recipe_folder, const ResolveOptions& options, Ledger& ledger)
      : recipe_folder_(std::move(recipe_folder)),
        paths_(options.paths),
        stages_(options.stages),
        hub_caches_(HubCacheFolders(options.hub_caches)),
        ledger_(ledger) {}

  /// Returns the model's number, opening it at first use; nothing when it can not be opened, with the reason
  /// in faults().
  std::optional<size_t> Open(const ModelRef& ref, const std::string& where);

  std::vector<ResolvedModel>& models() { return models_; }
  /// Absolute paths by every spelling that was opened.
  const std::map<std::string, std::string>& paths() const { return opened_paths_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& faults() const { return faults_; }
  /// The code for faults(): kUnsupported when nothing else is wrong.
  Code code() const { return code_; }

 private:
  bool IsWholePath(const ModelRef& ref) const;
  Result<std::optional<std::string>> Locate(const ModelRef& ref) const;
  Result<std::unique_ptr<Checkpoint>> OpenAt(const std::string& path, const ModelRef& ref);
  std::string Advice(const ModelRef& ref) const;
  std::string Neighbour(const std::string& path) const;
  void AdoptNames(const Checkpoint& first, Checkpoint& checkpoint, const std::string& where);
  static void NoteArchitecture(const ModelRef& ref, ResolvedModel& model);
  void NoteSpelling(const ModelRef& ref, const std::string& absolute, const std::string& where);
  void Fault(Code code, std::string text);

  std::string recipe_folder_;
  const std::map<std::string, std::string>& paths_;
  const std::map<std::string, StageModel>& stages_;
  std::vector<std::string> hub_caches_;
  Ledger& ledger_;
  std::vector<ResolvedModel> models_;
  std::map<std::string, std::optional<size_t>> by_path_;  // canonical path
  std::map<std::string, std::string> opened_paths_;       // by the recipe's text
  std::vector<std::string> warnings_;
  std::vector<std::string> faults_;
  Code code_ = Code::kInvalidInput;
};

}  // namespace mergepipe
