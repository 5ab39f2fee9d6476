#include "executor/sweep_memory.h"

#include <algorithm>

#include "base/exact_sum.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "methods/statistics.h"
#include "planner/memory.h"
#include "storage/source.h"

namespace mergepipe {
namespace {

constexpr uint64_t kPreferredItemBytes = 1u << 20;
constexpr uint64_t kModestItemBytes = 256u << 10;
constexpr size_t kPreferredWorkers = 8;

uint64_t WholePages(uint64_t bytes) {
  return (bytes + Source::kAlignment - 1) / Source::kAlignment * Source::kAlignment;
}

class Divider {
 public:
  Divider(const Plan& plan, size_t variants, uint64_t mask_bytes)
      : plan_(plan), variants_(variants), mask_bytes_(mask_bytes) {
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      Look(t);
    mask_bytes_ += padding_bytes_;  // there for the whole tensor, like the masks
  }

  Result<SweepMemory> Run(const ScanLimits& limits) const {
    const uint64_t least = mask_bytes_ + WorkerBytes(kLeafBytes) + state_bytes_;
    if (limits.memory_bytes < least) {
      return Fail(Code::kUsage,
                  Format("--memory {} is too little: this sweep over {} models needs at least {}",
                         HumanBytes(limits.memory_bytes), plan_.merge->models.size(), HumanBytes(least)));
    }
    SweepMemory memory{.arena_bytes = ArenaBytes(limits.memory_bytes - least)};
    const uint64_t left = limits.memory_bytes - mask_bytes_ - memory.arena_bytes;
    memory.states = StatesWithin(left);
    ChooseWorkers(left - memory.states * state_bytes_, std::max(limits.threads, kPreferredWorkers), memory);
    memory.input_bytes = Largest(
        memory.item_bytes, [&](size_t t, uint64_t elements) { return SweepInputBytes(plan_, t, elements); });
    memory.output_bytes =
        Largest(memory.item_bytes, [&](size_t t, uint64_t elements) { return OutputBytes(t, elements); });
    memory.gather_bytes = gather_bytes_;
    return memory;
  }

 private:
  void Look(size_t t) {
    const ResolvedTensor& tensor = plan_.merge->tensors[t];
    sources_ = std::max(sources_, tensor.sources.size());
    gather_bytes_ = std::max(gather_bytes_, GatherScratch(tensor));
    padding_bytes_ = std::max(padding_bytes_, PaddingBytes(tensor));
    if (plan_.tensors[t].rounds == 0) return;
    state_bytes_ = std::max(state_bytes_, StatisticsCollector::MemoryBytes(
                                              tensor.request, tensor.inputs.size(), tensor.elements));
  }

  uint64_t OutputBytes(size_t t, uint64_t elements) const {
    const ResolvedTensor& tensor = plan_.merge->tensors[t];
    return tensor.merged ? WholePages(elements * DTypeBytes(tensor.dtype)) : 0;
  }

  template <typename Bytes>
  uint64_t Largest(uint64_t item_bytes, Bytes bytes) const {
    uint64_t largest = 0;
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      largest = std::max(largest, bytes(t, SweepItemElements(plan_, t, item_bytes)));
    return largest;
  }

  // Tiles and the statistics' scratch as a merge has them, and the sums.
  uint64_t WorkerBytes(uint64_t item_bytes) const {
    const uint64_t buffers =
        Largest(item_bytes, [&](size_t t, uint64_t n) { return SweepInputBytes(plan_, t, n); }) +
        2 * Largest(item_bytes, [&](size_t t, uint64_t n) { return OutputBytes(t, n); });
    const uint64_t tiles = (sources_ + 5) * kTileElements * sizeof(double);
    const uint64_t scratch =
        Largest(item_bytes, [&](size_t t, uint64_t n) { return StatisticsScratch(plan_, t, n); });
    return buffers + gather_bytes_ + tiles + scratch + (variants_ + 2) * sizeof(ExactSum);
  }

  // At most half of what is left over, for the largest tensor that fits.
  uint64_t ArenaBytes(uint64_t spare) const {
    uint64_t arena = 0;
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const uint64_t bytes = plan_.tensors[t].rounds > 0 ? MostBytes(t) : 0;
      if (bytes <= spare / 2) arena = std::max(arena, bytes);
    }
    return arena;
  }

  // Of a whole tensor, whatever items come to be.
  uint64_t MostBytes(size_t t) const {
    uint64_t most = 0;
    for (uint64_t item = kLeafBytes; item <= kPreferredItemBytes; item *= 2) {
      const uint64_t elements = SweepItemElements(plan_, t, item);
      const uint64_t items = (plan_.tensors[t].elements + elements - 1) / elements;
      most = std::max(most, items * SweepInputBytes(plan_, t, elements));
    }
    return most;
  }

  // All variants at once if half of the memory holds their statistics, else in batches.
  size_t StatesWithin(uint64_t bytes) const {
    if (state_bytes_ == 0) return variants_ + 1;
    const uint64_t most = std::min(bytes / 2, bytes - WorkerBytes(kLeafBytes));
    return static_cast<size_t>(std::clamp<uint64_t>(most / state_bytes_, 1, variants_ + 1));
  }

  void ChooseWorkers(uint64_t bytes, size_t wanted, SweepMemory& memory) const {
    memory.item_bytes = kPreferredItemBytes;
    memory.workers = wanted;
    const auto fits = [&] { return memory.workers * WorkerBytes(memory.item_bytes) <= bytes; };
    while (memory.item_bytes > kModestItemBytes && !fits())
      memory.item_bytes /= 2;
    while (memory.workers > 2 && !fits())
      --memory.workers;
    while (memory.item_bytes > kLeafBytes && !fits())
      memory.item_bytes /= 2;
    while (memory.workers > 1 && !fits())
      --memory.workers;
  }

  const Plan& plan_;
  size_t variants_;
  uint64_t mask_bytes_;
  uint64_t state_bytes_ = 0;
  uint64_t gather_bytes_ = 0, padding_bytes_ = 0;
  size_t sources_ = 1;
};

}  // namespace

uint64_t SweepItemElements(const Plan& plan, size_t tensor, uint64_t item_bytes) {
  const TensorPlan& planned = plan.tensors[tensor];
  return ItemElements(plan.merge->tensors[tensor], planned.elements, planned.element_bytes, item_bytes);
}

uint64_t SweepSourceBytes(const Plan& plan, size_t tensor, size_t source) {
  const ResolvedTensor& resolved = plan.merge->tensors[tensor];
  return resolved.merged ? DTypeBytes(EntryOf(*plan.merge, resolved.sources[source]).dtype) : 1;
}

uint64_t SweepInputBytes(const Plan& plan, size_t tensor, uint64_t elements) {
  const ResolvedTensor& resolved = plan.merge->tensors[tensor];
  uint64_t total = 0;
  for (size_t s = 0; s < (resolved.merged ? resolved.sources.size() : 1); ++s)
    total += Source::BufferBytes(elements * SweepSourceBytes(plan, tensor, s));
  return total;
}

Result<SweepMemory> DivideSweepMemory(const Plan& plan, size_t variants, uint64_t mask_bytes,
                                      const ScanLimits& limits) {
  return Divider(plan, variants, mask_bytes).Run(limits);
}

}  // namespace mergepipe
