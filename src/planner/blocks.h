#pragma once

#include <span>
#include <string>

#include "planner/plan.h"

namespace mergepipe {

// Blocks of an output tensor are counted in elements of the reference's stored type; copied tensors in bytes.

uint64_t BlockElements(const Plan& plan, size_t tensor);
size_t BlockCount(const Plan& plan, size_t tensor);
/// Expert bytes that one pass over a block of a source fetches.
uint64_t SourceBlockBytes(const Plan& plan, size_t tensor, size_t source, size_t block);

/// Expert bytes that the plan fetches of a source of a tensor, all passes; 0 for base data.
uint64_t ExpertBytes(const Plan& plan, size_t tensor, size_t source);

/// True for sources that a mask may leave out: experts, where the tensor has a reference to stand in.
bool MayOmit(const Plan& plan, size_t tensor, size_t source);

/// Digest of a source as read under a mask: of its blocks' digests, with zeros for those left out.
std::string MaskedDigest(std::span<const Digest128> blocks, const TensorMask& mask, size_t source);

}  // namespace mergepipe
