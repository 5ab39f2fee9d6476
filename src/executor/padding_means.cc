#include "executor/padding_means.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace mergepipe {
namespace {

constexpr uint64_t kTile = 2048;

}  // namespace

PaddingMeans::PaddingMeans(const ResolvedTensor& tensor, const TensorMask* mask,
                           const kernels::Kernels& kernels)
    : kernels_(kernels),
      dtype_(tensor.sources[0].rows->entry.dtype),
      width_(tensor.sources[0].rows->row_elements),
      real_elements_(tensor.sources[0].rows->real_rows() * width_),
      whole_(WholeSources(mask, tensor.sources.size())),
      sums_(tensor.sources.size(), std::vector<double>(width_)) {}

std::vector<bool> PaddingMeans::WholeSources(const TensorMask* mask, size_t sources) {
  std::vector<bool> whole(sources, true);
  for (size_t s = 0; s < sources && mask != nullptr; ++s) {
    for (size_t b = 0; b < mask->blocks() && whole[s]; ++b)
      whole[s] = mask->From(s, b) != TensorMask::kOmitted;
  }
  return whole;
}

void PaddingMeans::AddRows(const ItemData& item) {
  const uint64_t end = std::min(item.first + item.count, real_elements_);
  std::array<double, kTile> values;
  for (size_t s = 0; s < sums_.size(); ++s) {
    for (uint64_t at = item.first; at < end && whole_[s];) {
      const uint64_t column = at % width_;
      const uint64_t n = std::min({kTile, width_ - column, end - at});
      kernels_.f64.widen(dtype_, item.sources[s] + (at - item.first) * DTypeBytes(dtype_), values.data(), n);
      for (uint64_t k = 0; k < n; ++k)
        sums_[s][column + k] += values[k];
      at += n;
    }
  }
}

template <typename T>
void PaddingMeans::FillSource(size_t source, const ItemData& item, std::byte* out) const {
  const auto rows = static_cast<double>(real_elements_ / width_);
  T* const values = reinterpret_cast<T*>(out);
  for (uint64_t at = std::max(item.first, real_elements_); at < item.first + item.count; ++at)
    values[at - item.first] = static_cast<T>(sums_[source][at % width_] / rows);
}

void PaddingMeans::Fill(const ItemData& item, const std::vector<bool>& whole,
                        std::span<std::byte* const> sources) const {
  const uint64_t first = std::max(item.first, real_elements_);
  const uint64_t end = item.first + item.count;
  if (first >= end) return;
  const uint64_t offset = (first - item.first) * DTypeBytes(dtype_);
  for (size_t s = 0; s < sources.size(); ++s) {
    if (!whole[s]) {
      std::memcpy(sources[s] + offset, sources[0] + offset, (end - first) * DTypeBytes(dtype_));
    } else if (dtype_ == DType::kF64) {
      FillSource<double>(s, item, sources[s]);
    } else {
      FillSource<float>(s, item, sources[s]);
    }
  }
}

}  // namespace mergepipe
