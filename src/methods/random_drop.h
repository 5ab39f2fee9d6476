#pragma once

#include "methods/task_vectors.h"

namespace mergepipe {

/// DARE (Yu et al. 2023, arXiv:2311.03099): each element of a task vector stays with probability `density`;
/// what stays is rescaled by the L1 norms before and after, unless `rescale` is false.
inline Result<StatisticsRequest> RequestRandomDrop(const TensorFacts& facts, const TensorParams& params) {
  return RequestDropped(params, [&](size_t i) { return KeepRandom(facts, i, params.Get(i, "density")); });
}

}  // namespace mergepipe
