#include "executor/analyze_scan.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>

#include "base/text.h"
#include "base/try.h"
#include "executor/buffers.h"
#include "executor/tensor_analysis.h"
#include "executor/threshold_search.h"

namespace mergepipe {
namespace {

// AnalysedTensor is what one pass reads of one name, and Pass works through many of them; ScanForCatalog
// divides a job into passes that fit into memory.

constexpr uint64_t kPieceBytes = 1u << 20;  // of the base: what is read at once
constexpr size_t kPreferredWorkers = 8;     // that keep a disk busy

AnalysedStream StreamOf(const AnalysedCheckpoint& from, const TensorPlace& place, Purpose purpose) {
  const Shard& shard = from.checkpoint->shards()[place.shard];
  const TensorEntry& entry = from.checkpoint->entry(place);
  return {.checkpoint = from.checkpoint,
          .entry = &entry,
          .source = shard.source.get(),
          .start = shard.header.data_start + entry.begin,
          .stamps = from.stamps,
          .purpose = purpose,
          .kept = {}};
}

// Lays out what is read in one pass over the base for some of the experts.
class Matching {
 public:
  Matching(const AnalyzeJob& job, size_t first_expert, size_t last_expert)
      : job_(job), first_(first_expert), last_(last_expert) {
    for (const TensorWish& wish : job.tensors)
      Add(wish);
  }
  std::vector<AnalysedTensor> Take() { return std::move(tensors_); }

 private:
  void Add(const TensorWish& wish) {
    const auto at = job_.base.checkpoint->tensors().find(wish.name);
    const bool in_base = at != job_.base.checkpoint->tensors().end();
    const bool wants_base = wish.base && in_base && first_ == 0;
    AnalysedTensor group{
        .streams = {}, .compared = true, .base_stamps = job_.base.stamps, .block_bytes = job_.block_bytes};
    if (in_base) group.streams.push_back(StreamOf(job_.base, at->second, Purpose::kBaseData));
    for (const ExpertWish& expert : wish.experts)
      AddExpert(wish.name, expert, in_base ? group.streams[0].entry : nullptr, group);
    if (!in_base) return;
    group.streams[0].wanted = wants_base;
    const TensorEntry& base = *group.streams[0].entry;
    if (wants_base && !IsMergeable(base.dtype)) return AddAlone(std::move(group.streams[0]));
    if (group.streams.size() == 1 && !wants_base) return;
    group.elements = base.elements;
    group.element_bytes = DTypeBytes(base.dtype);
    tensors_.push_back(std::move(group));
  }

  void AddExpert(const std::string& name, const ExpertWish& wish, const TensorEntry* base,
                 AnalysedTensor& group) {
    if (wish.expert < first_ || wish.expert >= last_) return;
    const AnalysedCheckpoint& expert = job_.experts[wish.expert];
    AnalysedStream stream = StreamOf(expert, expert.checkpoint->tensors().at(name), Purpose::kExpertData);
    if (!IsComparable(*stream.entry, base)) return AddAlone(std::move(stream));
    stream.kept = wish.kept;
    group.streams.push_back(std::move(stream));
  }

  void AddAlone(AnalysedStream stream) {
    AnalysedTensor alone{
        .streams = {}, .base_stamps = "", .block_bytes = job_.block_bytes, .elements = stream.entry->bytes()};
    alone.streams.push_back(std::move(stream));
    tensors_.push_back(std::move(alone));
  }

  const AnalyzeJob& job_;
  size_t first_, last_;
  std::vector<AnalysedTensor> tensors_;
};

uint64_t StreamElementBytes(const AnalysedTensor& tensor, size_t stream) {
  return tensor.compared ? DTypeBytes(tensor.streams[stream].entry->dtype) : 1;
}

uint64_t PieceElements(const AnalysedTensor& tensor) {
  return kPieceBytes / tensor.element_bytes;
}

size_t Thresholds(const AnalysedTensor& tensor) {
  size_t most = 0;
  for (const AnalysedStream& stream : tensor.streams)
    most = std::max(most, stream.kept.size());
  return most;
}

// Buffers, scratch and state of a pass, per worker and for each tensor in flight.
struct PassMemory {
  uint64_t base_bytes = 0;  // of one piece in a buffer
  uint64_t expert_bytes = 0;
  uint64_t pieces = 1;  // that a buffer holds
  uint64_t scratch_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t Total(uint64_t workers) const {
    // Items are handed out in order, so beside one tensor for each worker only the next can be begun.
    return workers * (pieces * (base_bytes + expert_bytes) + scratch_bytes) + (workers + 1) * state_bytes;
  }
};

void Enlarge(PassMemory& memory, const AnalysedTensor& tensor, bool whole) {
  const uint64_t elements = std::min(PieceElements(tensor), tensor.elements);
  memory.base_bytes = std::max(memory.base_bytes, Source::BufferBytes(elements * tensor.element_bytes));
  for (size_t s = 0; s < tensor.streams.size(); ++s) {
    memory.expert_bytes =
        std::max(memory.expert_bytes, Source::BufferBytes(elements * StreamElementBytes(tensor, s)));
  }
  if (whole && tensor.elements > 0)
    memory.pieces = std::max(memory.pieces, (tensor.elements - 1) / PieceElements(tensor) + 1);
  const uint64_t sums =
      tensor.streams.size() * (sizeof(BlockSums) + tensor.block_bytes / kLeafBytes * sizeof(Digest128));
  const uint64_t counts =
      kernels::kHighBuckets * (sizeof(uint32_t) + (tensor.wants_thresholds() ? sizeof(uint64_t) : 0));
  memory.scratch_bytes =
      std::max(memory.scratch_bytes, sums + counts + ThresholdSearch::MemoryBytes(Thresholds(tensor)));
  memory.state_bytes = std::max(memory.state_bytes, TensorAnalysis::MemoryBytes(tensor));
}

PassMemory MemoryOf(const std::vector<AnalysedTensor>& tensors, bool whole) {
  PassMemory memory;
  for (const AnalysedTensor& tensor : tensors)
    Enlarge(memory, tensor, whole);
  return memory;
}

struct AnalyzeItem {
  size_t tensor = 0;
  uint64_t first = 0;
  uint64_t elements = 0;
};

// What the passes of a scan share.
struct PassContext {
  const kernels::Kernels& kernels;
  const ScanLimits& limits;
  Ledger& ledger;
  ProgressCounters& progress;
  const FindingSink& sink;
};

// One pass over tensors: in items of some blocks, or (`whole`) with a tensor in one piece of memory, so that
// thresholds are found there. Else tensors whose thresholds are wanted are read again for them.
class Pass {
 public:
  Pass(const std::vector<AnalysedTensor>& tensors, bool whole, const PassContext& context)
      : tensors_(tensors), whole_(whole), context_(context), flights_(tensors.size()) {
    for (size_t t = 0; t < tensors.size(); ++t)
      AddItems(t);
  }

  Result<void> Run(const PassMemory& memory, size_t workers) {
    memory_ = memory;
    auto pool = MP_TRY(BufferPool::Map(workers * memory.pieces * (memory.base_bytes + memory.expert_bytes)));
    const bool sums =
        std::any_of(tensors_.begin(), tensors_.end(), [](const auto& t) { return t.wants_thresholds(); });
    for (size_t w = 0; w < workers; ++w) {
      const auto base = pool.Take(memory.pieces * memory.base_bytes);
      workers_.push_back({base, pool.Take(memory.pieces * memory.expert_bytes), RunScratch(sums)});
    }
    MP_TRY(ForItems([this](const AnalyzeItem& item, Worker& worker) { return ScanItem(item, worker); }));
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (flights_[t].analysis != nullptr) MP_TRY(SearchAgain(t));
    }
    return {};
  }

 private:
  struct Worker {
    std::span<std::byte> base, expert;
    RunScratch scratch;
  };
  // A tensor on its way: made with its first item, gone with its last.
  struct Flight {
    std::unique_ptr<TensorAnalysis> analysis;
    std::atomic<uint64_t> items_left{0};
  };

  void AddItems(size_t number) {
    const AnalysedTensor& tensor = tensors_[number];
    const uint64_t step = whole_ ? std::max<uint64_t>(1, tensor.elements)
                                 : std::max(PieceElements(tensor), tensor.block_elements());
    uint64_t first = 0;
    do {  // a tensor without elements has an item, too
      items_.push_back({number, first, std::min(step, tensor.elements - first)});
      ++flights_[number].items_left;
      first += step;
    } while (first < tensor.elements);
  }

  Result<void> ForItems(const std::function<Result<void>(const AnalyzeItem&, Worker&)>& body) {
    return ParallelScan(items_.size(), workers_.size(), context_.limits.stop_signal,
                        [&](size_t worker, uint64_t item) { return body(items_[item], workers_[worker]); });
  }

  Result<void> ScanItem(const AnalyzeItem& item, Worker& worker) {
    TensorAnalysis& analysis = Enter(item.tensor);
    {
      TensorAnalysis::Part part(analysis, context_.kernels, worker.scratch);
      MP_TRY(whole_ ? ScanWhole(analysis, worker, part) : ScanPieces(item, worker, part));
      part.Finish();
    }
    return Leave(item.tensor);
  }

  Result<void> ScanPieces(const AnalyzeItem& item, Worker& worker, TensorAnalysis::Part& part) {
    const AnalysedTensor& tensor = tensors_[item.tensor];
    return ForPieces(item, [&](uint64_t first, uint64_t count) -> Result<void> {
      const StoredPiece base = MP_TRY(ReadPiece(tensor, 0, first, count, worker.base));
      if (!tensor.compared) {
        part.AddBytes(base);
        return {};
      }
      part.AddBase(base);
      for (size_t s = 1; s < tensor.streams.size(); ++s) {
        const StoredPiece expert = MP_TRY(ReadPiece(tensor, s, first, count, worker.expert));
        part.AddExpert(s, base, expert);
      }
      return {};
    });
  }

  template <typename Body>
  Result<void> ForPieces(const AnalyzeItem& item, const Body& body) const {
    const uint64_t step = PieceElements(tensors_[item.tensor]);
    for (uint64_t at = 0; at < item.elements; at += step)
      MP_TRY(body(item.first + at, std::min(step, item.elements - at)));
    return {};
  }

  // Reads a whole tensor, piece by piece, and hands each on as it comes.
  template <typename Body>
  Result<std::vector<StoredPiece>> ReadWhole(const AnalysedTensor& tensor, size_t stream,
                                             std::span<std::byte> buffer, const Body& body) {
    std::vector<StoredPiece> pieces;
    const uint64_t slot = buffer.size() / memory_.pieces;
    const AnalyzeItem all{static_cast<size_t>(&tensor - tensors_.data()), 0, tensor.elements};
    const auto done = ForPieces(all, [&](uint64_t first, uint64_t count) -> Result<void> {
      const auto own = buffer.subspan(pieces.size() * slot, slot);
      const StoredPiece piece = MP_TRY(ReadPiece(tensor, stream, first, count, own));
      body(piece, pieces.size());
      pieces.push_back(piece);
      return {};
    });
    if (!done) return Fail(done.error());
    return pieces;
  }

  Result<void> ScanWhole(TensorAnalysis& analysis, Worker& worker, TensorAnalysis::Part& part) {
    const AnalysedTensor& tensor = analysis.tensor();
    const auto base = MP_TRY(
        ReadWhole(tensor, 0, worker.base, [&](const StoredPiece& piece, size_t) { part.AddBase(piece); }));
    for (size_t s = 1; s < tensor.streams.size(); ++s) {
      const auto expert =
          MP_TRY(ReadWhole(tensor, s, worker.expert, [&](const StoredPiece& piece, size_t number) {
            part.AddExpert(s, base[number], piece);
          }));
      if (!tensor.streams[s].kept.empty() && analysis.finite(s)) Search(analysis, s, base, expert);
    }
    return {};
  }

  // Finds thresholds in memory.
  void Search(TensorAnalysis& analysis, size_t stream, const std::vector<StoredPiece>& base,
              const std::vector<StoredPiece>& expert) const {
    const AnalysedTensor& tensor = analysis.tensor();
    ThresholdSearch search(tensor.elements, tensor.streams[stream].kept, analysis.magnitudes(stream));
    ThresholdSearch::Scratch scratch;
    for (size_t p = 0; p < base.size(); ++p)
      search.Count(RunOf(tensor, stream, base[p], expert[p]), context_.kernels, scratch);
    search.Merge(scratch);
    search.FinishCounting();
    std::vector<uint64_t> before(tensor.streams[stream].kept.size());
    for (size_t p = 0; p < base.size(); ++p)
      search.Locate(RunOf(tensor, stream, base[p], expert[p]), context_.kernels, before);
    analysis.AddThresholds(stream, search.thresholds());
  }

  // Finds thresholds of a tensor that is too large for memory.
  Result<void> SearchAgain(size_t number) {
    TensorAnalysis& analysis = *flights_[number].analysis;
    for (size_t s = 1; s < tensors_[number].streams.size(); ++s) {
      if (!tensors_[number].streams[s].kept.empty() && analysis.finite(s)) MP_TRY(SearchAgain(analysis, s));
    }
    return Hand(number);
  }

  Result<void> SearchAgain(TensorAnalysis& analysis, size_t stream) {
    const AnalysedTensor& tensor = analysis.tensor();
    ThresholdSearch search(tensor.elements, tensor.streams[stream].kept, analysis.magnitudes(stream));
    MP_TRY(CountAgain(search, stream));
    const auto equals = MP_TRY(EqualsByItem(search, stream));
    std::vector<uint64_t> before(search.thresholds().size());
    for (size_t i = 0; i < items_.size(); ++i) {
      std::vector<uint64_t> inside = before;
      if (search.CutsWithin(before, equals[i])) {
        MP_TRY(ForRuns(items_[i], stream, workers_[0],
                       [&](const StoredRun& run) { search.Locate(run, context_.kernels, inside); }));
      }
      AddTo(before, equals[i]);
    }
    analysis.AddThresholds(stream, search.thresholds());
    return {};
  }

  Result<void> CountAgain(ThresholdSearch& search, size_t stream) {
    auto done = ForItems([&](const AnalyzeItem& item, Worker& worker) -> Result<void> {
      ThresholdSearch::Scratch scratch;
      MP_TRY(ForRuns(item, stream, worker,
                     [&](const StoredRun& run) { search.Count(run, context_.kernels, scratch); }));
      const std::lock_guard lock(mutex_);
      search.Merge(scratch);
      return {};
    });
    if (done) search.FinishCounting();
    return done;
  }

  Result<std::vector<std::vector<uint64_t>>> EqualsByItem(const ThresholdSearch& search, size_t stream) {
    std::vector<std::vector<uint64_t>> equals(items_.size(),
                                              std::vector<uint64_t>(search.thresholds().size()));
    MP_TRY(ForItems([&](const AnalyzeItem& item, Worker& worker) {
      auto& sums = equals[static_cast<size_t>(&item - items_.data())];
      return ForRuns(item, stream, worker,
                     [&](const StoredRun& run) { AddTo(sums, search.CountEquals(run, context_.kernels)); });
    }));
    return equals;
  }

  static void AddTo(std::vector<uint64_t>& sums, const std::vector<uint64_t>& more) {
    std::transform(sums.begin(), sums.end(), more.begin(), sums.begin(), std::plus<>());
  }

  template <typename Body>
  Result<void> ForRuns(const AnalyzeItem& item, size_t stream, Worker& worker, const Body& body) {
    const AnalysedTensor& tensor = tensors_[item.tensor];
    return ForPieces(item, [&](uint64_t first, uint64_t count) -> Result<void> {
      const StoredPiece base = MP_TRY(ReadPiece(tensor, 0, first, count, worker.base));
      const StoredPiece expert = MP_TRY(ReadPiece(tensor, stream, first, count, worker.expert));
      body(RunOf(tensor, stream, base, expert));
      return {};
    });
  }

  static StoredRun RunOf(const AnalysedTensor& tensor, size_t stream, const StoredPiece& base,
                         const StoredPiece& expert) {
    return {.base_dtype = tensor.streams[0].entry->dtype,
            .dtype = tensor.streams[stream].entry->dtype,
            .base = base.data,
            .data = expert.data,
            .first = base.first,
            .elements = base.elements,
            .leaf_elements = tensor.leaf_elements()};
  }

  Result<StoredPiece> ReadPiece(const AnalysedTensor& tensor, size_t stream, uint64_t first, uint64_t count,
                                std::span<std::byte> buffer) {
    const AnalysedStream& from = tensor.streams[stream];
    const uint64_t element = StreamElementBytes(tensor, stream);
    const ReadRange range = MP_TRY(from.source->Read(from.start + first * element, count * element, buffer));
    context_.ledger.Charge(from.checkpoint->account(), from.purpose, count * element);
    context_.ledger.Charge(from.checkpoint->account(), Purpose::kAlignment, range.alignment_bytes);
    context_.progress.done_bytes += count * element;
    return StoredPiece{range.data, first, count};
  }

  TensorAnalysis& Enter(size_t tensor) {
    const std::lock_guard lock(mutex_);
    auto& analysis = flights_[tensor].analysis;
    if (analysis == nullptr) analysis = std::make_unique<TensorAnalysis>(tensors_[tensor]);
    return *analysis;
  }

  Result<void> Leave(size_t tensor) {
    const bool searches_again = !whole_ && tensors_[tensor].wants_thresholds();
    if (--flights_[tensor].items_left > 0 || searches_again) return {};
    return Hand(tensor);
  }

  Result<void> Hand(size_t tensor) {
    const std::lock_guard lock(sink_mutex_);
    auto findings = flights_[tensor].analysis->Findings();
    flights_[tensor].analysis.reset();
    return context_.sink(std::move(findings));
  }

  const std::vector<AnalysedTensor>& tensors_;
  const bool whole_;
  const PassContext& context_;
  PassMemory memory_;
  std::vector<Worker> workers_;
  std::vector<Flight> flights_;
  std::vector<AnalyzeItem> items_;
  std::mutex mutex_;
  std::mutex sink_mutex_;
};

uint64_t BytesToRead(const std::vector<AnalysedTensor>& tensors) {
  uint64_t bytes = 0;
  for (const AnalysedTensor& tensor : tensors) {
    for (const AnalysedStream& stream : tensor.streams)
      bytes += stream.entry->bytes();
  }
  return bytes;
}

size_t PreferredWorkers(const ScanLimits& limits) {
  return std::max(limits.threads, kPreferredWorkers);
}

// As many workers as a disk likes and memory allows; 0 where there is not enough for one.
size_t AffordableWorkers(const PassMemory& memory, const ScanLimits& limits) {
  size_t workers = PreferredWorkers(limits);
  while (workers > 0 && memory.Total(workers) > limits.memory_bytes)
    --workers;
  return workers;
}

Result<void> RunPass(const std::vector<AnalysedTensor>& tensors, bool whole, const PassContext& context) {
  if (tensors.empty()) return {};
  const PassMemory memory = MemoryOf(tensors, whole);
  const size_t workers = AffordableWorkers(memory, context.limits);
  if (workers == 0) {
    return Fail(Code::kUsage, Format("--memory {} is too little: {} are needed",
                                     HumanBytes(context.limits.memory_bytes), HumanBytes(memory.Total(1))));
  }
  return Pass(tensors, whole, context).Run(memory, workers);
}

// The tensors without thresholds in one pass; the others in memory, by as many workers as they leave room
// for; those that are too large one by one.
Result<void> RunPasses(std::vector<AnalysedTensor> tensors, const PassContext& context) {
  const auto plain = std::stable_partition(tensors.begin(), tensors.end(),
                                           [](const AnalysedTensor& t) { return !t.wants_thresholds(); });
  std::vector<AnalysedTensor> rest(std::make_move_iterator(plain), std::make_move_iterator(tensors.end()));
  tensors.erase(plain, tensors.end());
  MP_TRY(RunPass(tensors, false, context));
  for (size_t workers = PreferredWorkers(context.limits); workers > 0; workers /= 2) {
    const auto large = std::stable_partition(rest.begin(), rest.end(), [&](const AnalysedTensor& t) {
      return MemoryOf({t}, true).Total(workers) <= context.limits.memory_bytes;
    });
    const std::vector<AnalysedTensor> fitting(std::make_move_iterator(rest.begin()),
                                              std::make_move_iterator(large));
    rest.erase(rest.begin(), large);
    MP_TRY(RunPass(fitting, true, context));
  }
  context.progress.total_bytes += 2 * BytesToRead(rest);  // once to count, once to locate
  for (const AnalysedTensor& tensor : rest)
    MP_TRY(RunPass({tensor}, false, context));
  return {};
}

}  // namespace

bool IsComparable(const TensorEntry& a, const TensorEntry* base) {
  return base != nullptr && a.shape == base->shape && IsMergeable(a.dtype) && IsMergeable(base->dtype);
}

Result<void> ScanForCatalog(const AnalyzeJob& job, const kernels::Kernels& kernels, const ScanLimits& limits,
                            Ledger& ledger, ProgressCounters& progress, const FindingSink& sink) {
  const PassContext context{kernels, limits, ledger, progress, sink};
  const size_t experts = std::max<size_t>(job.experts.size(), 1);
  size_t wave = experts;
  while (wave > 1 && AffordableWorkers(MemoryOf(Matching(job, 0, wave).Take(), false), limits) < 2)
    wave = (wave + 1) / 2;
  std::vector<std::vector<AnalysedTensor>> waves;
  for (size_t first = 0; first < experts; first += wave) {
    waves.push_back(Matching(job, first, std::min(first + wave, experts)).Take());
    progress.total_bytes += BytesToRead(waves.back());
  }
  for (auto& tensors : waves)
    MP_TRY(RunPasses(std::move(tensors), context));
  return {};
}

}  // namespace mergepipe
