#include "executor/threshold_search.h"

#include <algorithm>
#include <bit>

namespace mergepipe {
namespace {

// Calls visit(delta, n, first element, loops) for each tile of a run, in the type that deltas are computed
// in.
template <typename T, typename Visit>
void ForTiles(const StoredRun& run, const kernels::Loops<T>& loops, const Visit& visit) {
  alignas(64) T delta[kTileElements];
  for (uint64_t at = 0; at < run.elements; at += kTileElements) {
    const auto n = static_cast<size_t>(std::min(kTileElements, run.elements - at));
    loops.delta(run.dtype, run.data + at * DTypeBytes(run.dtype), run.base_dtype,
                run.base + at * DTypeBytes(run.base_dtype), delta, n);
    visit(static_cast<const T*>(delta), n, run.first + at, loops);
  }
}

template <typename Visit>
void ForTiles(const StoredRun& run, const kernels::Kernels& kernels, const Visit& visit) {
  if (IsWide(run.dtype, run.base_dtype)) {
    ForTiles<double>(run, kernels.f64, visit);
  } else {
    ForTiles<float>(run, kernels.f32, visit);
  }
}

template <typename T>
uint32_t KeyOf(T delta) {
  return std::bit_cast<uint32_t>(static_cast<float>(delta)) & 0x7fffffffu;
}

// One past the `which`-th (from 1) element with this key.
template <typename T>
size_t EndOfEqual(const T* delta, size_t n, uint32_t key, uint64_t which) {
  for (size_t i = 0; i < n; ++i) {
    if (KeyOf(delta[i]) == key && --which == 0) return i + 1;
  }
  return n;
}

}  // namespace

ThresholdSearch::ThresholdSearch(uint64_t elements, const std::vector<uint64_t>& kept,
                                 const Magnitudes<uint64_t>& magnitudes) {
  for (const uint64_t count : kept) {
    MagnitudeSelection& selection = selections_.emplace_back(elements, count, true);
    thresholds_.push_back({.kept = count});
    if (MagnitudeSelection::Rounds(elements) == 1) continue;  // small: all in one round
    selection.TakeHigh(magnitudes.counts, magnitudes.low_sums);
    selection.FinishRound();
  }
}

uint64_t ThresholdSearch::MemoryBytes(size_t thresholds) {
  constexpr uint64_t kScratchBytes = kernels::kHighBuckets * sizeof(uint32_t);
  return thresholds * (2 * kernels::kHighBuckets * sizeof(uint64_t) + kScratchBytes);
}

void ThresholdSearch::Count(const StoredRun& run, const kernels::Kernels& kernels, Scratch& scratch) const {
  scratch.resize(selections_.size());
  ForTiles(run, kernels, [&](const auto* delta, size_t n, uint64_t, const auto& loops) {
    for (size_t d = 0; d < selections_.size(); ++d)
      selections_[d].Count(scratch[d], delta, n, loops);
  });
}

void ThresholdSearch::Merge(Scratch& scratch) {
  for (size_t d = 0; d < scratch.size(); ++d)
    selections_[d].Merge(scratch[d]);
}

void ThresholdSearch::FinishCounting() {
  for (size_t d = 0; d < selections_.size(); ++d) {
    selections_[d].FinishRound();
    thresholds_[d].threshold = selections_[d].threshold();
    thresholds_[d].l1_whole = selections_[d].l1_whole();
    thresholds_[d].l1_kept = selections_[d].l1_kept();
  }
}

std::vector<uint64_t> ThresholdSearch::CountEquals(const StoredRun& run,
                                                   const kernels::Kernels& kernels) const {
  std::vector<uint64_t> equals(thresholds_.size());
  ForTiles(run, kernels, [&](const auto* delta, size_t n, uint64_t, const auto& loops) {
    for (size_t d = 0; d < equals.size(); ++d)
      equals[d] += loops.count_equal(delta, n, thresholds_[d].threshold.key);
  });
  return equals;
}

template <typename T>
void ThresholdSearch::LocateTile(const T* delta, size_t n, uint64_t first, const kernels::Loops<T>& loops,
                                 std::vector<uint64_t>& before) {
  for (size_t d = 0; d < thresholds_.size(); ++d) {
    Threshold& threshold = thresholds_[d].threshold;
    if (threshold.cut_index) continue;
    const uint64_t equals = loops.count_equal(delta, n, threshold.key);
    const uint64_t wanted = threshold.equal_kept - before[d];
    if (wanted <= equals) threshold.cut_index = first + EndOfEqual(delta, n, threshold.key, wanted);
    before[d] += equals;
  }
}

void ThresholdSearch::Locate(const StoredRun& run, const kernels::Kernels& kernels,
                             std::vector<uint64_t>& before) {
  ForTiles(run, kernels, [&](const auto* delta, size_t n, uint64_t first, const auto& loops) {
    LocateTile(delta, n, first, loops, before);
  });
}

bool ThresholdSearch::CutsWithin(const std::vector<uint64_t>& before,
                                 const std::vector<uint64_t>& equals) const {
  for (size_t d = 0; d < thresholds_.size(); ++d) {
    const uint64_t kept = thresholds_[d].threshold.equal_kept;
    if (kept > before[d] && kept <= before[d] + equals[d]) return true;
  }
  return false;
}

}  // namespace mergepipe
