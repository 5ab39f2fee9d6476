#pragma once

#include <optional>
#include <string>
#include <vector>

#include "executor/progress.h"
#include "executor/scan.h"
#include "format/checkpoint.h"
#include "kernels/kernels.h"
#include "mergepipe/result.h"

namespace mergepipe {

/// How two stored tensors of one name differ. Norms are over all elements, in float64.
struct TensorDifference {
  std::string name;
  uint64_t elements = 0;
  uint64_t differing_elements = 0;
  double max_abs = 0;          ///< of a − b; 0 for types that are compared by their bytes
  double difference_norm = 0;  ///< ‖a − b‖₂
  double weight_norm = 0;      ///< ‖a‖₂
  double update_norm = 0;      ///< ‖a − base‖₂, where a base is given
  bool comparable = true;      ///< shapes and kinds of types agree, so that the numbers mean something
  bool has_base = false;       ///< update_norm is known
  std::string note;            ///< why values were not compared, else ""
};

struct DiffFindings {
  std::vector<TensorDifference> tensors;  ///< in order of name
  std::vector<std::string> only_in_a, only_in_b, missing_in_base;
};

/// Compares b with a (the reference), tensor by tensor; `base` may be null. Buffers take limits.memory_bytes
/// at most. Fails with kUsage when that is too little, with kInterrupted on a signal, with what storage says
/// when reading fails.
Result<DiffFindings> ScanDifference(const Checkpoint& a, const Checkpoint& b, const Checkpoint* base,
                                    const kernels::Kernels& kernels, const ScanLimits& limits,
                                    ProgressCounters& progress);

}  // namespace mergepipe
