#include "planner/fetched.h"

namespace mergepipe {

FetchedBytes BytesFetched(const Plan& plan, size_t tensor, size_t source, uint64_t first, uint64_t count) {
  FetchedBytes fetched;
  ForFetched(*plan.merge, plan.merge->tensors[tensor], source, first, count,
             [&](size_t model, uint64_t, uint64_t bytes) {
               (plan.reference_model[model] ? fetched.base : fetched.expert) += bytes;
             });
  return fetched;
}

FetchedBytes BytesFetched(const Plan& plan, size_t tensor, size_t source) {
  return BytesFetched(plan, tensor, source, 0, plan.tensors[tensor].elements);
}

}  // namespace mergepipe
