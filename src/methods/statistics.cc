#include "methods/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mergepipe {
namespace {

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
    : request_(std::move(request)),
      inputs_(inputs),
      rounds_(Rounds(request_, elements)),
      selections_(inputs) {
  for (size_t i = 0; i < request_.keep.size(); ++i) {
    KeepRule& rule = request_.keep[i];
    if (TrimsSomething(rule, elements)) {
      selections_[i] = std::make_unique<MagnitudeSelection>(elements, rule.count, request_.l1);
    } else if (rule.kind == KeepRule::Kind::kLargest) {
      rule = KeepRule{};
    }
  }
  whole_.resize(request_.l1 ? inputs_ : 0);
  kept_.resize(request_.l1 ? inputs_ : 0);
  gram_.resize(request_.gram ? inputs_ * inputs_ : 0);
}

size_t StatisticsCollector::Rounds(const StatisticsRequest& request, uint64_t elements) {
  const bool trims = std::any_of(request.keep.begin(), request.keep.end(),
                                 [&](const KeepRule& rule) { return TrimsSomething(rule, elements); });
  if (trims) return MagnitudeSelection::Rounds(elements);
  return request.l1 || request.gram ? 1 : 0;
}

uint64_t StatisticsCollector::MemoryBytes(const StatisticsRequest& request, size_t inputs,
                                          uint64_t elements) {
  uint64_t bytes = 0;
  for (const KeepRule& rule : request.keep) {
    if (TrimsSomething(rule, elements)) bytes += MagnitudeSelection::MemoryBytes(elements, request.l1);
  }
  const uint64_t sums = (request.gram ? inputs * inputs : 0) + (request.l1 ? 2 * inputs : 0);
  return bytes + sums * sizeof(ExactSum);
}

bool StatisticsCollector::WantsInput(size_t input) const {
  return Trims(input) || (round_ == 0 && request_.l1);
}

template <typename T>
void StatisticsCollector::AddInput(Scratch& scratch, size_t input, T* delta, size_t n, uint64_t first_index,
                                   const kernels::Loops<T>& loops) const {
  if (Trims(input)) return selections_[input]->Count(scratch.magnitudes, delta, n, loops);
  scratch.sums.resize(2);
  scratch.sums[0].Add(loops.sum_abs(delta, n));
  uint64_t no_equals = 0;
  KeepElements(request_.keep[input], Threshold{}, &no_equals, delta, n, first_index, loops);
  scratch.sums[1].Add(loops.sum_abs(delta, n));
}

void StatisticsCollector::AddZeros(Scratch& scratch, size_t input, uint64_t n) const {
  if (Trims(input)) return selections_[input]->CountZeros(scratch.magnitudes, n);
  scratch.sums.resize(2);
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
  if (Trims(input)) return selections_[input]->Merge(scratch.magnitudes);
  whole_[input].Merge(scratch.sums[0]);
  kept_[input].Merge(scratch.sums[1]);
  scratch.sums.clear();
}

void StatisticsCollector::MergeTiles(Scratch& scratch) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < scratch.sums.size(); ++i)
    gram_[i].Merge(scratch.sums[i]);
  scratch.sums.clear();
}

void StatisticsCollector::FinishRound() {
  for (const auto& selection : selections_) {
    if (selection != nullptr) selection->FinishRound();
  }
  ++round_;
}

TensorStatistics StatisticsCollector::Statistics() const {
  TensorStatistics result;
  for (size_t i = 0; i < inputs_; ++i) {
    result.thresholds.push_back(Trims(i) ? selections_[i]->threshold() : Threshold{});
    if (!request_.l1) continue;
    result.l1_whole.push_back(Trims(i) ? selections_[i]->l1_whole() : whole_[i].Value());
    result.l1_kept.push_back(Trims(i) ? selections_[i]->l1_kept() : kept_[i].Value());
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
  if (threshold.cut_index) {
    const auto cut = static_cast<size_t>(
        std::clamp<int64_t>(static_cast<int64_t>(*threshold.cut_index) - static_cast<int64_t>(first_index), 0,
                            static_cast<int64_t>(n)));
    loops.keep_at_least(delta, threshold.key, cut);
    return loops.keep_at_least(delta + cut, threshold.key + 1, n - cut);
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
