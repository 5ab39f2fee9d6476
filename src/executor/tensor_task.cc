#include "executor/tensor_task.h"

#include <bit>

namespace mergepipe {

TensorTask::TensorTask(const Plan& plan, size_t tensor, const kernels::Kernels& kernels)
    : merge_(*plan.merge),
      tensor_(plan.merge->tensors[tensor]),
      plan_(plan.tensors[tensor]),
      chain_(tensor_.inputs.size()) {
  for (const TensorSource& source : tensor_.sources) {
    const DType dtype = EntryOf(merge_, source).dtype;
    source_bytes_.push_back(tensor_.merged ? DTypeBytes(dtype) : 1);
  }
  const uint64_t leaves = (plan_.elements + plan_.leaf_elements() - 1) / plan_.leaf_elements();
  output_ = DigestTree(leaves);
  sources_.assign(tensor_.sources.size(), DigestTree(leaves));
  if (plan_.resident) resident.resize(plan_.items);
  if (IsMergeable(tensor_.dtype)) compute_ = std::make_unique<ItemCompute>(merge_, tensor_, kernels);
  statistics_.thresholds.resize(tensor_.inputs.size());
  if (!tensor_.merged || tensor_.elements == 0) return;
  if (plan_.rounds > 0)
    collector_ =
        std::make_unique<StatisticsCollector>(tensor_.request, tensor_.inputs.size(), tensor_.elements);
  if (plan_.rounds == 0) Prepare();
}

void TensorTask::HashSource(size_t source, uint64_t item, const std::byte* data) {
  sources_[source].Set(FirstElement(item) / plan_.leaf_elements(),
                       {data, Count(item) * source_bytes_[source]},
                       plan_.leaf_elements() * source_bytes_[source]);
}

void TensorTask::HashOutput(uint64_t item, std::span<const std::byte> stored) {
  output_.Set(FirstElement(item) / plan_.leaf_elements(), stored, plan_.leaf_elements() * OutputBytes());
}

void TensorTask::FinishRound(size_t round) {
  collector_->FinishRound();
  if (round + 1 == plan_.rounds) Prepare();
}

void TensorTask::Prepare() {
  if (collector_ != nullptr) statistics_ = collector_->Statistics();
  constants_ = merge_.method->prepare(tensor_.facts, merge_.params[tensor_.params], statistics_);
  for (const Threshold& threshold : statistics_.thresholds)
    cuts_ = cuts_ || ItemCompute::CutsAmongEquals(threshold);
}

TensorRecord TensorTask::Record() const {
  TensorRecord record{.digest = output_.Root()};
  for (const Digest128& chunk : output_.Chunks())
    record.chunks.push_back(Hex(chunk));
  for (const DigestTree& source : sources_)
    record.sources.push_back(source.Root());
  for (size_t i = 0; i < tensor_.request.keep.size(); ++i) {
    if (tensor_.request.keep[i].kind != KeepRule::Kind::kLargest ||
        statistics_.thresholds[i].equal_total == 0)
      continue;
    const Threshold& threshold = statistics_.thresholds[i];
    record.thresholds.push_back(
        {i, std::bit_cast<float>(threshold.key), threshold.equal_total, threshold.equal_kept});
  }
  return record;
}

}  // namespace mergepipe
