#include "recipe/model_shelf.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "recipe/other_names.h"

namespace mergepipe {
namespace fs = std::filesystem;

namespace {

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

// A path that does not exist may be a neighbour's, mistyped.
std::string ModelShelf::Neighbour(const std::string& path) const {
  for (const fs::path& root : {fs::path(), fs::path(recipe_folder_)}) {
    const fs::path parent = (root / path).parent_path();
    std::vector<std::string> neighbours;
    std::error_code error;
    for (fs::directory_iterator it(parent.empty() ? "." : parent, error), end; !error && it != end;
         it.increment(error))
      neighbours.push_back((fs::path(path).parent_path() / it->path().filename()).string());
    std::sort(neighbours.begin(), neighbours.end());
    std::string meant = DidYouMean(path, neighbours);
    if (!meant.empty()) return meant;
  }
  return "";
}

std::string ModelShelf::Advice(const ModelRef& ref) const {
  const std::string meant = Neighbour(ref.path);
  return meant.empty() ? HubModel{ref.path, ref.revision}.Advice(hub_caches_) : meant;
}

// A folder whose name holds '@' or '+' is found by its whole text.
bool ModelShelf::IsWholePath(const ModelRef& ref) const {
  return paths_.count(ref.Text()) > 0 || Exists(ref.Text()) || Exists(fs::path(recipe_folder_) / ref.Text());
}

// A path is looked up in the current folder first, then beside the recipe, then among what was downloaded.
Result<std::optional<std::string>> ModelShelf::Locate(const ModelRef& ref) const {
  const auto stage = stages_.find(ref.path);
  if (stage != stages_.end()) return std::optional(stage->second.path);
  const auto known = paths_.find(ref.Text());
  if (known != paths_.end()) return Exists(known->second) ? std::optional(known->second) : std::nullopt;
  for (const std::string& text : {ref.Text(), ref.path}) {
    for (const fs::path& root : {fs::path(), fs::path(recipe_folder_)}) {
      if (Exists(root / text)) return std::optional((root / text).string());
    }
  }
  return FindInHubCache({ref.path, ref.revision}, hub_caches_);
}

void ModelShelf::Fault(Code code, std::string text) {
  if (faults_.empty()) code_ = code;
  if (code != Code::kUnsupported) code_ = code;
  faults_.push_back(std::move(text));
}

void ModelShelf::NoteSpelling(const ModelRef& ref, const std::string& absolute, const std::string& where) {
  if (!opened_paths_.emplace(ref.Text(), absolute).second) return;
  const bool is_whole_text = EndsWith(absolute, ref.Text());
  if (!ref.revision.empty() && !is_whole_text && !HubNameOf(absolute))
    warnings_.push_back(Format("{}: '{}' is a folder here; its revision '{}' means nothing and is ignored",
                               where, ref.path, ref.revision));
}

// The first model's names count, the base's where there is one. Files alone are taken as they are.
void ModelShelf::AdoptNames(const Checkpoint& first, Checkpoint& checkpoint, const std::string& where) {
  if (first.is_single_file() || checkpoint.is_single_file()) return;
  const auto names = NamesIn(first, checkpoint);
  if (names.empty()) return;
  const auto& [stored, name] = *names.begin();
  warnings_.push_back(
      Format("{}: '{}' names {} tensors otherwise than '{}'; they are taken as the same, '{}' as '{}'", where,
             checkpoint.name(), names.size(), first.name(), stored, name));
  checkpoint.Rename(names);
}

// Merging goes by tensor names; what is left for the class name to do is to stand in the output's config.
void ModelShelf::NoteArchitecture(const ModelRef& ref, ResolvedModel& model) {
  if (!ref.override_architecture.empty()) model.architecture = ref.override_architecture;
}

Result<std::unique_ptr<Checkpoint>> ModelShelf::OpenAt(const std::string& path, const ModelRef& ref) {
  const auto stage = stages_.find(ref.path);
  if (stage != stages_.end() && stage->second.planned != nullptr)
    return Checkpoint::OpenPlanned(stage->second.planned, ref.Text(), ledger_);
  return Checkpoint::Open(path, ref.Text(), ledger_);
}

std::optional<size_t> ModelShelf::Open(const ModelRef& ref, const std::string& where) {
  const auto stage = stages_.find(ref.path);
  if (stage != stages_.end() && stage->second.has_fault) {
    if (by_path_.try_emplace(stage->second.path, std::nullopt).second)
      Fault(Code::kUsage, Format("{}: '{}' has faults itself, so what is made of it could not be checked",
                                 where, ref.path));
    return std::nullopt;
  }
  if (!ref.lora.empty() && !IsWholePath(ref)) {
    if (by_path_.try_emplace(ref.Text(), std::nullopt).second)
      Fault(Code::kUnsupported, Format("{}: the adapter '{}' of model '{}': adapters are not supported yet; "
                                       "merge it into its base first",
                                       where, ref.lora, ref.path));
    return std::nullopt;
  }
  const auto found = Locate(ref);
  if (!found || !*found) {
    if (by_path_.try_emplace(ref.Text(), std::nullopt).second)
      Fault(Code::kInvalidInput,
            found ? Format("{}: the model '{}' is no file or folder here{}", where, ref.Text(), Advice(ref))
                  : Format("{}: {}", where, found.error().message));
    return std::nullopt;
  }
  const std::string& located = **found;
  std::error_code error;
  const fs::path canonical = fs::canonical(located, error);
  const std::string key = error ? located : canonical.string();
  const std::string absolute = fs::absolute(located, error).lexically_normal().string();
  NoteSpelling(ref, absolute, where);
  const auto known = by_path_.find(key);
  if (known != by_path_.end()) {
    if (known->second) NoteArchitecture(ref, models_[*known->second]);
    return known->second;
  }
  by_path_[key] = std::nullopt;
  auto checkpoint = OpenAt(located, ref);
  if (!checkpoint) {
    const Error& why = checkpoint.error();
    if (why.faults.empty()) Fault(why.code, why.message);
    for (const std::string& fault : why.faults)
      Fault(why.code, fault);
    return std::nullopt;
  }
  if (!models_.empty()) AdoptNames(*models_[0].checkpoint, **checkpoint, where);
  models_.push_back(
      {ref.Text(), fs::absolute(located, error).lexically_normal().string(), std::move(*checkpoint), ""});
  by_path_[key] = models_.size() - 1;
  NoteArchitecture(ref, models_.back());
  return models_.size() - 1;
}

}  // namespace mergepipe
