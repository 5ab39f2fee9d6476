#include "executor/diff_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/exact_sum.h"
#include "base/text.h"
#include "base/try.h"
#include "executor/buffers.h"
#include "executor/scan.h"
#include "planner/plan.h"

namespace mergepipe {
namespace {

constexpr uint64_t kItemElements = 1u << 18;
constexpr uint64_t kTile = 2048;
constexpr size_t kStreams = 3;  // a, b, base

// What is added up for one pair; sums are exact, so that threads do not show.
struct Totals {
  uint64_t differing = 0;
  double max_abs = 0;
  ExactSum difference, weight, update;
};

struct Pair {
  const TensorEntry* entries[kStreams] = {nullptr, nullptr, nullptr};
  const Source* sources[kStreams] = {nullptr, nullptr, nullptr};
  uint64_t starts[kStreams] = {0, 0, 0};
  bool by_bytes = false;
  Totals totals;
};

struct DiffItem {
  size_t pair = 0;
  uint64_t first = 0;
  uint64_t count = 0;
};

class DiffScan {
 public:
  DiffScan(const Checkpoint& a, const Checkpoint& b, const Checkpoint* base, const kernels::Kernels& kernels)
      : checkpoints_{&a, &b, base}, loops_(kernels.f64) {}

  Result<DiffFindings> Run(const ScanLimits& limits, ProgressCounters& progress) {
    Match();
    const uint64_t stream_bytes = Source::BufferBytes(kItemElements * 8);
    const size_t workers = MP_TRY(ScanWorkers(limits, kStreams * stream_bytes));
    auto pool = MP_TRY(BufferPool::Map(workers * kStreams * stream_bytes));
    std::vector<std::span<std::byte>> buffers;
    for (size_t i = 0; i < workers * kStreams; ++i)
      buffers.push_back(pool.Take(stream_bytes));
    for (const DiffItem& item : items_)
      progress.total_bytes += Bytes(item, 0) + Bytes(item, 1);
    MP_TRY(ParallelScan(items_.size(), workers, limits.stop_signal, [&](size_t worker, uint64_t item) {
      return ScanOne(items_[item], std::span(buffers).subspan(worker * kStreams, kStreams), progress);
    }));
    for (const Pair& pair : pairs_)
      found_.tensors.push_back(Finish(pair));
    return std::move(found_);
  }

 private:
  void Match() {
    for (const auto& [name, place] : checkpoints_[0]->tensors()) {
      if (checkpoints_[1]->Find(name) == nullptr) {
        found_.only_in_a.push_back(name);
        continue;
      }
      Pair pair;
      for (size_t s = 0; s < kStreams; ++s)
        Locate(name, s, pair);
      if (checkpoints_[2] != nullptr && pair.entries[2] == nullptr) found_.missing_in_base.push_back(name);
      const TensorEntry& a = *pair.entries[0];
      const TensorEntry& b = *pair.entries[1];
      pair.by_bytes = !IsMergeable(a.dtype) || !IsMergeable(b.dtype);
      const bool comparable = a.shape == b.shape && (!pair.by_bytes || a.dtype == b.dtype);
      const uint64_t elements = pair.by_bytes ? a.bytes() : a.elements;
      for (uint64_t first = 0; comparable && first < elements; first += kItemElements)
        items_.push_back({pairs_.size(), first, std::min(kItemElements, elements - first)});
      pairs_.push_back(pair);
    }
    for (const auto& [name, place] : checkpoints_[1]->tensors()) {
      if (checkpoints_[0]->Find(name) == nullptr) found_.only_in_b.push_back(name);
    }
  }

  void Locate(const std::string& name, size_t stream, Pair& pair) const {
    const Checkpoint* checkpoint = checkpoints_[stream];
    if (checkpoint == nullptr) return;
    const auto at = checkpoint->tensors().find(name);
    if (at == checkpoint->tensors().end()) return;
    const TensorEntry& entry = checkpoint->entry(at->second);
    if (stream == 2 && (entry.shape != pair.entries[0]->shape || !IsMergeable(entry.dtype))) return;
    const Shard& shard = checkpoint->shards()[at->second.shard];
    pair.entries[stream] = &entry;
    pair.sources[stream] = shard.source.get();
    pair.starts[stream] = shard.header.data_start + entry.begin;
  }

  uint64_t ElementBytes(const Pair& pair, size_t stream) const {
    return pair.by_bytes ? 1 : DTypeBytes(pair.entries[stream]->dtype);
  }
  uint64_t Bytes(const DiffItem& item, size_t stream) const {
    return item.count * ElementBytes(pairs_[item.pair], stream);
  }

  Result<void> ScanOne(const DiffItem& item, std::span<const std::span<std::byte>> buffers,
                       ProgressCounters& progress) {
    Pair& pair = pairs_[item.pair];
    const std::byte* data[kStreams] = {nullptr, nullptr, nullptr};
    for (size_t s = 0; s < kStreams; ++s) {
      if (pair.sources[s] == nullptr) continue;
      const uint64_t element = ElementBytes(pair, s);
      data[s] = MP_TRY(pair.sources[s]->Read(pair.starts[s] + item.first * element, item.count * element,
                                             buffers[s]))
                    .data;
    }
    Totals totals = pair.by_bytes ? CompareBytes(pair, item, data) : CompareValues(pair, item, data);
    progress.done_bytes += Bytes(item, 0) + Bytes(item, 1);
    const std::lock_guard lock(mutex_);
    pair.totals.differing += totals.differing;
    // NaN wins: a maximum that hides it would be a lie.
    if (!(totals.max_abs <= pair.totals.max_abs)) pair.totals.max_abs = totals.max_abs;
    pair.totals.difference.Merge(totals.difference);
    pair.totals.weight.Merge(totals.weight);
    pair.totals.update.Merge(totals.update);
    return {};
  }

  static Totals CompareBytes(const Pair& pair, const DiffItem& item, const std::byte* const* data) {
    Totals totals;
    const uint64_t step = std::max<uint64_t>(1, DTypeBits(pair.entries[0]->dtype) / 8);
    for (uint64_t at = 0; at < item.count; at += step)
      totals.differing +=
          std::memcmp(data[0] + at, data[1] + at, std::min(step, item.count - at)) != 0 ? 1 : 0;
    return totals;
  }

  Totals CompareValues(const Pair& pair, const DiffItem& item, const std::byte* const* data) const {
    Totals totals;
    double a[kTile], b[kTile], base[kTile], delta[kTile];
    for (uint64_t at = 0; at < item.count; at += kTile) {
      const auto n = static_cast<size_t>(std::min(kTile, item.count - at));
      Widen(pair, 0, data, at, n, a);
      Widen(pair, 1, data, at, n, b);
      loops_.subtract(a, b, delta, n);
      totals.difference.Add(loops_.dot(delta, delta, n));
      totals.weight.Add(loops_.dot(a, a, n));
      for (size_t k = 0; k < n; ++k) {
        totals.differing += std::bit_cast<uint64_t>(a[k]) != std::bit_cast<uint64_t>(b[k]) ? 1 : 0;
        if (!(std::fabs(delta[k]) <= totals.max_abs)) totals.max_abs = std::fabs(delta[k]);
      }
      if (data[2] == nullptr) continue;
      Widen(pair, 2, data, at, n, base);
      loops_.subtract(a, base, delta, n);
      totals.update.Add(loops_.dot(delta, delta, n));
    }
    return totals;
  }

  void Widen(const Pair& pair, size_t stream, const std::byte* const* data, uint64_t at, size_t n,
             double* out) const {
    loops_.widen(pair.entries[stream]->dtype, data[stream] + at * DTypeBytes(pair.entries[stream]->dtype),
                 out, n);
  }

  static TensorDifference Finish(const Pair& pair) {
    const TensorEntry& a = *pair.entries[0];
    const TensorEntry& b = *pair.entries[1];
    TensorDifference result{.name = a.name, .elements = a.elements, .note = {}};
    if (a.shape != b.shape) {
      result.comparable = false;
      result.note = Format("shape {} against {}", ShapeText(a.shape), ShapeText(b.shape));
      result.differing_elements = a.elements;
      return result;
    }
    if (pair.by_bytes)
      result.note = a.dtype == b.dtype ? Format("{}: compared by its bytes", DTypeName(a.dtype))
                                       : Format("{} against {}", DTypeName(a.dtype), DTypeName(b.dtype));
    if (pair.by_bytes && a.dtype != b.dtype) result.differing_elements = a.elements;
    if (!pair.by_bytes || a.dtype == b.dtype) result.differing_elements = pair.totals.differing;
    result.comparable = !pair.by_bytes || a.dtype == b.dtype;
    result.has_base = pair.entries[2] != nullptr;
    result.max_abs = pair.totals.max_abs;
    result.difference_norm = std::sqrt(pair.totals.difference.Value());
    result.weight_norm = std::sqrt(pair.totals.weight.Value());
    result.update_norm = std::sqrt(pair.totals.update.Value());
    return result;
  }

  const Checkpoint* checkpoints_[kStreams];
  const kernels::Loops<double>& loops_;
  std::vector<Pair> pairs_;
  std::vector<DiffItem> items_;
  std::mutex mutex_;
  DiffFindings found_;
};

}  // namespace

Result<DiffFindings> ScanDifference(const Checkpoint& a, const Checkpoint& b, const Checkpoint* base,
                                    const kernels::Kernels& kernels, const ScanLimits& limits,
                                    ProgressCounters& progress) {
  return DiffScan(a, b, base, kernels).Run(limits, progress);
}

}  // namespace mergepipe
