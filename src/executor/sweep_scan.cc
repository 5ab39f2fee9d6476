#include "executor/sweep_scan.h"

#include <cmath>
#include <cstring>
#include <semaphore>

#include "base/exact_sum.h"
#include "base/text.h"
#include "base/try.h"
#include "executor/buffers.h"
#include "executor/charged_read.h"
#include "executor/padding_means.h"
#include "executor/row_gather.h"
#include "executor/sweep_memory.h"
#include "executor/tensor_merge.h"

namespace mergepipe {
namespace {

constexpr uint64_t kSumTile = 2048;  // as diff sums, so that both say the same

// What one worker owns. Sums are exact, so that who adds what does not show.
struct Worker {
  std::span<std::byte> input, full, variant, gather;
  TileMemory tiles;
  StatisticsCollector::Scratch statistics;
  ExactSum weight, update;
  std::vector<ExactSum> errors;
};

// One variant of the current tensor; the first lane is the full read.
struct Lane {
  const TensorMask* mask = nullptr;
  size_t variant = 0;
  std::unique_ptr<TensorMerge> merge;
  std::vector<bool> whole;  // by source: nothing of it is left out
};

struct Current {
  size_t tensor = 0;
  uint64_t elements = 0;
  uint64_t item_elements = 0;
  uint64_t items = 0;
  bool resident = false;
  bool read = false;                                  // by an earlier pass
  std::vector<std::vector<const std::byte*>> stored;  // of a resident tensor, by item
  std::vector<Lane> lanes;
  std::unique_ptr<PaddingMeans> padding;  // null where no rows are padding
};

class SweepScan {
 public:
  SweepScan(const Plan& plan, std::span<const SweepMasks> variants, const kernels::Kernels& kernels,
            const ScanLimits& limits, Ledger& ledger)
      : plan_(plan),
        merge_(*plan.merge),
        variants_(variants),
        kernels_(kernels),
        limits_(limits),
        ledger_(ledger),
        places_(static_cast<std::ptrdiff_t>(limits.threads)) {}

  Result<SweepFindings> Run(ProgressCounters& progress) {
    memory_ = MP_TRY(DivideSweepMemory(plan_, variants_.size(), MaskBytes(), limits_));
    progress_ = &progress;
    const uint64_t worker_bytes = memory_.input_bytes + 2 * memory_.output_bytes + memory_.gather_bytes;
    auto pool = MP_TRY(BufferPool::Map(memory_.workers * worker_bytes + memory_.arena_bytes));
    workers_.resize(memory_.workers);
    for (Worker& worker : workers_) {
      worker.input = pool.Take(memory_.input_bytes);
      worker.full = pool.Take(memory_.output_bytes);
      worker.variant = pool.Take(memory_.output_bytes);
      worker.gather = pool.Take(memory_.gather_bytes);
      worker.errors.resize(variants_.size());
    }
    arena_ = pool.Take(memory_.arena_bytes);
    for (size_t t = 0; t < merge_.tensors.size(); ++t)
      progress.total_bytes += Passes(Look(t)) * TensorBytes(t);
    for (const Unit& unit : plan_.units) {
      for (const size_t tensor : unit.tensors)
        MP_TRY(ScanTensor(tensor));
    }
    return Findings();
  }

 private:
  // Stops the other workers, those that wait for their turn too, unless the item was finished.
  class FailureGuard {
   public:
    FailureGuard(SweepScan& scan, Current& now) : scan_(scan), now_(now) {}
    ~FailureGuard() {
      if (done_) return;
      scan_.stopped_ = true;
      for (const Lane& lane : now_.lanes) {
        if (lane.merge != nullptr) lane.merge->WakeAll();
      }
      if (now_.padding != nullptr) now_.padding->WakeAll();
    }
    FailureGuard(const FailureGuard&) = delete;
    FailureGuard& operator=(const FailureGuard&) = delete;
    void Done() { done_ = true; }

   private:
    SweepScan& scan_;
    Current& now_;
    bool done_ = false;
  };

  uint64_t MaskBytes() const {
    uint64_t bytes = 0;
    for (const SweepMasks& masks : variants_) {
      for (const TensorMask& mask : masks)
        bytes += mask.sources() * mask.blocks() * sizeof(uint16_t);
    }
    return bytes;
  }

  // --- one tensor
  // -----------------------------------------------------------------------------------------------

  // Types that are not computed with are in no norm.
  bool Counts(size_t t) const { return IsMergeable(merge_.tensors[t].dtype); }
  bool Merged(size_t t) const { return merge_.tensors[t].merged; }
  size_t Sources(size_t t) const { return Merged(t) ? merge_.tensors[t].sources.size() : 1; }
  uint64_t ElementBytes(size_t t, size_t source) const {
    return DTypeBytes(EntryOf(merge_, merge_.tensors[t].sources[source]).dtype);
  }

  uint64_t TensorBytes(size_t t) const {
    uint64_t bytes = 0;
    for (size_t s = 0; s < Sources(t); ++s)
      bytes += merge_.tensors[t].elements * ElementBytes(t, s);
    return bytes;
  }

  Current Look(size_t t) const {
    Current now{.tensor = t};
    if (!Counts(t)) return now;
    now.elements = merge_.tensors[t].elements;
    const uint64_t unit = Merged(t) ? 1 : DTypeBytes(merge_.tensors[t].dtype);
    now.item_elements = std::max<uint64_t>(1, SweepItemElements(plan_, t, memory_.item_bytes) / unit);
    now.items = (now.elements + now.item_elements - 1) / now.item_elements;
    now.lanes.emplace_back();
    for (size_t v = 0; v < variants_.size() && Merged(t); ++v) {
      if (!variants_[v][t].reads_all()) now.lanes.push_back({.mask = &variants_[v][t], .variant = v});
    }
    now.resident = plan_.tensors[t].rounds > 0 &&
                   now.items * SweepInputBytes(plan_, t, now.item_elements) <= memory_.arena_bytes;
    return now;
  }

  uint64_t Passes(const Current& now) const {
    if (now.items == 0) return 0;
    const uint64_t batches = (now.lanes.size() + memory_.states - 1) / memory_.states;
    return now.resident ? 1 : batches * plan_.tensors[now.tensor].rounds + 1;
  }

  Result<void> ScanTensor(size_t t) {
    Current now = Look(t);
    if (now.items == 0) return {};
    if (now.resident) now.stored.resize(now.items);
    const ResolvedTensor& tensor = merge_.tensors[t];
    if (PaddingMeans::Wanted(tensor)) now.padding = std::make_unique<PaddingMeans>(tensor, nullptr, kernels_);
    for (Lane& lane : now.lanes)
      lane.whole = PaddingMeans::WholeSources(lane.mask, tensor.sources.size());
    MP_TRY(Prepare(now));
    return Pass(now, [&](uint64_t number, ItemData& item, Worker& worker) {
      return Merged(t) ? Measure(now, number, item, worker) : MeasureCopy(now, item, worker);
    });
  }

  // Brings every lane to its constants: of as many at once as the memory holds the statistics of.
  Result<void> Prepare(Current& now) {
    const size_t rounds = plan_.tensors[now.tensor].rounds;
    for (size_t at = 0; at < now.lanes.size(); at += memory_.states) {
      const auto batch = std::span(now.lanes).subspan(at, std::min(memory_.states, now.lanes.size() - at));
      for (Lane& lane : batch)
        lane.merge = std::make_unique<TensorMerge>(plan_, now.tensor, kernels_);
      for (size_t round = 0; round < rounds; ++round) {
        const auto add = [&](uint64_t number, ItemData& item, Worker& worker) {
          AddStatistics(now, batch, number, item, worker);
          return Result<void>();
        };
        MP_TRY(Pass(now, add));
        for (Lane& lane : batch)
          lane.merge->FinishRound();
      }
    }
    return {};
  }

  void AddStatistics(const Current& now, std::span<Lane> batch, uint64_t number, ItemData& item,
                     Worker& worker) {
    for (Lane& lane : batch) {
      item.mask = lane.mask;
      FillPadding(now, lane, item);
      lane.merge->AddStatistics(number, item, places_, worker.statistics, worker.tiles,
                                [this] { return stopped_.load(); });
    }
  }

  // --- one pass
  // -------------------------------------------------------------------------------------------------

  // Calls body(number, item, worker) for every item. Signals are looked at inside, since an item that was
  // handed out has to run for those behind it to go on.
  template <typename Body>
  Result<void> Pass(Current& now, Body body) {
    const auto run = [&](size_t worker, uint64_t item) -> Result<void> {
      FailureGuard guard(*this, now);
      MP_TRY(RunItem(now, item, workers_[worker], body));
      guard.Done();
      return {};
    };
    MP_TRY(ParallelScan(now.items, std::min<size_t>(memory_.workers, now.items), nullptr, run));
    now.read = true;
    return {};
  }

  template <typename Body>
  Result<void> RunItem(Current& now, uint64_t number, Worker& worker, const Body& body) {
    if (limits_.stop_signal != nullptr && limits_.stop_signal->load() != 0)
      return Fail(Code::kInterrupted, "interrupted");
    const uint64_t first = number * now.item_elements;
    ItemData item{.first = first, .count = std::min(now.item_elements, now.elements - first), .sources = {}};
    if (now.resident && now.read) {
      item.sources = now.stored[number];
    } else {
      MP_TRY(ReadItem(now, number, worker, item));
    }
    return body(number, item, worker);
  }

  Result<void> ReadItem(Current& now, uint64_t number, Worker& worker, ItemData& item) {
    const uint64_t bytes = now.resident ? SweepInputBytes(plan_, now.tensor, now.item_elements) : 0;
    std::span<std::byte> buffer = now.resident ? arena_.subspan(number * bytes, bytes) : worker.input;
    for (size_t s = 0; s < Sources(now.tensor); ++s) {
      const uint64_t element = ElementBytes(now.tensor, s);
      const uint64_t size = item.count * element;
      item.sources.push_back(
          MP_TRY(ReadSource(now, s, item, buffer.first(Source::BufferBytes(size)), worker)));
      buffer = buffer.subspan(Source::BufferBytes(size));
      progress_->done_bytes += size;
    }
    if (!now.read && now.padding != nullptr)
      now.padding->Add(number, item, [this] { return stopped_.load(); });
    if (!now.read) MP_TRY(CheckFinite(now, item, worker));
    if (now.resident) now.stored[number] = item.sources;
    return {};
  }

  Result<const std::byte*> ReadSource(const Current& now, size_t source, const ItemData& item,
                                      std::span<std::byte> buffer, Worker& worker) {
    const TensorSource& from = merge_.tensors[now.tensor].sources[source];
    const uint64_t element = ElementBytes(now.tensor, source);
    if (from.rows == nullptr) {
      const auto range =
          MP_TRY(ReadCharged(plan_, from, item.first * element, item.count * element, buffer, ledger_));
      return range.data;
    }
    const RowGather gather(plan_, now.tensor, kernels_, ledger_);
    MP_TRY(gather.Gather(source, {item.first, item.count},
                         {.reference = item.sources.empty() ? nullptr : item.sources[0],
                          .out = buffer.data(),
                          .scratch = worker.gather}));
    return buffer.data();
  }

  // What padding is depends on what is left out. The buffers are the scan's own.
  void FillPadding(const Current& now, const Lane& lane, const ItemData& item) const {
    if (now.padding == nullptr) return;
    std::vector<std::byte*> places;
    for (const std::byte* source : item.sources)
      places.push_back(const_cast<std::byte*>(source));
    now.padding->Fill(item, lane.whole, places);
  }

  Result<void> CheckFinite(const Current& now, const ItemData& item, Worker& worker) {
    const ComputeTurn turn(places_);
    const auto bad = now.lanes[0].merge->compute()->FindNonFinite(item, worker.tiles);
    if (!bad) return {};
    const TensorSource& source = merge_.tensors[now.tensor].sources[*bad->source];
    return Fail(Code::kInvalidInput,
                Format("{}: tensor '{}' is not finite at element {}; repair the model",
                       merge_.models[source.model].name, EntryOf(merge_, source).name, bad->element));
  }

  // --- measuring
  // ------------------------------------------------------------------------------------------------

  Result<void> Measure(Current& now, uint64_t number, ItemData& item, Worker& worker) {
    const DType dtype = merge_.tensors[now.tensor].dtype;
    MP_TRY(Compute(now, now.lanes[0], number, item, worker, worker.full));
    {
      const ComputeTurn turn(places_);
      AddWeights(dtype, worker.full.data(), item.count, worker);
      const DType base = EntryOf(merge_, merge_.tensors[now.tensor].sources[0]).dtype;
      AddDifference({dtype, worker.full.data()}, {base, item.sources[0]}, item.count, worker.update);
    }
    for (Lane& lane : std::span(now.lanes).subspan(1)) {
      MP_TRY(Compute(now, lane, number, item, worker, worker.variant));
      const ComputeTurn turn(places_);
      AddDifference({dtype, worker.full.data()}, {dtype, worker.variant.data()}, item.count,
                    worker.errors[lane.variant]);
    }
    return {};
  }

  // A copy is the same whatever is left out.
  Result<void> MeasureCopy(const Current& now, const ItemData& item, Worker& worker) {
    const ComputeTurn turn(places_);
    AddWeights(merge_.tensors[now.tensor].dtype, item.sources[0], item.count, worker);
    return {};
  }

  Result<void> Compute(const Current& now, Lane& lane, uint64_t number, ItemData& item, Worker& worker,
                       std::span<std::byte> out) {
    item.mask = lane.mask;
    FillPadding(now, lane, item);
    TensorMerge& merge = *lane.merge;
    auto equals_left =
        merge.ShareEquals(number, item, places_, worker.tiles, [this] { return stopped_.load(); });
    const ComputeTurn turn(places_);
    const auto bad = merge.compute()->Apply(item, merge.constants(), merge.statistics(), equals_left,
                                            out.data(), worker.tiles);
    if (!bad) return {};
    return Fail(Code::kInvalidInput,
                Format("tensor '{}': the merge{} makes a value that is not finite at element {} (stored as "
                       "{}); check the weights",
                       merge.tensor().name, lane.mask == nullptr ? "" : " under a budget", bad->element,
                       DTypeName(merge.tensor().dtype)));
  }

  struct Values {
    DType dtype;
    const std::byte* data;
    const std::byte* At(uint64_t element) const { return data + element * DTypeBytes(dtype); }
  };

  void AddWeights(DType dtype, const std::byte* stored, uint64_t count, Worker& worker) const {
    const Values values{dtype, stored};
    double wide[kSumTile];
    for (uint64_t at = 0; at < count; at += kSumTile) {
      const auto n = static_cast<size_t>(std::min(kSumTile, count - at));
      kernels_.f64.widen(dtype, values.At(at), wide, n);
      for (double& value : std::span(wide, n))
        value = std::isfinite(value) ? value : 0;  // infinities that all inputs share
      worker.weight.Add(kernels_.f64.dot(wide, wide, n));
    }
  }

  void AddDifference(Values a, Values b, uint64_t count, ExactSum& sum) const {
    double wide_a[kSumTile], wide_b[kSumTile], delta[kSumTile];
    for (uint64_t at = 0; at < count; at += kSumTile) {
      const auto n = static_cast<size_t>(std::min(kSumTile, count - at));
      if (a.dtype == b.dtype && std::memcmp(a.At(at), b.At(at), n * DTypeBytes(a.dtype)) == 0) continue;
      kernels_.f64.widen(a.dtype, a.At(at), wide_a, n);
      kernels_.f64.widen(b.dtype, b.At(at), wide_b, n);
      kernels_.f64.subtract(wide_a, wide_b, delta, n);
      sum.Add(kernels_.f64.dot(delta, delta, n));
    }
  }

  SweepFindings Findings() const {
    ExactSum weight, update;
    std::vector<ExactSum> errors(variants_.size());
    for (const Worker& worker : workers_) {
      weight.Merge(worker.weight);
      update.Merge(worker.update);
      for (size_t v = 0; v < errors.size(); ++v)
        errors[v].Merge(worker.errors[v]);
    }
    SweepFindings found{.weight_norm = std::sqrt(weight.Value()),
                        .update_norm = std::sqrt(update.Value()),
                        .error_norms = {}};
    for (const ExactSum& error : errors)
      found.error_norms.push_back(std::sqrt(error.Value()));
    return found;
  }

  const Plan& plan_;
  const ResolvedMerge& merge_;
  const std::span<const SweepMasks> variants_;
  const kernels::Kernels& kernels_;
  const ScanLimits& limits_;
  Ledger& ledger_;
  ProgressCounters* progress_ = nullptr;
  std::counting_semaphore<> places_;
  std::atomic<bool> stopped_{false};
  SweepMemory memory_;
  std::vector<Worker> workers_;
  std::span<std::byte> arena_;
};

}  // namespace

Deviation SweepFindings::Of(double error) const {
  Deviation deviation;
  if (weight_norm > 0) deviation.of_weights = error / weight_norm;
  if (update_norm > 0) deviation.of_update = error / update_norm;
  return deviation;
}

Result<SweepFindings> ScanSweep(const Plan& full, std::span<const SweepMasks> variants,
                                const kernels::Kernels& kernels, const ScanLimits& limits, Ledger& ledger,
                                ProgressCounters& progress) {
  return SweepScan(full, variants, kernels, limits, ledger).Run(progress);
}

}  // namespace mergepipe
