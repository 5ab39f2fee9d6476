#include "format/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "format/checkpoint.h"
#include "format/json.h"
#include "storage/source.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxHubNameLength = 96;
constexpr size_t kLeastCommitDigits = 4;
constexpr uint64_t kMaxRefBytes = 4096;
constexpr uint64_t kMaxIndexBytes = 256u << 20;
constexpr size_t kMostNamed = 3;
constexpr const char* kFolderStart = "models--";

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool IsPartOfHubName(const std::string& part) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !part.empty() && part.front() != '.' && part.front() != '-' && part.back() != '.' &&
         part.back() != '-' && part.find("--") == std::string::npos && part.find("..") == std::string::npos &&
         std::all_of(part.begin(), part.end(), allowed);
}

bool IsHex(const std::string& text) {
  return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// What people write into these variables: "~/models" and "$SCRATCH/hub".
std::string Expanded(std::string path) {
  const char* home = std::getenv("HOME");
  if (home != nullptr && (path == "~" || StartsWith(path, "~/"))) path = home + path.substr(1);
  for (size_t at = path.find('$'); at != std::string::npos; at = path.find('$', at)) {
    const bool braced = at + 1 < path.size() && path[at + 1] == '{';
    const size_t first = at + (braced ? 2 : 1);
    size_t end = first;
    while (end < path.size() &&
           (std::isalnum(static_cast<unsigned char>(path[end])) != 0 || path[end] == '_'))
      ++end;
    const char* value = std::getenv(path.substr(first, end - first).c_str());
    if (braced && end < path.size() && path[end] == '}') ++end;
    if (value == nullptr) {
      at = end;
      continue;
    }
    path.replace(at, end - at, value);
    at += std::string_view(value).size();
  }
  return path;
}

std::string Few(const std::vector<std::string>& names) {
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kMostNamed)));
  const size_t more = names.size() - first.size();
  return Join(first, ", ") + (more > 0 ? Format(" and {} more", more) : "");
}

/// One model of one cache.
class CachedModel {
 public:
  CachedModel(const HubModel& model, fs::path folder) : model_(model), folder_(std::move(folder)) {}

  Result<std::string> Find() const {
    const std::string commit = MP_TRY(Commit());
    const fs::path snapshot = folder_ / "snapshots" / commit;
    const std::vector<std::string> missing = MissingFiles(snapshot);
    if (missing.empty()) return snapshot.string();
    const bool unfinished = HasUnfinishedDownload();
    return Fail(
        Code::kInvalidInput,
        Format("'{}' is not complete in the Hugging Face cache: {} lacks {}{}; download it again: {}",
               model_.name, snapshot.string(), Few(missing),
               unfinished ? ", and a download into it did not finish" : "", model_.DownloadCommand()));
  }

 private:
  // By branch or tag first, as the Hub does.
  Result<std::string> Commit() const {
    const std::string wanted = model_.revision.empty() ? "main" : model_.revision;
    const std::vector<std::string> commits = NamesIn(folder_ / "snapshots");
    const bool leaves = wanted.find("..") != std::string::npos || wanted.front() == '/';
    const auto ref = ReadSmallFile((folder_ / "refs" / (leaves ? "" : wanted)).string(), kMaxRefBytes);
    if (ref) {
      const std::string commit = ref->substr(0, ref->find_last_not_of(" \r\n") + 1);
      if (std::find(commits.begin(), commits.end(), commit) != commits.end()) return commit;
      return Fail(
          Code::kInvalidInput,
          Format("the revision '{}' of '{}' is commit {}, whose files are not in the Hugging Face "
                 "cache {}; download it: {}",
                 wanted, model_.name, commit, folder_.parent_path().string(), model_.DownloadCommand()));
    }
    std::vector<std::string> begun;
    if (wanted.size() >= kLeastCommitDigits && IsHex(wanted)) {
      for (const std::string& commit : commits) {
        if (StartsWith(commit, wanted)) begun.push_back(commit);
      }
    }
    if (begun.size() == 1) return begun.front();
    if (begun.size() > 1)
      return Fail(Code::kInvalidInput, Format("the revision '{}' of '{}' begins several commits: {}; write "
                                              "more of its digits",
                                              wanted, model_.name, Few(begun)));
    return Fail(
        Code::kInvalidInput,
        Format("the revision '{}' of '{}' is not in the Hugging Face cache {}, which has {}; download "
               "it: {}",
               wanted, model_.name, folder_.parent_path().string(), Known(commits),
               model_.DownloadCommand()));
  }

  std::string Known(const std::vector<std::string>& commits) const {
    std::vector<std::string> known;
    std::error_code error;
    const fs::path refs = folder_ / "refs";
    for (fs::recursive_directory_iterator it(refs, error), end; !error && it != end; it.increment(error)) {
      if (it->is_regular_file()) known.push_back(it->path().lexically_relative(refs).string());
    }
    std::sort(known.begin(), known.end());
    known.insert(known.end(), commits.begin(), commits.end());
    return known.empty() ? "none" : Few(known);
  }

  // What an index names, or the numbers in the names of shards, says what a download had to bring.
  std::vector<std::string> MissingFiles(const fs::path& snapshot) const {
    std::set<std::string> wanted;
    const std::vector<std::string> names = NamesIn(snapshot);
    for (const std::string& name : names)
      wanted.insert(name);  // a link whose target is gone
    AddIndexed(snapshot, wanted);
    AddNumbered(names, wanted);
    const bool has_weights = std::any_of(wanted.begin(), wanted.end(), [](const std::string& name) {
      return EndsWith(name, ".safetensors") || EndsWith(name, ".bin") || EndsWith(name, ".gguf");
    });
    if (!has_weights) wanted.insert("*.safetensors");
    if (HasUnfinishedDownload()) wanted.insert("config.json");
    std::vector<std::string> missing;
    for (const std::string& name : wanted) {
      if (!Exists(snapshot / name)) missing.push_back(name);
    }
    return missing;
  }

  // A damaged index is told where the model is opened.
  static void AddIndexed(const fs::path& snapshot, std::set<std::string>& wanted) {
    const auto text = ReadSmallFile((snapshot / kIndexName).string(), kMaxIndexBytes);
    if (!text) return;
    const auto index = ParseJson(*text, kIndexName);
    if (!index || !index->is_object() || !index->contains("weight_map") ||
        !(*index)["weight_map"].is_object())
      return;
    for (const auto& [tensor, file] : (*index)["weight_map"].items()) {
      if (file.is_string() && file.get<std::string>().find('/') == std::string::npos) wanted.insert(file);
    }
  }

  // model-00002-of-00005.safetensors
  static void AddNumbered(const std::vector<std::string>& names, std::set<std::string>& wanted) {
    for (const std::string& name : names) {
      if (!StartsWith(name, "model-") || !EndsWith(name, ".safetensors") || name.size() != 32) continue;
      const auto count = ParseUnsigned(name.substr(15, 5));
      if (name.substr(11, 4) != "-of-" || !count) continue;
      for (uint64_t i = 1; i <= *count; ++i)
        wanted.insert(Format("model-{:05}-of-{:05}.safetensors", i, *count));
      return;
    }
  }

  bool HasUnfinishedDownload() const {
    const std::vector<std::string> blobs = NamesIn(folder_ / "blobs");
    return std::any_of(blobs.begin(), blobs.end(),
                       [](const std::string& name) { return EndsWith(name, ".incomplete"); });
  }

  const HubModel& model_;
  fs::path folder_;
};

}  // namespace

bool IsHubName(const std::string& text) {
  if (text.empty() || text.size() > kMaxHubNameLength) return false;
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return IsPartOfHubName(text);
  return IsPartOfHubName(text.substr(0, slash)) && IsPartOfHubName(text.substr(slash + 1));
}

std::vector<std::string> HubCacheFolders(const std::vector<std::string>& first) {
  std::vector<std::string> folders;
  const auto add = [&](const std::string& path) {
    if (std::find(folders.begin(), folders.end(), path) == folders.end()) folders.push_back(path);
  };
  for (const std::string& folder : first)
    add(Expanded(folder));
  const std::vector<std::pair<const char*, const char*>> usual = {{"HF_HUB_CACHE", ""},
                                                                  {"HUGGINGFACE_HUB_CACHE", ""},
                                                                  {"HF_HOME", "/hub"},
                                                                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                                                                  {"HOME", "/.cache/huggingface/hub"}};
  for (const auto& [variable, rest] : usual) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') add(Expanded(value) + rest);
  }
  return folders;
}

std::string HubModel::DownloadCommand() const {
  return Format("hf download {}{}", name, revision.empty() ? "" : " --revision " + revision);
}

std::string HubModel::Advice(const std::vector<std::string>& folders) const {
  if (name.find('/') == std::string::npos || !IsHubName(name)) return "";
  return Format(
      ", and not in the Hugging Face cache ({}); if it is a model of the Hub, download it first: {}",
      Join(folders, ", "), DownloadCommand());
}

Result<std::optional<std::string>> FindInHubCache(const HubModel& model,
                                                  const std::vector<std::string>& folders) {
  if (!IsHubName(model.name)) return std::optional<std::string>();
  std::string folder_name = kFolderStart + model.name;
  const size_t slash = folder_name.find('/');
  if (slash != std::string::npos) folder_name.replace(slash, 1, "--");
  std::optional<Error> first_fault;
  for (const std::string& folder : folders) {
    const fs::path cached = fs::path(folder) / folder_name;
    if (!Exists(cached)) continue;
    auto found = CachedModel(model, cached).Find();
    if (found) return std::optional(std::move(*found));
    if (!first_fault) first_fault = found.error();
  }
  if (first_fault) return Fail(std::move(*first_fault));
  return std::optional<std::string>();
}

std::optional<std::string> HubNameOf(const std::string& folder) {
  const fs::path snapshots = fs::path(folder).parent_path();
  std::string name = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !StartsWith(name, kFolderStart)) return std::nullopt;
  name.erase(0, std::string_view(kFolderStart).size());
  const size_t dashes = name.find("--");
  if (dashes != std::string::npos) name.replace(dashes, 2, "/");
  return name;
}

}  // namespace mergepipe
