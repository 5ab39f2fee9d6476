#include "executor/charged_read.h"

#include "base/try.h"

namespace mergepipe {

uint64_t FileOffset(const ResolvedMerge& merge, const TensorSource& source) {
  const Checkpoint& checkpoint = *merge.models[source.model].checkpoint;
  return checkpoint.shards()[source.place.shard].header.data_start + checkpoint.entry(source.place).begin;
}

Result<ReadRange> ReadCharged(const Plan& plan, const TensorSource& source, uint64_t first, uint64_t bytes,
                              std::span<std::byte> buffer, Ledger& ledger, Purpose expert) {
  const Checkpoint& checkpoint = *plan.merge->models[source.model].checkpoint;
  const bool is_base = plan.reference_model[source.model];
  if (is_base) ledger.Charge(checkpoint.account(), Purpose::kBaseData, bytes);
  if (!is_base) MP_TRY(ledger.ReserveExpert(checkpoint.account(), expert, bytes));
  const Shard& shard = checkpoint.shards()[source.place.shard];
  const auto range = MP_TRY(shard.source->Read(FileOffset(*plan.merge, source) + first, bytes, buffer));
  ledger.Charge(checkpoint.account(), Purpose::kAlignment, range.alignment_bytes);
  return range;
}

}  // namespace mergepipe
