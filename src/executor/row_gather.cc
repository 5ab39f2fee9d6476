#include "executor/row_gather.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/try.h"
#include "executor/charged_read.h"
#include "planner/memory.h"

namespace mergepipe {
namespace {

constexpr uint64_t kChunkBytes = kGatherChunkBytes;
constexpr uint64_t kMeanTile = 2048;

}  // namespace

Result<uint64_t> RowGather::Gather(size_t source, ElementRun run, const Target& target) const {
  const TensorSource& from = tensor_.sources[source];
  const GatheredRows& rows = *from.rows;
  const DType as = rows.entry.dtype;
  const uint64_t width = rows.row_elements;
  const uint64_t end = run.first + run.count;
  uint64_t read_bytes = 0;
  for (uint64_t at = run.first; at < end;) {
    const uint64_t row = at / width, column = at % width;
    const int32_t code = rows.map->At(row);
    Target here = target;
    here.out += (at - run.first) * DTypeBytes(as);
    uint64_t count = std::min(width - column, end - at);
    if (code >= 0) {
      // Rows that stand side by side are read at once.
      for (uint64_t next = row + 1;
           at + count < end && rows.map->At(next) == code + static_cast<int32_t>(next - row); ++next)
        count += std::min(width, end - at - count);
      const StoredRow own{from.model, static_cast<uint64_t>(code)};
      const StoredRun stored = RunOf(rows, own, column, count);
      read_bytes += count * DTypeBytes(stored.dtype);
      MP_TRY(Copy(stored, as, here));
    } else if (RowMap::IsMixture(code)) {
      std::vector<StoredRun> parts;
      for (const StoredRow& part : rows.map->Mixture(code)) {
        parts.push_back(RunOf(rows, part, column, count));
        read_bytes += count * DTypeBytes(parts.back().dtype);
      }
      if (parts.size() == 1) MP_TRY(Copy(parts[0], as, here));
      if (parts.size() > 1 && as == DType::kF64) MP_TRY(Mean<double>(parts, here));
      if (parts.size() > 1 && as == DType::kF32) MP_TRY(Mean<float>(parts, here));
    } else if (code == RowMap::kReference) {
      std::memcpy(here.out, target.reference + (at - run.first) * DTypeBytes(as), count * DTypeBytes(as));
    } else {
      std::memset(here.out, 0, count * DTypeBytes(as));
    }
    at += count;
  }
  return read_bytes;
}

RowGather::StoredRun RowGather::RunOf(const GatheredRows& rows, const StoredRow& row, uint64_t column,
                                      uint64_t count) const {
  const TensorPlace& place = rows.PlaceOf(row.model);
  return {.source = {row.model, place},
          .dtype = plan_.merge->models[row.model].checkpoint->entry(place).dtype,
          .first = row.row * rows.row_elements + column,
          .count = count};
}

Result<const std::byte*> RowGather::Read(const StoredRun& run, uint64_t at, uint64_t count,
                                         std::span<std::byte> scratch) const {
  const uint64_t element = DTypeBytes(run.dtype);
  const auto range =
      MP_TRY(ReadCharged(plan_, run.source, (run.first + at) * element, count * element,
                         scratch.first(Source::BufferBytes(count * element)), ledger_, expert_));
  return range.data;
}

Result<void> RowGather::Copy(const StoredRun& run, DType as, const Target& target) const {
  const uint64_t most = kChunkBytes / DTypeBytes(run.dtype);
  for (uint64_t at = 0; at < run.count;) {
    const uint64_t n = std::min(most, run.count - at);
    const std::byte* stored = MP_TRY(Read(run, at, n, target.scratch));
    Widen(run.dtype, stored, as, target.out + at * DTypeBytes(as), n);
    at += n;
  }
  return {};
}

void RowGather::Widen(DType from, const std::byte* stored, DType as, std::byte* out, uint64_t count) const {
  if (from == as) {
    std::memcpy(out, stored, count * DTypeBytes(as));
  } else if (as == DType::kF64) {
    kernels_.f64.widen(from, stored, reinterpret_cast<double*>(out), count);
  } else {
    kernels_.f32.widen(from, stored, reinterpret_cast<float*>(out), count);
  }
}

// Added up in the order of the sources, then divided once.
template <typename T>
Result<void> RowGather::Mean(std::span<const StoredRun> parts, const Target& target) const {
  std::array<T, kMeanTile> values;
  const auto& loops = kernels_.Of<T>();
  for (uint64_t at = 0; at < parts[0].count; at += kMeanTile) {
    const uint64_t n = std::min(kMeanTile, parts[0].count - at);
    T* const out = reinterpret_cast<T*>(target.out) + at;
    std::fill_n(out, n, T{0});
    for (const StoredRun& part : parts) {
      const std::byte* stored = MP_TRY(Read(part, at, n, target.scratch));
      loops.widen(part.dtype, stored, values.data(), n);
      for (uint64_t k = 0; k < n; ++k)
        out[k] += values[k];
    }
    for (uint64_t k = 0; k < n; ++k)
      out[k] /= static_cast<T>(parts.size());
  }
  return {};
}

}  // namespace mergepipe
