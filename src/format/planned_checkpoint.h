#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/json.h"

namespace mergepipe {

/// A file beside the weights: its text, or the place where its bytes lie now.
struct SideFileOrigin {
  std::optional<std::string> text;
  std::string path;
};

/// One weight file that does not exist yet.
struct PlannedShard {
  std::string file_name;
  std::string prefix;  ///< the file's first bytes, its header included
  uint64_t file_size = 0;
};

/// All that loaders and merges can know of a checkpoint before its tensors are computed.
struct PlannedCheckpoint {
  std::string folder;  ///< where it will be
  std::vector<PlannedShard> shards;
  std::optional<Json> index;
  std::map<std::string, SideFileOrigin> side_files;
};

}  // namespace mergepipe
