#pragma once

#include "format/json.h"
#include "planner/plan.h"

namespace mergepipe {

// What a plan decided, as JSON: saved plans and manifests hold it, so that it can be executed and explained
// without the knowledge that it was made of. docs/plan.md lists the fields.

/// Statistics of a whole delta that the plan takes as given.
Json ConstantsJson(const TensorStatistics& statistics);

/// The decision as a whole: budget, policy, prediction, certificate.
Json BudgetJson(const Plan& plan);
/// {relative_to_weights, relative_to_update}, null where unknown; and {l2, rounding_l2} or null.
Json DeviationJson(const Deviation& deviation);
Json CertificateJson(const std::optional<Certificate>& certificate);

/// The decision for one tensor: "mask" unless all is read, "constants" where given, "reads" by source with
/// the "elements" and "block_elements" that they are counted in.
Json TensorDecision(const Plan& plan, size_t tensor);

/// The constants of a merge's tensors from their decisions, in the order of merge.tensors. Fails with
/// kInvalidInput.
Result<KnownConstants> ConstantsFrom(const ResolvedMerge& merge, const std::vector<Json>& tensors);

/// Sets masks, outcomes, costs and identities of a drafted plan. Fails with kInvalidInput where the decision
/// does not fit it.
Result<void> RestoreDecision(const Json& budget, const std::vector<Json>& tensors, Plan& plan);

}  // namespace mergepipe
