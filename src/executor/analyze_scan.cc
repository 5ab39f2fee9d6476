#include "executor/analyze_scan.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "base/text.h"
#include "base/try.h"
#include "executor/buffers.h"
#include "executor/tensor_analysis.h"

namespace mergepipe {
namespace {

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

// Buffers, scratch and state of a pass, per worker and for each tensor in flight.
struct PassMemory {
  uint64_t base_bytes = 0;  // buffer
  uint64_t expert_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t Total(uint64_t workers) const {
    // Items are handed out in order, so beside one tensor for each worker only the next can be begun.
    return workers * (base_bytes + expert_bytes + scratch_bytes) + (workers + 1) * state_bytes;
  }
};

PassMemory MemoryOf(const std::vector<AnalysedTensor>& tensors) {
  PassMemory memory;
  for (const AnalysedTensor& tensor : tensors) {
    const uint64_t elements = std::min(PieceElements(tensor), tensor.elements);
    memory.base_bytes = std::max(memory.base_bytes, Source::BufferBytes(elements * tensor.element_bytes));
    for (size_t s = 0; s < tensor.streams.size(); ++s)
      memory.expert_bytes =
          std::max(memory.expert_bytes, Source::BufferBytes(elements * StreamElementBytes(tensor, s)));
    const uint64_t sums =
        tensor.streams.size() * (sizeof(BlockSums) + tensor.block_bytes / kLeafBytes * sizeof(Digest128));
    memory.scratch_bytes = std::max(memory.scratch_bytes, sums + kernels::kHighBuckets * sizeof(uint32_t));
    memory.state_bytes = std::max(memory.state_bytes, TensorAnalysis::MemoryBytes(tensor));
  }
  return memory;
}

struct AnalyzeItem {
  size_t tensor = 0;
  uint64_t first = 0;
  uint64_t elements = 0;
};

// One pass over tensors.
class Pass {
 public:
  Pass(const std::vector<AnalysedTensor>& tensors, const kernels::Kernels& kernels, Ledger& ledger,
       ProgressCounters& progress, const FindingSink& sink)
      : tensors_(tensors),
        kernels_(kernels),
        ledger_(ledger),
        progress_(progress),
        sink_(sink),
        flights_(tensors.size()) {
    for (size_t t = 0; t < tensors.size(); ++t)
      AddItems(t);
  }

  Result<void> Run(const PassMemory& memory, size_t workers, const ScanLimits& limits) {
    auto pool = MP_TRY(BufferPool::Map(workers * (memory.base_bytes + memory.expert_bytes)));
    std::vector<Worker> own;
    for (size_t w = 0; w < workers; ++w) {
      const auto base = pool.Take(memory.base_bytes);
      own.push_back({base, pool.Take(memory.expert_bytes), RunScratch(false)});
    }
    return ParallelScan(items_.size(), workers, limits.stop_signal,
                        [&](size_t worker, uint64_t item) { return ScanOne(items_[item], own[worker]); });
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
    const uint64_t step = std::max(PieceElements(tensor), tensor.block_elements());
    uint64_t first = 0;
    do {  // a tensor without elements has an item, too
      items_.push_back({number, first, std::min(step, tensor.elements - first)});
      ++flights_[number].items_left;
      first += step;
    } while (first < tensor.elements);
  }

  Result<void> ScanOne(const AnalyzeItem& item, Worker& worker) {
    TensorAnalysis& analysis = Enter(item.tensor);
    TensorAnalysis::Part part(analysis, kernels_, worker.scratch);
    const AnalysedTensor& tensor = tensors_[item.tensor];
    const uint64_t step = PieceElements(tensor);
    for (uint64_t at = 0; at < item.elements; at += step) {
      const uint64_t count = std::min(step, item.elements - at);
      MP_TRY(ScanPiece(tensor, item.first + at, count, worker, part));
    }
    part.Finish();
    return Leave(item.tensor);
  }

  Result<void> ScanPiece(const AnalysedTensor& tensor, uint64_t first, uint64_t count, Worker& worker,
                         TensorAnalysis::Part& part) {
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
  }

  Result<StoredPiece> ReadPiece(const AnalysedTensor& tensor, size_t stream, uint64_t first, uint64_t count,
                                std::span<std::byte> buffer) {
    const AnalysedStream& from = tensor.streams[stream];
    const uint64_t element = StreamElementBytes(tensor, stream);
    const ReadRange range = MP_TRY(from.source->Read(from.start + first * element, count * element, buffer));
    ledger_.Charge(from.checkpoint->account(), from.purpose, count * element);
    ledger_.Charge(from.checkpoint->account(), Purpose::kAlignment, range.alignment_bytes);
    progress_.done_bytes += count * element;
    return StoredPiece{range.data, first, count};
  }

  TensorAnalysis& Enter(size_t tensor) {
    const std::lock_guard lock(mutex_);
    auto& analysis = flights_[tensor].analysis;
    if (analysis == nullptr) analysis = std::make_unique<TensorAnalysis>(tensors_[tensor]);
    return *analysis;
  }

  Result<void> Leave(size_t tensor) {
    Flight& flight = flights_[tensor];
    if (--flight.items_left > 0) return {};
    const std::lock_guard lock(sink_mutex_);
    auto findings = flight.analysis->Findings();
    flight.analysis.reset();
    return sink_(std::move(findings));
  }

  const std::vector<AnalysedTensor>& tensors_;
  const kernels::Kernels& kernels_;
  Ledger& ledger_;
  ProgressCounters& progress_;
  const FindingSink& sink_;
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

// As many workers as a disk likes and memory allows; 0 where there is not enough for one.
size_t AffordableWorkers(const PassMemory& memory, const ScanLimits& limits) {
  size_t workers = std::max(limits.threads, kPreferredWorkers);
  while (workers > 0 && memory.Total(workers) > limits.memory_bytes)
    --workers;
  return workers;
}

}  // namespace

bool IsComparable(const TensorEntry& a, const TensorEntry* base) {
  return base != nullptr && a.shape == base->shape && IsMergeable(a.dtype) && IsMergeable(base->dtype);
}

Result<void> ScanForCatalog(const AnalyzeJob& job, const kernels::Kernels& kernels, const ScanLimits& limits,
                            Ledger& ledger, ProgressCounters& progress, const FindingSink& sink) {
  const size_t experts = std::max<size_t>(job.experts.size(), 1);
  size_t wave = experts;
  PassMemory memory;
  for (;; wave = (wave + 1) / 2) {
    memory = MemoryOf(Matching(job, 0, wave).Take());
    if (wave == 1 || AffordableWorkers(memory, limits) > 1) break;
  }
  std::vector<std::vector<AnalysedTensor>> passes;
  for (size_t first = 0; first < experts; first += wave) {
    passes.push_back(Matching(job, first, std::min(first + wave, experts)).Take());
    progress.total_bytes += BytesToRead(passes.back());
  }
  for (const auto& tensors : passes) {
    memory = MemoryOf(tensors);
    const size_t workers = AffordableWorkers(memory, limits);
    if (workers == 0) {
      return Fail(Code::kUsage, Format("--memory {} is too little: {} are needed",
                                       HumanBytes(limits.memory_bytes), HumanBytes(memory.Total(1))));
    }
    MP_TRY(Pass(tensors, kernels, ledger, progress, sink).Run(memory, workers, limits));
  }
  return {};
}

}  // namespace mergepipe
