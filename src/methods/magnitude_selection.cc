#include "methods/magnitude_selection.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/exact_sum.h"

namespace mergepipe {
namespace {

using kernels::kHighBuckets;
using kernels::kLowBits;
using kernels::kLowBuckets;

double Magnitude(uint32_t key) {
  return std::bit_cast<float>(key);
}

template <typename T>
uint32_t KeyOf(T delta) {
  return std::bit_cast<uint32_t>(static_cast<float>(delta)) & 0x7fffffffu;
}

// Sum of the magnitudes in one bucket of upper bits: they share sign and exponent, so their lower bits add as
// integers.
double BucketSum(uint32_t high, uint64_t count, uint64_t low_sum) {
  if (count == 0) return 0;
  const uint32_t first = high << kLowBits;
  const double step = Magnitude(first | 1u) - Magnitude(first);
  return static_cast<double>(count) * Magnitude(first) + static_cast<double>(low_sum) * step;
}

template <typename To, typename From>
void MoveCounts(std::vector<From>& from, std::vector<To>& to) {
  for (size_t b = 0; b < std::min(from.size(), to.size()); ++b)
    to[b] += std::exchange(from[b], From{0});
}

}  // namespace

MagnitudeSelection::MagnitudeSelection(uint64_t elements, uint64_t count, bool l1)
    : elements_(elements), count_(count), l1_(l1) {
  if (IsSmall(elements)) {
    keys_.reserve(elements);
  } else {
    counts_.resize(kHighBuckets);
    low_sums_.resize(l1 ? kHighBuckets : 0);
  }
}

uint64_t MagnitudeSelection::MemoryBytes(uint64_t elements, bool l1) {
  if (IsSmall(elements)) return elements * sizeof(uint32_t);
  return kHighBuckets * sizeof(uint64_t) * (l1 ? 2 : 1);
}

template <typename T>
void MagnitudeSelection::Count(Scratch& scratch, const T* delta, size_t n,
                               const kernels::Loops<T>& loops) const {
  if (IsSmall(elements_)) {
    for (size_t i = 0; i < n; ++i)
      scratch.keys.push_back(KeyOf(delta[i]));
    return;
  }
  scratch.counts.resize(kHighBuckets);
  if (round_ == 1) return loops.count_low(delta, n, high_, scratch.counts.data());
  loops.count_high(delta, n, scratch.counts.data());
  if (!l1_) return;
  scratch.low_sums.resize(kHighBuckets);
  loops.add_low(delta, n, scratch.low_sums.data());
}

void MagnitudeSelection::CountZeros(Scratch& scratch, uint64_t n) const {
  if (IsSmall(elements_)) {
    scratch.keys.insert(scratch.keys.end(), n, 0);
    return;
  }
  scratch.counts.resize(kHighBuckets);
  if (round_ == 0 || high_ == 0) scratch.counts[0] += static_cast<uint32_t>(n);
}

void MagnitudeSelection::Merge(Scratch& scratch) {
  keys_.insert(keys_.end(), scratch.keys.begin(), scratch.keys.end());
  scratch.keys.clear();
  MoveCounts(scratch.counts, counts_);
  MoveCounts(scratch.low_sums, low_sums_);
}

void MagnitudeSelection::TakeHigh(const std::vector<uint64_t>& counts,
                                  const std::vector<uint64_t>& low_sums) {
  counts_ = counts;
  if (l1_) low_sums_ = low_sums;
}

void MagnitudeSelection::FinishRound() {
  if (IsSmall(elements_)) {
    FinishSmall();
  } else if (round_ == 0) {
    FinishHigh();
  } else {
    FinishLow();
  }
  ++round_;
}

void MagnitudeSelection::FinishSmall() {
  const auto kth = keys_.begin() + static_cast<std::ptrdiff_t>(count_ - 1);
  std::nth_element(keys_.begin(), kth, keys_.end(), std::greater<>());
  const uint32_t key = *kth;
  const auto above =
      static_cast<uint64_t>(std::count_if(keys_.begin(), keys_.end(), [&](uint32_t k) { return k > key; }));
  threshold_ = {.key = key,
                .equal_total = static_cast<uint64_t>(std::count(keys_.begin(), keys_.end(), key)),
                .equal_kept = count_ - above};
  ExactSum whole, kept;
  for (const uint32_t k : keys_) {
    whole.Add(Magnitude(k));
    if (k > key) kept.Add(Magnitude(k));
  }
  whole_ = whole.Value();
  kept_ = kept.Value() + static_cast<double>(threshold_.equal_kept) * Magnitude(key);
  if (key == 0) threshold_.equal_kept = threshold_.equal_total;  // zeros count for nothing, kept or not
  keys_ = {};
}

// Finds the bucket that holds the k-th magnitude, counted from the largest.
void MagnitudeSelection::FinishHigh() {
  uint32_t high = kHighBuckets - 1;
  while (high > 0 && above_ + counts_[high] < count_)
    above_ += counts_[high--];
  high_ = high;
  for (uint32_t b = kHighBuckets; b-- > 0 && l1_;) {
    const double sum = BucketSum(b, counts_[b], low_sums_[b]);
    whole_ += sum;
    if (b > high) kept_ += sum;
  }
  counts_.assign(kLowBuckets, 0);
  low_sums_ = {};
}

// Finds the k-th magnitude inside its bucket, and how many of its equals stay.
void MagnitudeSelection::FinishLow() {
  uint64_t left = count_ - above_;
  uint32_t low = kLowBuckets - 1;
  const auto key = [&] { return high_ << kLowBits | low; };
  while (low > 0 && counts_[low] < left) {
    left -= counts_[low];
    kept_ += static_cast<double>(counts_[low]) * Magnitude(key());
    --low;
  }
  kept_ += static_cast<double>(left) * Magnitude(key());
  threshold_ = {.key = key(), .equal_total = counts_[low], .equal_kept = left};
  if (threshold_.key == 0)
    threshold_.equal_kept = threshold_.equal_total;  // zeros count for nothing, kept or not
  counts_ = {};
}

template void MagnitudeSelection::Count(Scratch&, const float*, size_t, const kernels::Loops<float>&) const;
template void MagnitudeSelection::Count(Scratch&, const double*, size_t, const kernels::Loops<double>&) const;

}  // namespace mergepipe
