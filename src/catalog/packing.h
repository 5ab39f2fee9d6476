#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace mergepipe {

/// The bytes of a column: its values one after the other, little-endian.
template <typename T>
std::span<const std::byte> ColumnBytes(const std::vector<T>& column) {
  return std::as_bytes(std::span(column));
}

/// A column of `count` values; nothing where the bytes are of another length.
template <typename T>
std::optional<std::vector<T>> ColumnOf(std::span<const std::byte> bytes, uint64_t count) {
  if (bytes.size() / sizeof(T) != count || bytes.size() % sizeof(T) != 0) return std::nullopt;
  std::vector<T> column(count);
  if (count > 0) std::memcpy(column.data(), bytes.data(), bytes.size());
  return column;
}

/// Counts by magnitude: (upper 16 bits of the key, count), ascending, no zero counts.
using MagnitudeHistogram = std::vector<std::pair<uint32_t, uint64_t>>;

/// A histogram in few bytes: for each entry two LEB128 numbers, the distance from the last bucket (from −1 at
/// first) less 1, and the zigzag difference from the last count (from 0 at first).
std::vector<std::byte> PackHistogram(const MagnitudeHistogram& histogram);

/// The way back; nothing where the bytes are no histogram of `elements` elements.
std::optional<MagnitudeHistogram> UnpackHistogram(std::span<const std::byte> bytes, uint64_t elements);

}  // namespace mergepipe
