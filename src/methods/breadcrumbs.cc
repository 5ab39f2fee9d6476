#include "methods/breadcrumbs.h"

#include <algorithm>

namespace mergepipe {
namespace {

KeepRule Keep(const TensorFacts& facts, double density, double gamma) {
  if (density >= 1) return {.kind = KeepRule::Kind::kAll};
  const auto share = [&](double part) {
    return static_cast<uint64_t>(std::max(0.0, part) * static_cast<double>(facts.elements));
  };
  const uint64_t kept = share(density);
  if (kept == 0) return {.kind = KeepRule::Kind::kNone};
  return {.kind = KeepRule::Kind::kLargest,
          .count = kept,
          .outliers = std::min(share(gamma), facts.elements - kept)};
}

}  // namespace

std::vector<ParamSpec> BreadcrumbsParams() {
  std::vector<ParamSpec> params = TaskVectorParams(/*normalize=*/false, /*rescale=*/false);
  params.push_back({.name = "gamma",
                    .per_model = true,
                    .default_value = 0.01,
                    .doc = "share of the task vector's largest elements that is left out"});
  return params;
}

Result<StatisticsRequest> RequestBreadcrumbs(const TensorFacts& facts, const TensorParams& params) {
  return RequestSparsified(params, [&](size_t i) -> Result<KeepRule> {
    return Keep(facts, params.Get(i, "density"), params.Get(i, "gamma"));
  });
}

}  // namespace mergepipe
