#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mergepipe/result.h"

namespace mergepipe {

/// True for what may name a model of the Hugging Face Hub: "name" or "organisation/name".
bool IsHubName(const std::string& text);

/// The folders that hold downloaded models: `first`, then those that the environment names (HF_HUB_CACHE,
/// HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub), each once.
std::vector<std::string> HubCacheFolders(const std::vector<std::string>& first);

/// A model as the Hub knows it.
struct HubModel {
  std::string name;
  std::string revision;  ///< branch, tag, or the first digits of a commit; "": main
  /// The command that downloads it into a cache.
  std::string DownloadCommand() const;
  /// What to do where it is in no cache; "" where the name looks like nothing of the Hub.
  std::string Advice(const std::vector<std::string>& folders) const;
};

/// The folder with the files of a model that was downloaded into one of the caches; nothing where none of
/// them knows the name. Fails with kInvalidInput, naming the command to run, where a cache has other
/// revisions alone or not all of the files.
Result<std::optional<std::string>> FindInHubCache(const HubModel& model,
                                                  const std::vector<std::string>& folders);

/// The Hub's name of the model whose files lie in a folder, where that is one of a cache.
std::optional<std::string> HubNameOf(const std::string& folder);

}  // namespace mergepipe
