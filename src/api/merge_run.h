#pragma once

#include <map>
#include <string>
#include <vector>

#include "api/planning.h"
#include "format/json.h"
#include "txn/record.h"

namespace mergepipe {

/// What the manifest of an earlier run demands of this one.
struct Expectation {
  std::map<std::string, TensorRecord> records;  ///< by output tensor
  std::map<std::string, std::string> files;     ///< digests of those beside the weights
  std::string root_digest;
};

/// What a merge that was published tells.
struct MergeOutcome {
  Json json;
  std::string text;
  std::vector<std::string> warnings;
};

/// Computes a planned merge and publishes it to request.output. `expected` may be null. `stage_key` is what
/// the manifest keeps so that a later run can use this output again (api/stage_reuse.h); empty where nobody
/// will.
Result<MergeOutcome> ExecuteMerge(const MergeRequest& request, Planned planned, const Expectation* expected,
                                  const std::string& stage_key);

}  // namespace mergepipe
