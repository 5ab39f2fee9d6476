#pragma once

#include "base/try.h"
#include "methods/task_vectors.h"

namespace mergepipe {

/// DARE (Yu et al. 2023, arXiv:2311.03099): each element of a task vector stays with probability `density`;
/// what stays is rescaled by the L1 norms before and after, unless `rescale` is false.
inline Result<StatisticsRequest> RequestRandomDrop(const TensorFacts& facts, const TensorParams& params) {
  StatisticsRequest request;
  bool drops = false;
  for (size_t i = 0; i < params.inputs.size(); ++i) {
    request.keep.push_back(MP_TRY(KeepRandom(facts, i, params.Get(i, "density"))));
    drops = drops || request.keep.back().kind == KeepRule::Kind::kRandom;
  }
  request.l1 = drops && params.Get("rescale") != 0;
  return request;
}

}  // namespace mergepipe
