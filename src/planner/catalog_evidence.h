#pragma once

#include "catalog/catalog.h"
#include "planner/evidence.h"

namespace mergepipe {

/// What the catalog knows of the models of a merge. Both must outlive it. Fails with what the catalog says.
Result<std::unique_ptr<Evidence>> EvidenceFromCatalog(const ResolvedMerge& merge, Catalog& catalog,
                                                      uint64_t block_bytes);

}  // namespace mergepipe
