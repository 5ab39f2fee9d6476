#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/json.h"
#include "planner/plan.h"

namespace mergepipe {

/// What becomes of bytes of experts: available = read + lossless + shared + left out; under a budget second
/// passes are included.
struct ReadShares {
  uint64_t available_bytes = 0;
  uint64_t read_bytes = 0;
  uint64_t lossless_bytes = 0;  ///< not read, and nothing is lost
  uint64_t shared_bytes = 0;    ///< not read, as another expert's block has the same bytes
  uint64_t left_out_bytes = 0;
  double error = 0;   ///< λ² ‖Δ‖² of what is left out, each expert on its own
  double energy = 0;  ///< the same of all
  void Add(const ReadShares& other);
};

/// Blocks of one source of one tensor; all = read + lossless + shared + left out.
struct BlockCounts {
  uint64_t all = 0, read = 0, lossless = 0, left_out = 0;
  std::map<size_t, uint64_t> shared;  ///< by the source that holds them
};

struct ExplainedSource {
  size_t model = 0;
  ReadShares shares;
  BlockCounts blocks;
};

/// Magnitude below which elements of an input do not survive.
struct ExplainedThreshold {
  size_t source = 0;
  float magnitude = 0;
  uint64_t equals = 0;  ///< elements with just this magnitude
  uint64_t equals_kept = 0;
  bool of_whole_delta = false;  ///< else of the delta as masked
};

struct ExplainedTensor {
  std::string name;
  bool merged = true;
  uint64_t elements = 0;  ///< bytes where copied
  uint64_t block_elements = 0;
  bool gathered = false;                 ///< rows are laid out anew: equal blocks may take unequal bytes
  std::vector<ExplainedSource> sources;  ///< the reference first
  std::vector<ExplainedThreshold> thresholds;
  ReadShares shares;  ///< of all sources
};

struct ExplainedModel {
  std::string name;
  bool expert = true;
};

/// What a saved plan or a manifest says about its reads.
struct Explanation {
  bool saved_plan = true;  ///< else a manifest
  std::string method, plan_digest, version;
  uint64_t block_bytes = 0;
  BudgetOutcome budget;  ///< without its sources
  std::vector<ExplainedModel> models;
  std::vector<ExplainedTensor> tensors;  ///< by name
  ReadShares shares;                     ///< of all tensors
};

/// The explanation in the JSON of a saved plan, or of a manifest. Nobody vouches for either: every field that
/// is used is checked. Fails with kInvalidInput.
Result<Explanation> ExplanationOfPlan(const Json& plan);
Result<Explanation> ExplanationOfManifest(const Json& manifest);

}  // namespace mergepipe
