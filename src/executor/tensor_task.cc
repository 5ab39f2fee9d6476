#include "executor/tensor_task.h"

#include <bit>

#include "planner/blocks.h"

namespace mergepipe {

TensorTask::TensorTask(const Plan& plan, size_t tensor, const kernels::Kernels& kernels)
    : TensorMerge(plan, tensor, kernels),
      plan_(plan.tensors[tensor]),
      mask_(plan.masks[tensor]),
      block_leaves_(BlockElements(plan, tensor) / plan_.leaf_elements()),
      output_pieces_(plan_.leaf_elements() * OutputBytes(), plan_.elements * OutputBytes()) {
  const ResolvedTensor& resolved = plan.merge->tensors[tensor];
  for (const TensorSource& source : resolved.sources)
    source_bytes_.push_back(resolved.merged ? DTypeBytes(EntryOf(*plan.merge, source).dtype) : 1);
  const uint64_t leaves = (plan_.elements + plan_.leaf_elements() - 1) / plan_.leaf_elements();
  output_ = DigestTree(leaves);
  sources_.assign(resolved.sources.size(), DigestTree(leaves));
  for (const uint64_t bytes : source_bytes_)
    source_pieces_.push_back(
        std::make_unique<LeafPieces>(plan_.leaf_elements() * bytes, plan_.elements * bytes));
  if (plan_.resident) resident.resize(plan_.items);
  if (PaddingMeans::Wanted(resolved))
    padding = std::make_unique<PaddingMeans>(resolved, mask_.reads_all() ? nullptr : &mask_, kernels);
}

void TensorTask::HashSource(size_t source, const ItemData& item) {
  const uint64_t bytes = source_bytes_[source];
  const uint64_t end = item.first + item.count;
  const uint64_t block = item.mask == nullptr ? end : item.mask->block_elements();
  for (uint64_t at = item.first; at < end;) {
    const uint64_t next = std::min(end, (at / block + 1) * block);
    if (item.mask == nullptr || item.mask->FromAt(source, at) == source) {
      const std::byte* data = item.sources[source] + (at - item.first) * bytes;
      source_pieces_[source]->Set(at * bytes, {data, (next - at) * bytes}, sources_[source]);
    }
    at = next;
  }
}

void TensorTask::ShareDigests(size_t source) {
  for (size_t b = 0; b < mask_.blocks() && !mask_.reads_all(); ++b) {
    const size_t from = mask_.From(source, b);
    if (from != source && from != TensorMask::kOmitted)
      sources_[source].Share(sources_[from], b * block_leaves_, block_leaves_);
  }
}

void TensorTask::HashOutput(uint64_t item, std::span<const std::byte> stored) {
  output_pieces_.Set(FirstElement(item) * OutputBytes(), stored, output_);
}

std::string TensorTask::SourceDigest(size_t source) const {
  std::vector<Digest128> blocks = sources_[source].Chunks(block_leaves_);
  return MaskedDigest(blocks, mask_, source);
}

TensorRecord TensorTask::Record() {
  for (size_t s = 0; s < sources_.size(); ++s)
    ShareDigests(s);
  TensorRecord record{.digest = output_.Root()};
  for (const Digest128& chunk : output_.Chunks())
    record.chunks.push_back(Hex(chunk));
  for (size_t s = 0; s < sources_.size(); ++s)
    record.sources.push_back(SourceDigest(s));
  const auto note = [&](size_t input, const Threshold& threshold, const char* of) {
    if (threshold.equal_total == 0) return;  // nothing was cut
    record.thresholds.push_back(
        {input, std::bit_cast<float>(threshold.key), threshold.equal_total, threshold.equal_kept, of});
  };
  for (size_t i = 0; i < statistics().thresholds.size(); ++i)
    note(i, statistics().thresholds[i], "");
  for (size_t i = 0; i < statistics().outliers.size(); ++i)
    note(i, statistics().outliers[i], "outliers");
  if (statistics().joint.threshold) note(0, *statistics().joint.threshold, "score");
  return record;
}

}  // namespace mergepipe
