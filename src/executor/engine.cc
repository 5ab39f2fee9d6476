#include "executor/engine.h"

#include <condition_variable>
#include <mutex>
#include <semaphore>
#include <thread>

#include "base/text.h"
#include "base/try.h"
#include "executor/buffers.h"
#include "executor/charged_read.h"
#include "executor/row_gather.h"
#include "executor/schedule.h"
#include "executor/tensor_task.h"

namespace mergepipe {
namespace {

// What one worker owns.
struct WorkerMemory {
  std::span<std::byte> slot;
  TileMemory tiles;
  StatisticsCollector::Scratch statistics;
};

struct Step {
  size_t segment = 0;
  uint64_t item = 0;
};

class Engine {
 public:
  Engine(const Plan& plan, const EngineOptions& options, Staging& staging, Ledger& ledger)
      : plan_(plan),
        merge_(*plan.merge),
        options_(options),
        staging_(staging),
        ledger_(ledger),
        compute_(static_cast<std::ptrdiff_t>(plan.options.threads)) {}

  Result<EngineResult> Run(std::vector<std::optional<TensorRecord>> finished) {
    MP_TRY(Open(std::move(finished)));
    auto pool = MP_TRY(
        BufferPool::Map(plan_.memory.workers * plan_.memory.slot_bytes + 2 * plan_.memory.arena_bytes));
    std::vector<WorkerMemory> memory(plan_.memory.workers);
    for (WorkerMemory& worker : memory)
      worker.slot = pool.Take(plan_.memory.slot_bytes);
    for (auto& arena : arenas_)
      arena = pool.Take(plan_.memory.arena_bytes);
    {
      std::vector<std::jthread> threads;
      threads.reserve(memory.size());
      for (WorkerMemory& worker : memory)
        threads.emplace_back([this, &worker] { Work(worker); });
    }
    if (error_) return Fail(std::move(*error_));
    return std::move(result_);
  }

 private:
  Result<void> Open(std::vector<std::optional<TensorRecord>> finished) {
    const size_t count = merge_.tensors.size();
    result_.records.resize(count);
    std::vector<bool> done(count);
    for (size_t i = 0; i < count; ++i) {
      done[i] = finished[i].has_value();
      if (done[i]) result_.records[i] = std::move(*finished[i]);
    }
    for (size_t u = 0; u < plan_.units.size(); ++u) {
      const Unit& unit = plan_.units[u];
      files_.push_back(MP_TRY(staging_.CreateFile(unit.file_name, unit.layout.file_size)));
      MP_TRY(files_.back()->Write(0, std::as_bytes(std::span(unit.layout.prefix))));
    }
    places_.resize(count);
    for (size_t u = 0; u < plan_.units.size(); ++u) {
      for (size_t i = 0; i < plan_.units[u].tensors.size(); ++i)
        places_[plan_.units[u].tensors[i]] = {u, plan_.units[u].layout.offsets[i]};
    }
    schedule_ = MakeSchedule(plan_, done);
    tasks_.resize(count);
    left_.resize(schedule_.size());
    phases_done_.resize(count, 0);
    tensors_left_.resize(plan_.units.size(), 0);
    for (size_t s = 0; s < schedule_.size(); ++s) {
      const Segment& segment = schedule_[s];
      left_[s] = plan_.tensors[segment.tensor].items;
      if (segment.phase == 0 && left_[s] > 0) ++tensors_left_[places_[segment.tensor].unit];
    }
    for (size_t u = 0; u < plan_.units.size(); ++u) {
      if (tensors_left_[u] == 0) MP_TRY(files_[u]->Sync());  // nothing left to do in it
    }
    return {};
  }

  // --- order
  // ------------------------------------------------------------------------------------------------

  void Work(WorkerMemory& memory) {
    try {
      while (const auto step = NextStep()) {
        auto done = RunStep(*step, memory);
        if (!done) return Stop(std::move(done).error());
        done = FinishStep(*step);
        if (!done) return Stop(std::move(done).error());
      }
    } catch (const std::bad_alloc&) {
      Stop(Error{Code::kTransient, "memory ran out; lower --memory or free some", {}});
    }
  }

  // Takes the next item and waits until it may run.
  std::optional<Step> NextStep() {
    std::unique_lock lock(mutex_);
    while (!stopped_ && next_.segment < schedule_.size() && next_.item == left_at_start(next_.segment)) {
      if (left_at_start(next_.segment) == 0) FinishEmpty(next_.segment);
      next_ = {next_.segment + 1, 0};
    }
    if (stopped_ || next_.segment == schedule_.size()) return std::nullopt;
    const Step step = next_;
    ++next_.item;
    const Segment& segment = schedule_[step.segment];
    if (tasks_[segment.tensor] == nullptr)
      tasks_[segment.tensor] = std::make_unique<TensorTask>(plan_, segment.tensor, *options_.kernels);
    ready_.wait(lock, [&] { return stopped_ || MayRun(segment); });
    if (options_.stop_signal != nullptr && options_.stop_signal->load() != 0) {
      StopLocked(Error{Code::kInterrupted, "interrupted", {}});
    }
    if (stopped_) return std::nullopt;
    return step;
  }

  uint64_t left_at_start(size_t segment) const { return plan_.tensors[schedule_[segment].tensor].items; }

  bool MayRun(const Segment& segment) const {
    const bool arena_free =
        !segment.waits_for || phases_done_[*segment.waits_for] > plan_.tensors[*segment.waits_for].rounds;
    return phases_done_[segment.tensor] >= segment.phase && arena_free;
  }

  // A tensor without elements has no item that could finish it.
  void FinishEmpty(size_t segment) {
    const size_t tensor = schedule_[segment].tensor;
    TensorTask task(plan_, tensor, *options_.kernels);
    phases_done_[tensor] = 1;
    result_.records[tensor] = task.Record();
  }

  Result<void> FinishStep(const Step& step) {
    const Segment& segment = schedule_[step.segment];
    std::unique_lock lock(mutex_);
    if (--left_[step.segment] > 0) return {};
    TensorTask& task = *tasks_[segment.tensor];
    lock.unlock();
    const bool last = segment.phase == task.plan().rounds;
    if (!last) task.FinishRound();
    if (last) MP_TRY(FinishTensor(segment.tensor, task));
    lock.lock();
    ++phases_done_[segment.tensor];
    if (last) tasks_[segment.tensor].reset();
    ready_.notify_all();
    return {};
  }

  // The last tensor of a shard makes the shard durable, while other workers go on.
  Result<void> FinishTensor(size_t tensor, TensorTask& task) {
    result_.records[tensor] = task.Record();
    const size_t unit = places_[tensor].unit;
    std::unique_lock lock(report_mutex_);
    if (options_.on_tensor) MP_TRY(options_.on_tensor(tensor, result_.records[tensor]));
    const bool last = --tensors_left_[unit] == 0;
    lock.unlock();
    return last ? files_[unit]->Sync() : Result<void>();
  }

  void Stop(Error error) {
    const std::lock_guard lock(mutex_);
    StopLocked(std::move(error));
  }

  // The first error counts.
  void StopLocked(Error error) {
    if (!error_) error_ = std::move(error);
    stopped_ = true;
    for (const auto& task : tasks_) {
      if (task != nullptr) task->WakeAll();
    }
    ready_.notify_all();
  }

  // --- work
  // -------------------------------------------------------------------------------------------------

  Result<void> RunStep(const Step& step, WorkerMemory& memory) {
    const Segment& segment = schedule_[step.segment];
    TensorTask& task = *tasks_[segment.tensor];
    const bool in_memory = task.plan().resident && segment.phase > 0;
    const TensorMask& mask = plan_.masks[segment.tensor];
    ItemData item{.first = task.FirstElement(step.item),
                  .count = task.Count(step.item),
                  .sources = {},
                  .mask = mask.reads_all() ? nullptr : &mask};
    if (in_memory) {
      item.sources = task.resident[step.item];
    } else {
      MP_TRY(ReadItem(segment, step.item, task, memory, item));
    }
    if (!task.tensor().merged) return Copy(segment.tensor, step.item, task, item, memory);
    if (segment.phase == 0) MP_TRY(CheckFinite(segment.tensor, task, item, memory));
    if (segment.phase == task.plan().rounds) return Apply(segment.tensor, step.item, task, item, memory);
    task.AddStatistics(step.item, item, compute_, memory.statistics, memory.tiles,
                       [this] { return stopped_.load(); });
    return {};
  }

  std::span<std::byte> BufferOf(const Segment& segment, uint64_t item, const TensorTask& task,
                                WorkerMemory& memory) {
    if (!task.plan().resident) return memory.slot;
    uint64_t bytes = 0;
    for (size_t s = 0; s < task.tensor().sources.size(); ++s)
      bytes += Source::BufferBytes(task.plan().item_elements * task.SourceBytes(s));
    return arenas_[*segment.arena].subspan(item * bytes, bytes);
  }

  Result<void> ReadItem(const Segment& segment, uint64_t number, TensorTask& task, WorkerMemory& memory,
                        ItemData& item) {
    std::span<std::byte> buffer = BufferOf(segment, number, task, memory);
    const auto& sources = task.tensor().sources;
    std::vector<std::span<std::byte>> pieces;
    for (size_t s = 0; s < sources.size(); ++s) {
      pieces.push_back(buffer.first(Source::BufferBytes(item.count * task.SourceBytes(s))));
      buffer = buffer.subspan(pieces.back().size());
    }
    // Of a resident tensor the slot is free while it is read.
    const auto scratch = task.plan().resident ? memory.slot : buffer;
    for (size_t s = 0; s < sources.size(); ++s) {
      item.sources.push_back(nullptr);
      for (const ElementRun& run : plan_.masks[segment.tensor].RunsRead(s, item.first, item.count)) {
        if (sources[s].rows != nullptr) {
          MP_TRY(GatherRun(segment.tensor, s, item, run, pieces, scratch));
          item.sources[s] = pieces[s].data();
        } else {
          item.sources[s] = MP_TRY(ReadRun(sources[s], item, task.SourceBytes(s), run, pieces[s]));
        }
      }
    }
    if (task.padding != nullptr) FillPadding(segment, number, task, item, pieces);
    const ComputeTurn turn(compute_);
    for (size_t s = 0; s < item.sources.size() && segment.phase == 0; ++s)
      task.HashSource(s, item);
    if (task.plan().resident) task.resident[number] = item.sources;
    return {};
  }

  // Brings a run of rows to its place in the item's buffer.
  Result<void> GatherRun(size_t tensor, size_t source, const ItemData& item, ElementRun run,
                         std::span<const std::span<std::byte>> pieces, std::span<std::byte> scratch) {
    const uint64_t offset =
        (run.first - item.first) * DTypeBytes(merge_.tensors[tensor].sources[source].rows->entry.dtype);
    const RowGather gather(plan_, tensor, *options_.kernels, ledger_);
    Progress(MP_TRY(gather.Gather(source, run,
                                  {.reference = pieces[0].data() + offset,
                                   .out = pieces[source].data() + offset,
                                   .scratch = scratch})));
    return {};
  }

  void FillPadding(const Segment& segment, uint64_t number, TensorTask& task, const ItemData& item,
                   std::span<const std::span<std::byte>> pieces) {
    if (segment.phase == 0) task.padding->Add(number, item, [this] { return stopped_.load(); });
    std::vector<std::byte*> places;
    for (const auto& piece : pieces)
      places.push_back(piece.data());
    task.padding->Fill(item, task.padding->whole(), places);
  }

  // Reads a run to its place in the item's buffer, which is laid out as if the item were whole; returns where
  // the item begins.
  Result<const std::byte*> ReadRun(const TensorSource& source, const ItemData& item, uint64_t element_bytes,
                                   ElementRun run, std::span<std::byte> buffer) {
    const uint64_t tensor = FileOffset(merge_, source);
    const uint64_t item_at = tensor + item.first * element_bytes;
    const uint64_t at = tensor + run.first * element_bytes;
    const uint64_t bytes = run.count * element_bytes;
    constexpr uint64_t kPage = Source::kAlignment;
    const auto range =
        MP_TRY(ReadCharged(plan_, source, run.first * element_bytes, bytes,
                           buffer.subspan(at / kPage * kPage - item_at / kPage * kPage), ledger_));
    Progress(bytes);
    return range.data - (at - item_at);
  }

  Result<void> CheckFinite(size_t tensor, const TensorTask& task, const ItemData& item,
                           WorkerMemory& memory) {
    if (options_.allow_nonfinite && noted_nonfinite(tensor)) return {};
    const ComputeTurn turn(compute_);
    const auto bad = task.compute()->FindNonFinite(item, memory.tiles);
    if (!bad) return {};
    if (options_.allow_nonfinite) {
      NoteNonFinite(tensor);
      return {};
    }
    const TensorSource& source = task.tensor().sources[*bad->source];
    return Fail(
        Code::kInvalidInput,
        Format(
            "{}: tensor '{}' is not finite at element {}; repair the model, or go on with --allow-nonfinite",
            merge_.models[source.model].name, EntryOf(merge_, source).name, bad->element));
  }

  bool noted_nonfinite(size_t tensor) {
    const std::lock_guard lock(mutex_);
    return nonfinite_.size() > tensor && nonfinite_[tensor];
  }
  void NoteNonFinite(size_t tensor) {
    const std::lock_guard lock(mutex_);
    nonfinite_.resize(merge_.tensors.size());
    if (!nonfinite_[tensor]) ++result_.nonfinite_tensors;
    nonfinite_[tensor] = true;
  }

  Result<void> Copy(size_t tensor, uint64_t number, TensorTask& task, const ItemData& item,
                    WorkerMemory& memory) {
    if (task.compute() != nullptr) {
      const uint64_t element = task.compute_bytes();
      const ItemData values{
          .first = item.first / element, .count = item.count / element, .sources = {item.sources[0]}};
      MP_TRY(CheckFinite(tensor, task, values, memory));
    }
    return Write(tensor, number, task, {item.sources[0], item.count});
  }

  Result<void> Apply(size_t tensor, uint64_t number, TensorTask& task, const ItemData& item,
                     WorkerMemory& memory) {
    auto equals_left =
        task.ShareEquals(number, item, compute_, memory.tiles, [this] { return stopped_.load(); });
    // The output lies in the slot's last part, shifted like its place in the file, so that whole pages can be
    // written directly.
    const uint64_t bytes = item.count * task.OutputBytes();
    const uint64_t shift = (places_[tensor].offset + item.first * task.OutputBytes()) % Source::kAlignment;
    std::byte* out = memory.slot.data() + memory.slot.size() - Source::BufferBytes(bytes) + shift;
    std::optional<NonFinite> bad;
    {
      const ComputeTurn turn(compute_);
      bad = task.compute()->Apply(item, task.constants(), task.statistics(), equals_left, out, memory.tiles);
    }
    if (bad && !options_.allow_nonfinite) {
      return Fail(Code::kInvalidInput,
                  Format("tensor '{}': the merge makes a value that is not finite at element {} (stored as "
                         "{}); check the weights, or go on with --allow-nonfinite",
                         task.tensor().name, bad->element, DTypeName(task.tensor().dtype)));
    }
    if (bad) NoteNonFinite(tensor);
    return Write(tensor, number, task, {out, bytes});
  }

  Result<void> Write(size_t tensor, uint64_t number, TensorTask& task, std::span<const std::byte> stored) {
    {
      const ComputeTurn turn(compute_);
      task.HashOutput(number, stored);
    }
    const Place& place = places_[tensor];
    MP_TRY(files_[place.unit]->Write(place.offset + task.FirstElement(number) * task.OutputBytes(), stored));
    Progress(stored.size());
    return {};
  }

  void Progress(uint64_t bytes) {
    if (options_.progress != nullptr)
      options_.progress->done_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  struct Place {
    size_t unit = 0;
    uint64_t offset = 0;
  };

  const Plan& plan_;
  const ResolvedMerge& merge_;
  const EngineOptions& options_;
  Staging& staging_;
  Ledger& ledger_;
  std::counting_semaphore<> compute_;
  std::vector<std::unique_ptr<OutputFile>> files_;
  std::vector<Place> places_;
  std::span<std::byte> arenas_[2];
  std::vector<Segment> schedule_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable ready_;
  Step next_;
  std::vector<uint64_t> left_;       // items of each segment that are not finished
  std::vector<size_t> phases_done_;  // by tensor
  std::vector<std::unique_ptr<TensorTask>> tasks_;
  std::vector<bool> nonfinite_;
  std::optional<Error> error_;
  std::atomic<bool> stopped_{false};
  std::mutex report_mutex_;           // guards on_tensor and what follows
  std::vector<size_t> tensors_left_;  // by unit
  EngineResult result_;
};

}  // namespace

Result<EngineResult> RunEngine(const Plan& plan, const EngineOptions& options,
                               std::vector<std::optional<TensorRecord>> finished, Staging& staging,
                               Ledger& ledger) {
  return Engine(plan, options, staging, ledger).Run(std::move(finished));
}

}  // namespace mergepipe
