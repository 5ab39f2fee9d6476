#include "executor/block_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "catalog/sketch.h"

namespace mergepipe {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kBucketsPerExponent = 256;
constexpr unsigned kMantissaBits = 23;

// Where both store the same bytes every delta is 0, and nothing needs to be computed.
bool SameBytes(const StoredRun& run, uint64_t at, uint64_t n) {
  const uint64_t bytes = DTypeBytes(run.dtype);
  return run.dtype == run.base_dtype &&
         std::memcmp(run.base + at * bytes, run.data + at * bytes, n * bytes) == 0;
}

}  // namespace

template <>
float* BlockSums::Sketch() {
  return sketch32_.data();
}
template <>
double* BlockSums::Sketch() {
  return sketch64_.data();
}

void BlockSums::Begin() {
  energy_ = 0;
  max_key_ = 0;
  nonzeros_ = 0;
  exponents_ = {};
  sketch32_ = {};
  sketch64_ = {};
  l1_ = {};
  leaves_.clear();
}

void BlockSums::HashLeaves(const std::byte* data, uint64_t element_bytes, const StoredRun& run) {
  for (uint64_t at = 0; at < run.elements; at += run.leaf_elements) {
    const uint64_t n = std::min(run.leaf_elements, run.elements - at);
    leaves_.push_back(DigestOf(std::span(data + at * element_bytes, n * element_bytes)));
  }
}

void BlockSums::AddDeltas(const StoredRun& run, const kernels::Kernels& kernels, RunScratch& scratch) {
  HashLeaves(run.data, DTypeBytes(run.dtype), run);
  run_elements_ = run.elements;
  run_max_key_ = 0;
  if (IsWide(run.dtype, run.base_dtype)) {
    AddDeltaTiles<double>(run, kernels, scratch);
  } else {
    AddDeltaTiles<float>(run, kernels, scratch);
  }
  max_key_ = std::max(max_key_, run_max_key_);
}

template <typename T>
void BlockSums::AddDeltaTiles(const StoredRun& run, const kernels::Kernels& kernels, RunScratch& scratch) {
  alignas(64) T delta[kTileElements];
  const auto& loops = kernels.Of<T>();
  const uint64_t tile = std::min(kTileElements, run.leaf_elements);
  for (uint64_t at = 0; at < run.elements; at += tile) {
    const auto n = static_cast<size_t>(std::min(tile, run.elements - at));
    if (SameBytes(run, at, n)) {
      scratch.magnitudes.counts[0] += static_cast<uint32_t>(n);
      continue;
    }
    loops.delta(run.dtype, run.data + at * DTypeBytes(run.dtype), run.base_dtype,
                run.base + at * DTypeBytes(run.base_dtype), delta, n);
    AddTile(delta, n, run.first + at, loops, scratch);
  }
}

template <typename T>
void BlockSums::AddTile(const T* delta, size_t n, uint64_t first, const kernels::Loops<T>& loops,
                        RunScratch& scratch) {
  const size_t nonzeros = loops.count_nonzero(delta, n);
  energy_ += loops.dot(delta, delta, n);
  l1_.Add(loops.sum_abs(delta, n));
  nonzeros_ += nonzeros;
  // A float64 delta may be 0 in float32 and is still not 0.
  run_max_key_ = std::max({run_max_key_, loops.max_key(delta, n), nonzeros > 0 ? 1u : 0u});
  loops.count_high(delta, n, scratch.magnitudes.counts.data());
  if (!scratch.magnitudes.low_sums.empty()) loops.add_low(delta, n, scratch.magnitudes.low_sums.data());
  loops.add_sketch(delta, n, first / kSketchBuckets, Sketch<T>());
}

// From the largest exponent down until every element is found: few of the counters were touched.
void BlockSums::Fold(RunScratch& scratch, Magnitudes<uint64_t>& tensor) {
  auto& from = scratch.magnitudes;
  const auto take = [&](uint32_t bucket) {
    const uint32_t count = std::exchange(from.counts[bucket], 0);
    tensor.counts[bucket] += count;
    if (!from.low_sums.empty() && count > 0)
      tensor.low_sums[bucket] += std::exchange(from.low_sums[bucket], 0);
    return count;
  };
  uint64_t left = run_elements_ - take(0);
  for (uint32_t exponent = (run_max_key_ >> kMantissaBits) + 1; exponent-- > 0 && left > 0;) {
    uint32_t sum = 0;
    for (uint32_t k = exponent == 0 ? 1 : 0; k < kBucketsPerExponent; ++k)
      sum += take(exponent * kBucketsPerExponent + k);
    if (exponent > 0) exponents_[exponent] += sum;
    left -= sum;
  }
}

void BlockSums::AddBase(const StoredRun& run, const kernels::Kernels& kernels) {
  HashLeaves(run.base, DTypeBytes(run.base_dtype), run);
  if (run.base_dtype == DType::kF64) {
    AddBaseTiles<double>(run, kernels);
  } else {
    AddBaseTiles<float>(run, kernels);
  }
}

template <typename T>
void BlockSums::AddBaseTiles(const StoredRun& run, const kernels::Kernels& kernels) {
  alignas(64) T values[kTileElements];
  const auto& loops = kernels.Of<T>();
  const uint64_t tile = std::min(kTileElements, run.leaf_elements);
  for (uint64_t at = 0; at < run.elements; at += tile) {
    const auto n = static_cast<size_t>(std::min(tile, run.elements - at));
    loops.widen(run.base_dtype, run.base + at * DTypeBytes(run.base_dtype), values, n);
    energy_ += loops.dot(values, values, n);
  }
}

bool BlockSums::finite() const {
  return std::isfinite(energy_) && max_key_ < kInfinity;
}

void BlockSums::FinishDeltas(size_t block, BlockColumns& columns) const {
  columns.energy[block] = energy_;
  columns.max_key[block] = max_key_;
  columns.nonzeros[block] = static_cast<uint32_t>(nonzeros_);
  const uint32_t top = max_key_ >> kMantissaBits;
  uint32_t left = static_cast<uint32_t>(nonzeros_);
  for (uint32_t k = 0; k + 1 < kOctaves && k < top; ++k) {
    columns.octaves[block * kOctaves + k] = exponents_[top - k];
    left -= exponents_[top - k];
  }
  // The exponent 0, of subnormals, is what no other counts.
  columns.octaves[block * kOctaves + std::min<size_t>(top, kOctaves - 1)] = left;
  std::array<double, kSketchBuckets> sums = sketch64_;
  for (size_t k = 0; k < kSketchBuckets; ++k)
    sums[k] += static_cast<double>(sketch32_[k]);  // one of the two is 0
  const QuantisedSketch sketch = Quantise(sums);
  columns.sketch_scale[block] = sketch.scale;
  std::copy_n(sketch.values, kSketchBuckets,
              columns.sketch.begin() + static_cast<std::ptrdiff_t>(block * kSketchBuckets));
  columns.digest[block] = DigestOf(std::span<const Digest128>(leaves_));
}

void BlockSums::FinishBase(size_t block, BaseColumns& columns) const {
  columns.energy[block] = energy_;
  columns.digest[block] = DigestOf(std::span<const Digest128>(leaves_));
}

}  // namespace mergepipe
