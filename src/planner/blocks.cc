#include "planner/blocks.h"

#include <algorithm>
#include <vector>

#include "planner/fetched.h"

namespace mergepipe {

uint64_t BlockElements(const Plan& plan, size_t tensor) {
  return plan.options.block_bytes / plan.tensors[tensor].element_bytes;
}

size_t BlockCount(const Plan& plan, size_t tensor) {
  const uint64_t block = BlockElements(plan, tensor);
  return static_cast<size_t>((plan.tensors[tensor].elements + block - 1) / block);
}

uint64_t SourceBlockBytes(const Plan& plan, size_t tensor, size_t source, size_t block) {
  const uint64_t elements = BlockElements(plan, tensor);
  const uint64_t first = block * elements;
  return BytesFetched(plan, tensor, source, first, std::min(elements, plan.tensors[tensor].elements - first))
      .expert;
}

uint64_t ExpertBytes(const Plan& plan, size_t tensor, size_t source) {
  const TensorMask& mask = plan.masks[tensor];
  uint64_t bytes = mask.reads_all() ? BytesFetched(plan, tensor, source).expert : 0;
  for (size_t b = 0; b < mask.blocks(); ++b)
    bytes += mask.Reads(source, b) ? SourceBlockBytes(plan, tensor, source, b) : 0;
  return bytes * plan.tensors[tensor].passes();
}

bool MayOmit(const Plan& plan, size_t tensor, size_t source) {
  return source != 0 && !plan.reference_model[plan.merge->tensors[tensor].sources[source].model];
}

std::string MaskedDigest(std::span<const Digest128> blocks, const TensorMask& mask, size_t source) {
  std::vector<Digest128> read(blocks.begin(), blocks.end());
  for (size_t b = 0; b < read.size(); ++b) {
    if (mask.From(source, b) == TensorMask::kOmitted) read[b] = Digest128{};
  }
  return Hex(DigestOf(std::span<const Digest128>(read)));
}

}  // namespace mergepipe
