#pragma once

#include <algorithm>

#include "planner/plan.h"

namespace mergepipe {

/// Calls take(model, stored, bytes) for every run of stored bytes that elements [first, first + count) of a
/// source are made of: `stored` is where it begins in the model's tensor. Bytes are elements where the tensor
/// is copied.
template <typename Take>
void ForFetched(const ResolvedMerge& merge, const ResolvedTensor& tensor, size_t source, uint64_t first,
                uint64_t count, Take take) {
  const TensorSource& from = tensor.sources[source];
  const auto stored_bytes = [&](size_t model, const TensorPlace& place) {
    return tensor.merged ? DTypeBytes(merge.models[model].checkpoint->entry(place).dtype) : 1;
  };
  if (from.rows == nullptr) {
    const uint64_t element = stored_bytes(from.model, from.place);
    return take(from.model, first * element, count * element);
  }
  const uint64_t own_bytes = stored_bytes(from.model, from.place);
  const uint64_t width = from.rows->row_elements;
  for (const uint64_t end = first + count; first < end;) {
    const uint64_t row = first / width, column = first % width;
    const uint64_t n = std::min(width - column, end - first);
    const int32_t code = from.rows->map->At(row);
    if (code >= 0)
      take(from.model, (static_cast<uint64_t>(code) * width + column) * own_bytes, n * own_bytes);
    if (RowMap::IsMixture(code)) {
      for (const StoredRow& part : from.rows->map->Mixture(code)) {
        const uint64_t bytes = stored_bytes(part.model, from.rows->PlaceOf(part.model));
        take(part.model, (part.row * width + column) * bytes, n * bytes);
      }
    }
    first += n;
  }
}

/// Bytes of the reference's models and of experts.
struct FetchedBytes {
  uint64_t base = 0;
  uint64_t expert = 0;
};
/// What one pass over elements [first, first + count) of a source fetches.
FetchedBytes BytesFetched(const Plan& plan, size_t tensor, size_t source, uint64_t first, uint64_t count);
/// The same of the whole source.
FetchedBytes BytesFetched(const Plan& plan, size_t tensor, size_t source);

}  // namespace mergepipe
