#include "executor/item_compute.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mergepipe {

/// The loops of ItemCompute in one work type.
template <typename T>
class ItemCompute::Typed {
 public:
  Typed(const ItemCompute& owner, TileMemory& memory)
      : o_(owner), loops_(owner.kernels_.template Of<T>()), ranked_(memory.ranked) {
    const size_t tiles = o_.tensor_.inputs.size() + 5;
    memory.storage.resize(std::max(memory.storage.size(), tiles * kTileElements));
    T* next = reinterpret_cast<T*>(memory.storage.data());
    const auto take = [&] { return std::exchange(next, next + kTileElements); };
    base_ = take();
    out_ = take();
    for (T*& scratch : scratch_)
      scratch = take();
    spare_ = take();
    for (size_t i = 0; i < o_.tensor_.inputs.size(); ++i)
      inputs_.push_back(take());
  }

  void AddStatistics(const ItemData& item, StatisticsCollector& collector,
                     StatisticsCollector::Scratch& scratch) {
    Rank(item);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!collector.WantsInput(i)) continue;
      ForTiles(item, [&](uint64_t at, size_t n) {
        if (IsZeroDelta(item, i, at)) return collector.AddZeros(scratch, i, n);
        LoadInput(item, i, at, n);
        collector.AddInput(scratch, i, inputs_[i], n, item.first + at, loops_, &ranked_);
      });
      collector.MergeInput(scratch, i);
    }
    if (collector.WantsTiles()) {
      ForFiniteTiles(item, [&](uint64_t, size_t n) { collector.AddTile(scratch, inputs_, n, loops_); });
      collector.MergeTiles(scratch);
    }
    JointStatistics* joint = collector.Joint();
    if (joint == nullptr) return;
    ForFiniteTiles(item, [&](uint64_t at, size_t n) {
      joint->Add(
          scratch.joint,
          StatisticsTile<T>{
              .n = n, .first = item.first + at, .inputs = inputs_, .scratch = scratch_[0], .loops = &loops_});
    });
    collector.MergeJoint(scratch);
  }

  std::vector<uint64_t> CountEquals(const ItemData& item, const TensorStatistics& statistics) {
    const std::vector<Threshold> cuts = statistics.Cuts();
    std::vector<uint64_t> equals(cuts.size(), 0);
    const size_t by_input = cuts.size() - (statistics.joint.threshold ? 1 : 0);
    for (size_t c = 0; c < by_input; ++c) {
      if (!cuts[c].CutsAmongEquals()) continue;
      const size_t i = c % inputs_.size();
      ForTiles(item, [&](uint64_t at, size_t n) {
        if (IsZeroDelta(item, i, at)) return;
        LoadInput(item, i, at, n);
        equals[c] += loops_.count_equal(inputs_[i], n, cuts[c].key);
      });
    }
    if (!statistics.joint.threshold || !cuts.back().CutsAmongEquals()) return equals;
    ForTiles(item, [&](uint64_t at, size_t n) {
      LoadAll(item, at, n);
      Score(scratch_[0], n);
      equals.back() += loops_.count_equal(scratch_[0], n, cuts.back().key);
    });
    return equals;
  }

  std::optional<NonFinite> Apply(const ItemData& item, const Constants& constants,
                                 const TensorStatistics& statistics, std::vector<uint64_t>& equals_left,
                                 std::byte* out) {
    std::optional<NonFinite> bad;
    Rank(item);
    ForTiles(item, [&](uint64_t at, size_t n) {
      std::byte* stored = out + at * DTypeBytes(o_.tensor_.dtype);
      if (KeepsBase(item, at)) {
        std::memcpy(stored, Stored(item, 0, at), n * DTypeBytes(o_.tensor_.dtype));
        return;
      }
      LoadAll(item, at, n);
      for (size_t i = 0; i < inputs_.size(); ++i)
        Sparsify(i, constants, statistics, equals_left, item.first + at, n);
      if (statistics.joint.threshold)
        Select(*statistics.joint.threshold, &equals_left.back(), item.first + at, n);
      Tile<T> tile{.n = n,
                   .first = item.first + at,
                   .base = base_,
                   .inputs = inputs_,
                   .out = out_,
                   .scratch = {scratch_[0], scratch_[1]},
                   .loops = &loops_};
      Run(constants, tile);
      if (!loops_.all_finite(base_, n)) RestoreShared(item, at, n);
      loops_.narrow(o_.tensor_.dtype, out_, stored, n);
      if (!bad) bad = FindMade(stored, item.first + at, n);
    });
    return bad;
  }

  std::optional<NonFinite> FindNonFinite(const ItemData& item) {
    std::optional<NonFinite> bad;
    ForTiles(item, [&](uint64_t at, size_t n) {
      for (size_t s = 0; s < item.sources.size() && !bad; ++s) {
        const std::byte* stored = Stored(item, s, at);
        if (stored == nullptr || loops_.all_stored_finite(o_.dtypes_[s], stored, n)) continue;
        Load(item, s, at, n, spare_);
        for (size_t k = 0; k < n && !bad; ++k) {
          if (!std::isfinite(spare_[k]) && !IsSharedInfinity(item, at + k, spare_[k]))
            bad = NonFinite{s, item.first + at + k};
        }
      }
    });
    return bad;
  }

 private:
  template <typename Body>
  void ForTiles(const ItemData& item, Body body) const {
    for (uint64_t at = 0; at < item.count;) {
      const size_t n = TileFrom(item, at);
      body(at, n);
      at += n;
    }
  }

  // Tiles end at the same elements however a tensor is cut into items: at multiples of the tile, and of
  // groups that are ranked.
  size_t TileFrom(const ItemData& item, uint64_t at) const {
    const uint64_t first = item.first + at;
    uint64_t n = std::min(o_.tile_elements_ - first % o_.tile_elements_, item.count - at);
    if (o_.ranks_) n = std::min(n, o_.groups_.elements() - first % o_.groups_.elements());
    return static_cast<size_t>(n);
  }

  // Decides which elements of the item stay, for the inputs whose elements are ranked.
  void Rank(const ItemData& item) {
    if (!o_.ranks_) return;
    ranked_.Begin(o_.groups_, item.first, item.count, inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const KeepRule& rule = o_.tensor_.request.keep[i];
      if (rule.kind != KeepRule::Kind::kRanked) continue;
      ForTiles(item, [&](uint64_t at, size_t n) {
        LoadInput(item, i, at, n);
        ranked_.Take(rule, i, inputs_[i], n);
      });
    }
  }

  // With every input loaded; what is not finite counts as 0.
  template <typename Body>
  void ForFiniteTiles(const ItemData& item, Body body) {
    ForTiles(item, [&](uint64_t at, size_t n) {
      LoadAll(item, at, n);
      for (T* input : inputs_)
        ReplaceNonFinite(input, n);
      body(at, n);
    });
  }

  // Null where the block is left out. Tiles never cross blocks.
  const std::byte* Stored(const ItemData& item, size_t source, uint64_t at) const {
    const size_t from = item.mask == nullptr ? source : item.mask->FromAt(source, item.first + at);
    return from == TensorMask::kOmitted ? nullptr : item.sources[from] + at * DTypeBytes(o_.dtypes_[source]);
  }

  bool IsZeroDelta(const ItemData& item, size_t input, uint64_t at) const {
    return o_.tensor_.facts.domain == Domain::kDeltas &&
           Stored(item, o_.tensor_.inputs[input], at) == nullptr;
  }

  // Where all deltas are zero a method that works on deltas gives the base's bits.
  bool KeepsBase(const ItemData& item, uint64_t at) const {
    if (item.mask == nullptr || o_.tensor_.dtype != o_.dtypes_[0]) return false;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!IsZeroDelta(item, i, at)) return false;
    }
    return true;
  }

  // What is left out agrees with the reference.
  void Load(const ItemData& item, size_t source, uint64_t at, size_t n, T* out) const {
    const std::byte* stored = Stored(item, source, at);
    if (stored == nullptr) return Load(item, 0, at, n, out);
    loops_.widen(o_.dtypes_[source], stored, out, n);
  }
  void LoadBase(const ItemData& item, uint64_t at, size_t n) { Load(item, 0, at, n, base_); }

  // Values, or deltas straight from the stored values of input and base.
  void LoadInput(const ItemData& item, size_t input, uint64_t at, size_t n) {
    const size_t source = o_.tensor_.inputs[input];
    if (o_.tensor_.facts.domain == Domain::kValues) return Load(item, source, at, n, inputs_[input]);
    const std::byte* stored = Stored(item, source, at);
    if (stored == nullptr) {
      std::fill_n(inputs_[input], n, T{0});
      return;
    }
    loops_.delta(o_.dtypes_[source], stored, o_.dtypes_[0], Stored(item, 0, at), inputs_[input], n);
  }

  void LoadAll(const ItemData& item, uint64_t at, size_t n) {
    LoadBase(item, at, n);
    for (size_t i = 0; i < inputs_.size(); ++i)
      LoadInput(item, i, at, n);
  }

  void Sparsify(size_t input, const Constants& constants, const TensorStatistics& statistics,
                std::vector<uint64_t>& equals_left, uint64_t first, size_t n) {
    if (o_.tensor_.request.keep.empty()) return;
    KeepElements(o_.tensor_.request.keep[input], statistics.thresholds[input], &equals_left[input],
                 inputs_[input], n, first, loops_);
    if (o_.tensor_.request.keep[input].kind == KeepRule::Kind::kRanked)
      ranked_.Apply(input, inputs_[input], n, first);
    if (o_.tensor_.request.keep[input].outliers > 0)
      DropOutliers(statistics.outliers[input], &equals_left[inputs_.size() + input], inputs_[input], n, first,
                   loops_);
    if (!constants.rescale.empty() && constants.rescale[input] != 1)
      loops_.scale(inputs_[input], static_cast<T>(constants.rescale[input]), n);
  }

  void Score(float* out, size_t n) const { o_.merge_.method->score32(inputs_, out, n); }
  void Score(double* out, size_t n) const { o_.merge_.method->score64(inputs_, out, n); }

  // Elements whose score is not among the largest go in every input.
  void Select(const Threshold& threshold, uint64_t* equals_left, uint64_t first, size_t n) {
    T* score = scratch_[0];
    Score(score, n);
    SelectByScore<T>(threshold, equals_left, score, inputs_, n, first, loops_);
  }

  void Run(const Constants& constants, Tile<float>& tile) const {
    o_.merge_.method->apply32(constants, tile);
  }
  void Run(const Constants& constants, Tile<double>& tile) const {
    o_.merge_.method->apply64(constants, tile);
  }

  // An infinity of the base (a mask in a buffer, say) that all inputs share is no number to compute with: it
  // stays.
  void RestoreShared(const ItemData& item, uint64_t at, size_t n) {
    for (size_t k = 0; k < n; ++k) {
      if (std::isinf(base_[k]) && IsSharedInfinity(item, at + k, base_[k])) out_[k] = base_[k];
    }
  }

  bool IsSharedInfinity(const ItemData& item, uint64_t at, T value) const {
    if (!std::isinf(value)) return false;
    for (size_t s = 0; s < item.sources.size(); ++s) {
      T other;
      Load(item, s, at, 1, &other);
      if (other != value) return false;
    }
    return true;
  }

  void ReplaceNonFinite(T* values, size_t n) const {
    if (loops_.all_finite(values, n)) return;
    for (size_t k = 0; k < n; ++k) {
      if (!std::isfinite(values[k])) values[k] = T{0};
    }
  }

  // Rounding to a 16-bit type can make an infinity too, so the stored values are looked at.
  std::optional<NonFinite> FindMade(const std::byte* stored, uint64_t first, size_t n) {
    if (loops_.all_stored_finite(o_.tensor_.dtype, stored, n)) return std::nullopt;
    loops_.widen(o_.tensor_.dtype, stored, spare_, n);
    for (size_t k = 0; k < n; ++k) {
      if (!std::isfinite(spare_[k]) && std::isfinite(base_[k])) return NonFinite{std::nullopt, first + k};
    }
    return std::nullopt;
  }

  const ItemCompute& o_;
  const kernels::Loops<T>& loops_;
  RankedKeep& ranked_;
  T *base_, *out_, *spare_;
  T* scratch_[2];
  std::vector<T*> inputs_;
};

ItemCompute::ItemCompute(const ResolvedMerge& merge, const ResolvedTensor& tensor,
                         const kernels::Kernels& kernels)
    : merge_(merge), tensor_(tensor), kernels_(kernels), wide_(tensor.dtype == DType::kF64) {
  for (const TensorSource& source : tensor.sources) {
    dtypes_.push_back(EntryOf(merge, source).dtype);
    wide_ = wide_ || dtypes_.back() == DType::kF64;
  }
  tile_elements_ = std::min(kTileElements, kLeafBytes / DTypeBytes(dtypes_[0]));
  ranks_ = RanksElements(tensor);
  groups_ = RankGroups::Of(tensor.facts);
}

void ItemCompute::AddStatistics(const ItemData& item, StatisticsCollector& collector,
                                StatisticsCollector::Scratch& scratch, TileMemory& memory) const {
  if (wide_) return Typed<double>(*this, memory).AddStatistics(item, collector, scratch);
  Typed<float>(*this, memory).AddStatistics(item, collector, scratch);
}

std::vector<uint64_t> ItemCompute::CountEquals(const ItemData& item, const TensorStatistics& statistics,
                                               TileMemory& memory) const {
  return wide_ ? Typed<double>(*this, memory).CountEquals(item, statistics)
               : Typed<float>(*this, memory).CountEquals(item, statistics);
}

std::optional<NonFinite> ItemCompute::Apply(const ItemData& item, const Constants& constants,
                                            const TensorStatistics& statistics,
                                            std::vector<uint64_t>& equals_left, std::byte* out,
                                            TileMemory& memory) const {
  return wide_ ? Typed<double>(*this, memory).Apply(item, constants, statistics, equals_left, out)
               : Typed<float>(*this, memory).Apply(item, constants, statistics, equals_left, out);
}

std::optional<NonFinite> ItemCompute::FindNonFinite(const ItemData& item, TileMemory& memory) const {
  return wide_ ? Typed<double>(*this, memory).FindNonFinite(item)
               : Typed<float>(*this, memory).FindNonFinite(item);
}

}  // namespace mergepipe
