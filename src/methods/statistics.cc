#include "methods/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mergepipe {
namespace {

using kernels::kHighBuckets;
using kernels::kLowBits;
using kernels::kLowBuckets;

double Magnitude(uint32_t key) {
  return std::bit_cast<float>(key);
}

// Sum of the magnitudes in one bucket of upper bits: they share sign and exponent, so their lower bits add as
// integers.
double BucketSum(uint32_t high, uint64_t count, uint64_t low_sum) {
  if (count == 0) return 0;
  const uint32_t first = high << kLowBits;
  const double step = Magnitude(first | 1u) - Magnitude(first);
  return static_cast<double>(count) * Magnitude(first) + static_cast<double>(low_sum) * step;
}

bool TrimsSomething(const KeepRule& rule, uint64_t elements) {
  return rule.kind == KeepRule::Kind::kLargest && rule.count < elements;
}

size_t PairIndex(size_t i, size_t j, size_t inputs) {
  return i * inputs + j;
}

template <typename T>
size_t PositionOfEqual(const T* delta, size_t n, uint32_t key, uint64_t which) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t at = std::bit_cast<uint32_t>(static_cast<float>(delta[i])) & 0x7fffffffu;
    if (at == key && which-- == 0) return i;
  }
  return n;
}

}  // namespace

StatisticsCollector::StatisticsCollector(StatisticsRequest request, size_t inputs, uint64_t elements)
    : request_(std::move(request)), inputs_(inputs) {
  for (KeepRule& rule : request_.keep) {
    if (rule.kind == KeepRule::Kind::kLargest && !TrimsSomething(rule, elements)) rule = KeepRule{};
  }
  rounds_ = Rounds(request_, elements);
  magnitudes_.resize(inputs_);
  for (size_t i = 0; i < inputs_; ++i) {
    if (!Trims(i)) continue;
    magnitudes_[i].counts.resize(kHighBuckets);
    if (request_.l1) magnitudes_[i].low_sums.resize(kHighBuckets);
  }
  whole_.resize(request_.l1 ? inputs_ : 0);
  kept_.resize(request_.l1 ? inputs_ : 0);
  gram_.resize(request_.gram ? inputs_ * inputs_ : 0);
}

size_t StatisticsCollector::Rounds(const StatisticsRequest& request, uint64_t elements) {
  const bool trims = std::any_of(request.keep.begin(), request.keep.end(),
                                 [&](const KeepRule& rule) { return TrimsSomething(rule, elements); });
  if (trims) return 2;
  return request.l1 || request.gram ? 1 : 0;
}

uint64_t StatisticsCollector::MemoryBytes(const StatisticsRequest& request, size_t inputs,
                                          uint64_t elements) {
  uint64_t trimmed = 0;
  for (const KeepRule& rule : request.keep)
    trimmed += TrimsSomething(rule, elements) ? 1 : 0;
  const uint64_t tables = trimmed * kHighBuckets * sizeof(uint64_t) * (request.l1 ? 2 : 1);
  return tables + (request.gram ? inputs * inputs * sizeof(ExactSum) : 0) +
         (request.l1 ? 2 * inputs * sizeof(ExactSum) : 0);
}

bool StatisticsCollector::Trims(size_t input) const {
  return !request_.keep.empty() && request_.keep[input].kind == KeepRule::Kind::kLargest;
}

bool StatisticsCollector::WantsInput(size_t input) const {
  if (round_ == 0) return Trims(input) || request_.l1;
  return Trims(input);
}

template <typename T>
void StatisticsCollector::AddInput(Scratch& scratch, size_t input, T* delta, size_t n, uint64_t first_index,
                                   const kernels::Loops<T>& loops) const {
  if (Trims(input) && round_ == 0) {
    loops.count_high(delta, n, scratch.counts.data());
    if (!request_.l1) return;
    scratch.low_sums.resize(kHighBuckets);
    loops.add_low(delta, n, scratch.low_sums.data());
  } else if (Trims(input)) {
    loops.count_low(delta, n, magnitudes_[input].high, scratch.counts.data());
  } else {
    scratch.sums.resize(2);
    scratch.sums[0].Add(loops.sum_abs(delta, n));
    uint64_t no_equals = 0;
    KeepElements(request_.keep[input], Threshold{}, &no_equals, delta, n, first_index, loops);
    scratch.sums[1].Add(loops.sum_abs(delta, n));
  }
}

template <typename T>
void StatisticsCollector::AddTile(Scratch& scratch, const std::vector<T*>& inputs, size_t n,
                                  const kernels::Loops<T>& loops) const {
  scratch.sums.resize(inputs_ * inputs_);
  for (size_t i = 0; i < inputs_; ++i) {
    for (size_t j = i; j < inputs_; ++j)
      scratch.sums[PairIndex(i, j, inputs_)].Add(loops.dot(inputs[i], inputs[j], n));
  }
}

void StatisticsCollector::MergeInput(Scratch& scratch, size_t input) {
  const std::lock_guard lock(mutex_);
  if (Trims(input)) {
    Magnitudes& all = magnitudes_[input];
    for (size_t b = 0; b < all.counts.size(); ++b)
      all.counts[b] += std::exchange(scratch.counts[b], 0);
    for (size_t b = 0; b < scratch.low_sums.size() && !all.low_sums.empty(); ++b)
      all.low_sums[b] += std::exchange(scratch.low_sums[b], 0);
  } else {
    whole_[input].Merge(scratch.sums[0]);
    kept_[input].Merge(scratch.sums[1]);
    scratch.sums.clear();
  }
}

void StatisticsCollector::MergeTiles(Scratch& scratch) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < scratch.sums.size(); ++i)
    gram_[i].Merge(scratch.sums[i]);
  scratch.sums.clear();
}

void StatisticsCollector::FinishRound() {
  for (size_t i = 0; i < inputs_; ++i) {
    if (!Trims(i)) continue;
    if (round_ == 0) {
      FinishHigh(i);
    } else {
      FinishLow(i);
    }
  }
  ++round_;
}

// Finds the bucket that holds the k-th magnitude, counted from the largest.
void StatisticsCollector::FinishHigh(size_t input) {
  Magnitudes& all = magnitudes_[input];
  const uint64_t wanted = request_.keep[input].count;
  uint32_t high = kHighBuckets - 1;
  while (high > 0 && all.above + all.counts[high] < wanted)
    all.above += all.counts[high--];
  all.high = high;
  for (uint32_t b = kHighBuckets; b-- > 0 && !all.low_sums.empty();) {
    const double sum = BucketSum(b, all.counts[b], all.low_sums[b]);
    all.whole += sum;
    if (b > high) all.kept += sum;
  }
  all.counts.assign(kLowBuckets, 0);
  all.low_sums.clear();
}

// Finds the k-th magnitude inside its bucket, and how many of its equals stay.
void StatisticsCollector::FinishLow(size_t input) {
  Magnitudes& all = magnitudes_[input];
  uint64_t left = request_.keep[input].count - all.above;
  uint32_t low = kLowBuckets - 1;
  const auto key = [&] { return all.high << kLowBits | low; };
  while (low > 0 && all.counts[low] < left) {
    left -= all.counts[low];
    all.kept += static_cast<double>(all.counts[low]) * Magnitude(key());
    --low;
  }
  all.kept += static_cast<double>(left) * Magnitude(key());
  all.threshold = {.key = key(), .equal_total = all.counts[low], .equal_kept = left};
  // Zeros contribute nothing whether they stay or not.
  if (all.threshold.key == 0) all.threshold.equal_kept = all.threshold.equal_total;
  all.counts.clear();
}

TensorStatistics StatisticsCollector::Statistics() const {
  TensorStatistics result;
  for (size_t i = 0; i < inputs_; ++i) {
    result.thresholds.push_back(magnitudes_[i].threshold);
    if (!request_.l1) continue;
    result.l1_whole.push_back(Trims(i) ? magnitudes_[i].whole : whole_[i].Value());
    result.l1_kept.push_back(Trims(i) ? magnitudes_[i].kept : kept_[i].Value());
  }
  if (request_.gram) {
    result.gram.resize(inputs_ * inputs_);
    for (size_t i = 0; i < inputs_; ++i) {
      for (size_t j = i; j < inputs_; ++j) {
        result.gram[PairIndex(i, j, inputs_)] = result.gram[PairIndex(j, i, inputs_)] =
            gram_[PairIndex(i, j, inputs_)].Value();
      }
    }
  }
  return result;
}

template <typename T>
void KeepElements(const KeepRule& rule, const Threshold& threshold, uint64_t* equals_left, T* delta, size_t n,
                  uint64_t first_index, const kernels::Loops<T>& loops) {
  switch (rule.kind) {
    case KeepRule::Kind::kAll:
      return;
    case KeepRule::Kind::kNone:
      std::fill(delta, delta + n, T{0});
      return;
    case KeepRule::Kind::kRandom:
      loops.keep_random(delta, rule.stream, first_index, rule.probability, n);
      return;
    case KeepRule::Kind::kLargest:
      break;
  }
  if (threshold.equal_kept == threshold.equal_total) return loops.keep_at_least(delta, threshold.key, n);
  if (*equals_left == 0) return loops.keep_at_least(delta, threshold.key + 1, n);
  const uint64_t equals = loops.count_equal(delta, n, threshold.key);
  const size_t cut = equals <= *equals_left ? n : PositionOfEqual(delta, n, threshold.key, *equals_left);
  loops.keep_at_least(delta, threshold.key, cut);
  loops.keep_at_least(delta + cut, threshold.key + 1, n - cut);
  *equals_left -= std::min(equals, *equals_left);
}

template void StatisticsCollector::AddInput(Scratch&, size_t, float*, size_t, uint64_t,
                                            const kernels::Loops<float>&) const;
template void StatisticsCollector::AddInput(Scratch&, size_t, double*, size_t, uint64_t,
                                            const kernels::Loops<double>&) const;
template void StatisticsCollector::AddTile(Scratch&, const std::vector<float*>&, size_t,
                                           const kernels::Loops<float>&) const;
template void StatisticsCollector::AddTile(Scratch&, const std::vector<double*>&, size_t,
                                           const kernels::Loops<double>&) const;
template void KeepElements(const KeepRule&, const Threshold&, uint64_t*, float*, size_t, uint64_t,
                           const kernels::Loops<float>&);
template void KeepElements(const KeepRule&, const Threshold&, uint64_t*, double*, size_t, uint64_t,
                           const kernels::Loops<double>&);

}  // namespace mergepipe
