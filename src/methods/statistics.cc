#include "methods/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mergepipe {
namespace {

bool CutsBelow(const KeepRule& rule, uint64_t elements) {
  return rule.kind == KeepRule::Kind::kLargest && rule.from_top() < elements;
}

bool CutsAbove(const KeepRule& rule) {
  return rule.kind == KeepRule::Kind::kLargest && rule.outliers > 0;
}

uint64_t CutsOf(const StatisticsRequest& request, uint64_t elements) {
  uint64_t cuts = 0;
  for (const KeepRule& rule : request.keep)
    cuts += (CutsBelow(rule, elements) ? 1 : 0) + (CutsAbove(rule) ? 1 : 0);
  return cuts;
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
      selections_(inputs),
      outliers_(inputs) {
  for (size_t i = 0; i < request_.keep.size(); ++i) {
    KeepRule& rule = request_.keep[i];
    if (CutsBelow(rule, elements))
      selections_[i] = std::make_unique<MagnitudeSelection>(elements, rule.from_top(), request_.l1);
    if (CutsAbove(rule))
      outliers_[i] = std::make_unique<MagnitudeSelection>(elements, rule.outliers, request_.l1);
    if (rule.kind == KeepRule::Kind::kLargest && !Trims(i)) rule = KeepRule{};
  }
  whole_.resize(request_.l1 ? inputs_ : 0);
  kept_.resize(request_.l1 ? inputs_ : 0);
  gram_.resize(request_.gram ? inputs_ * inputs_ : 0);
  if (request_.joint != nullptr) joint_ = request_.joint->Make();
}

size_t StatisticsCollector::Rounds(const StatisticsRequest& request, uint64_t elements) {
  const size_t own = request.joint != nullptr ? request.joint->Rounds() : 0;
  if (CutsOf(request, elements) > 0) return std::max(own, MagnitudeSelection::Rounds(elements));
  return std::max<size_t>(own, request.l1 || request.gram ? 1 : 0);
}

uint64_t StatisticsCollector::MemoryBytes(const StatisticsRequest& request, size_t inputs,
                                          uint64_t elements) {
  const uint64_t cuts = CutsOf(request, elements);
  const uint64_t sums = (request.gram ? inputs * inputs : 0) + (request.l1 ? 2 * inputs : 0);
  return (cuts > 0 ? cuts * MagnitudeSelection::MemoryBytes(elements, request.l1) : 0) +
         sums * sizeof(ExactSum) + (request.joint != nullptr ? request.joint->MemoryBytes() : 0);
}

uint64_t StatisticsCollector::ScratchBytes(const StatisticsRequest& request, uint64_t elements) {
  const bool outliers = std::any_of(request.keep.begin(), request.keep.end(), CutsAbove);
  const uint64_t cuts = CutsOf(request, elements) > 0 ? (outliers ? 2 : 1) : 0;
  return cuts * MagnitudeSelection::kScratchBytes +
         (request.joint != nullptr ? request.joint->ScratchBytes() : 0);
}

bool StatisticsCollector::WantsInput(size_t input) const {
  return Trims(input) || (round_ == 0 && request_.l1);
}

template <typename T>
void StatisticsCollector::AddInput(Scratch& scratch, size_t input, T* delta, size_t n, uint64_t first_index,
                                   const kernels::Loops<T>& loops, const RankedKeep* ranked) const {
  if (selections_[input] != nullptr) selections_[input]->Count(scratch.magnitudes, delta, n, loops);
  if (outliers_[input] != nullptr) outliers_[input]->Count(scratch.outliers, delta, n, loops);
  if (Trims(input)) return;
  scratch.sums.resize(2);
  scratch.sums[0].Add(loops.sum_abs(delta, n));
  uint64_t no_equals = 0;
  KeepElements(request_.keep[input], Threshold{}, &no_equals, delta, n, first_index, loops);
  if (request_.keep[input].kind == KeepRule::Kind::kRanked) ranked->Apply(input, delta, n, first_index);
  scratch.sums[1].Add(loops.sum_abs(delta, n));
}

void StatisticsCollector::AddZeros(Scratch& scratch, size_t input, uint64_t n) const {
  if (selections_[input] != nullptr) selections_[input]->CountZeros(scratch.magnitudes, n);
  if (outliers_[input] != nullptr) outliers_[input]->CountZeros(scratch.outliers, n);
  if (Trims(input)) return;
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
  if (selections_[input] != nullptr) selections_[input]->Merge(scratch.magnitudes);
  if (outliers_[input] != nullptr) outliers_[input]->Merge(scratch.outliers);
  if (Trims(input)) return;
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

void StatisticsCollector::MergeJoint(Scratch& scratch) {
  const std::lock_guard lock(mutex_);
  joint_->Merge(scratch.joint);
}

void StatisticsCollector::FinishRound() {
  for (size_t i = 0; i < inputs_; ++i) {
    for (const auto* selection : {&selections_[i], &outliers_[i]}) {
      if (*selection != nullptr) (*selection)->FinishRound();
    }
  }
  if (Joint() != nullptr) Joint()->FinishRound();
  ++round_;
}

void StatisticsCollector::NoteL1(size_t input, TensorStatistics& result) const {
  const auto& below = selections_[input];
  const auto& above = outliers_[input];
  const double whole = below != nullptr   ? below->l1_whole()
                       : above != nullptr ? above->l1_whole()
                                          : whole_[input].Value();
  double kept = below != nullptr ? below->l1_kept() : above != nullptr ? whole : kept_[input].Value();
  if (above != nullptr) kept -= above->l1_kept();
  result.l1_whole.push_back(whole);
  result.l1_kept.push_back(kept);
}

TensorStatistics StatisticsCollector::Statistics() {
  TensorStatistics result;
  const auto found = [](const auto& selection) {
    return selection != nullptr ? selection->threshold() : Threshold{};
  };
  const bool has_outliers = std::any_of(outliers_.begin(), outliers_.end(),
                                        [](const auto& selection) { return selection != nullptr; });
  for (size_t i = 0; i < inputs_; ++i) {
    result.thresholds.push_back(found(selections_[i]));
    if (has_outliers) result.outliers.push_back(found(outliers_[i]));
    if (request_.l1) NoteL1(i, result);
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
  if (joint_ != nullptr) result.joint = joint_->TakeResult();
  return result;
}

namespace {

// Splits a run at a cut: calls upper(part, n) where elements that equal the threshold count as above it, and
// lower(part, n) where they do not.
template <typename T, typename Upper, typename Lower>
void SplitAtCut(const Threshold& threshold, uint64_t* equals_left, T* delta, size_t n, uint64_t first_index,
                const kernels::Loops<T>& loops, Upper upper, Lower lower) {
  size_t cut = 0;
  if (threshold.cut_index) {
    cut = static_cast<size_t>(
        std::clamp<int64_t>(static_cast<int64_t>(*threshold.cut_index) - static_cast<int64_t>(first_index), 0,
                            static_cast<int64_t>(n)));
  } else if (threshold.equal_kept == threshold.equal_total) {
    cut = n;
  } else if (*equals_left > 0) {
    const uint64_t equals = loops.count_equal(delta, n, threshold.key);
    cut = equals <= *equals_left ? n : PositionOfEqual(delta, n, threshold.key, *equals_left);
    *equals_left -= std::min(equals, *equals_left);
  }
  if (cut > 0) upper(delta, cut);
  if (cut < n) lower(delta + cut, n - cut);
}

}  // namespace

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
    case KeepRule::Kind::kRanked:  // by rows: see RankedKeep
      return;
    case KeepRule::Kind::kLargest:
      break;
  }
  SplitAtCut(
      threshold, equals_left, delta, n, first_index, loops,
      [&](T* part, size_t count) { loops.keep_at_least(part, threshold.key, count); },
      [&](T* part, size_t count) { loops.keep_at_least(part, threshold.key + 1, count); });
}

template <typename T>
void DropOutliers(const Threshold& threshold, uint64_t* equals_left, T* delta, size_t n, uint64_t first_index,
                  const kernels::Loops<T>& loops) {
  SplitAtCut(
      threshold, equals_left, delta, n, first_index, loops,
      [&](T* part, size_t count) { loops.keep_below(part, threshold.key, count); },
      [&](T* part, size_t count) { loops.keep_below(part, threshold.key + 1, count); });
}

template void StatisticsCollector::AddInput(Scratch&, size_t, float*, size_t, uint64_t,
                                            const kernels::Loops<float>&, const RankedKeep*) const;
template void StatisticsCollector::AddInput(Scratch&, size_t, double*, size_t, uint64_t,
                                            const kernels::Loops<double>&, const RankedKeep*) const;
template void StatisticsCollector::AddTile(Scratch&, const std::vector<float*>&, size_t,
                                           const kernels::Loops<float>&) const;
template void StatisticsCollector::AddTile(Scratch&, const std::vector<double*>&, size_t,
                                           const kernels::Loops<double>&) const;
template void KeepElements(const KeepRule&, const Threshold&, uint64_t*, float*, size_t, uint64_t,
                           const kernels::Loops<float>&);
template void KeepElements(const KeepRule&, const Threshold&, uint64_t*, double*, size_t, uint64_t,
                           const kernels::Loops<double>&);
template void DropOutliers(const Threshold&, uint64_t*, float*, size_t, uint64_t,
                           const kernels::Loops<float>&);
template void DropOutliers(const Threshold&, uint64_t*, double*, size_t, uint64_t,
                           const kernels::Loops<double>&);

}  // namespace mergepipe
