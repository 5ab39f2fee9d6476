#include "catalog/packing.h"

#include <bit>

#include "kernels/kernels.h"

namespace mergepipe {

static_assert(std::endian::native == std::endian::little, "columns are stored as they lie in memory");

namespace {

void PutNumber(uint64_t value, std::vector<std::byte>& out) {
  for (; value >= 0x80; value >>= 7)
    out.push_back(static_cast<std::byte>(value | 0x80));
  out.push_back(static_cast<std::byte>(value));
}

std::optional<uint64_t> TakeNumber(std::span<const std::byte>& bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto digit = static_cast<uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    value |= (digit & 0x7f) << shift;
    if (digit < 0x80) return value;
  }
  return std::nullopt;
}

uint64_t Zigzag(uint64_t difference) {
  return (difference << 1) ^ (difference >> 63 != 0 ? ~uint64_t{0} : 0);
}

uint64_t Unzigzag(uint64_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? ~uint64_t{0} : 0);
}

}  // namespace

std::vector<std::byte> PackHistogram(const MagnitudeHistogram& histogram) {
  std::vector<std::byte> bytes;
  uint64_t next = 0, last = 0;
  for (const auto& [bucket, count] : histogram) {
    PutNumber(bucket - next, bytes);
    PutNumber(Zigzag(count - last), bytes);
    next = bucket + 1;
    last = count;
  }
  return bytes;
}

std::optional<MagnitudeHistogram> UnpackHistogram(std::span<const std::byte> bytes, uint64_t elements) {
  MagnitudeHistogram histogram;
  uint64_t next = 0, last = 0, sum = 0;
  while (!bytes.empty()) {
    const auto gap = TakeNumber(bytes);
    const auto change = TakeNumber(bytes);
    if (!gap || !change || *gap >= kernels::kHighBuckets - next) return std::nullopt;
    last += Unzigzag(*change);
    if (last == 0 || last > elements - sum) return std::nullopt;
    histogram.emplace_back(static_cast<uint32_t>(next + *gap), last);
    next += *gap + 1;
    sum += last;
  }
  if (sum != elements) return std::nullopt;
  return histogram;
}

}  // namespace mergepipe
