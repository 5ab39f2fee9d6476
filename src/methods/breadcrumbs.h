#pragma once

#include "methods/task_vectors.h"

namespace mergepipe {

/// Model Breadcrumbs (Davari, Belilovsky 2023, arXiv:2312.06795): of each task vector the largest gamma·n
/// elements are left out as outliers and the next density·n are kept. Where gamma leaves too few for that,
/// fewer outliers go.
std::vector<ParamSpec> BreadcrumbsParams();
Result<StatisticsRequest> RequestBreadcrumbs(const TensorFacts& facts, const TensorParams& params);

}  // namespace mergepipe
