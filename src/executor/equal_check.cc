#include "executor/equal_check.h"

#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "executor/buffers.h"

namespace mergepipe {
namespace {

constexpr uint64_t kPieceBytes = 1u << 20;

Result<bool> AreEqual(const Plan& plan, const EqualPair& pair, std::span<std::byte> buffers, Ledger& ledger) {
  const Checkpoint& checkpoint = *plan.merge->models[pair.first.model].checkpoint;
  const TensorEntry& a = checkpoint.entry(pair.first.place);
  const TensorEntry& b = checkpoint.entry(pair.second.place);
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const Shard& shard_a = checkpoint.shards()[pair.first.place.shard];
  const Shard& shard_b = checkpoint.shards()[pair.second.place.shard];
  const Purpose purpose = plan.reference_model[pair.first.model] ? Purpose::kBaseData : Purpose::kExpertData;
  for (uint64_t at = 0; at < a.bytes(); at += kPieceBytes) {
    const uint64_t size = std::min(kPieceBytes, a.bytes() - at);
    const auto half = buffers.size() / 2;
    if (purpose == Purpose::kBaseData) ledger.Charge(checkpoint.account(), purpose, 2 * size);
    if (purpose == Purpose::kExpertData)
      MP_TRY(ledger.ReserveExpert(checkpoint.account(), purpose, 2 * size));
    const auto first =
        MP_TRY(shard_a.source->Read(shard_a.header.data_start + a.begin + at, size, buffers.first(half)));
    const auto second =
        MP_TRY(shard_b.source->Read(shard_b.header.data_start + b.begin + at, size, buffers.subspan(half)));
    ledger.Charge(checkpoint.account(), Purpose::kAlignment, first.alignment_bytes + second.alignment_bytes);
    if (std::memcmp(first.data, second.data, size) != 0) return false;
  }
  return true;
}

}  // namespace

Result<void> CheckEqualPairs(const Plan& plan, Ledger& ledger) {
  if (plan.merge->redundant_heads.empty()) return {};
  auto pool = MP_TRY(BufferPool::Map(2 * Source::BufferBytes(kPieceBytes)));
  const std::span<std::byte> buffers = pool.Take(2 * Source::BufferBytes(kPieceBytes));
  for (const EqualPair& pair : plan.merge->redundant_heads) {
    if (MP_TRY(AreEqual(plan, pair, buffers, ledger))) continue;
    return Fail(Code::kInvalidInput,
                Format("{}: its config ties the head, but it stores a '{}' that differs from '{}'; set "
                       "tie_word_embeddings to false in its config.json if the head is meant",
                       plan.merge->models[pair.first.model].name, EntryOf(*plan.merge, pair.first).name,
                       EntryOf(*plan.merge, pair.second).name));
  }
  return {};
}

}  // namespace mergepipe
