#include "planner/memory.h"

#include <algorithm>

#include "base/text.h"
#include "methods/statistics.h"
#include "storage/source.h"

namespace mergepipe {
namespace {

constexpr uint64_t kPreferredItemBytes = 1u << 20;
constexpr uint64_t kModestItemBytes = 256u << 10;
constexpr size_t kPreferredWorkers =
    8;  // enough requests in flight for a disk when each worker waits for its own

uint64_t CeilDivide(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

uint64_t SourceBytes(const ResolvedMerge& merge, const ResolvedTensor& tensor, size_t source) {
  const TensorSource& s = tensor.sources[source];
  return DTypeBits(EntryOf(merge, s).dtype) / 8;
}

// Buffers for the sources of `elements` elements.
uint64_t InputBuffers(const ResolvedMerge& merge, const ResolvedTensor& tensor, const TensorPlan& plan,
                      uint64_t elements) {
  if (!tensor.merged) return tensor.sources.size() * Source::BufferBytes(elements * plan.element_bytes);
  uint64_t total = 0;
  for (size_t s = 0; s < tensor.sources.size(); ++s)
    total += Source::BufferBytes(elements * SourceBytes(merge, tensor, s));
  return total;
}

uint64_t OutputBuffer(const ResolvedTensor& tensor, uint64_t elements) {
  return tensor.merged ? Source::BufferBytes(elements * DTypeBytes(tensor.dtype)) : 0;
}

// Needs of the largest tensor in each respect.
struct Needs {
  uint64_t statistics = 0;
  size_t sources = 1;
};

class MemoryPlanner {
 public:
  explicit MemoryPlanner(Plan& plan) : plan_(plan), merge_(*plan.merge) {}

  Result<void> Run() {
    for (size_t i = 0; i < merge_.tensors.size(); ++i)
      plan_.tensors.push_back(Describe(merge_.tensors[i]));
    const uint64_t limit = plan_.options.memory_bytes;
    plan_.least_memory_bytes = Working(1, kLeafBytes);
    if (limit < plan_.least_memory_bytes) {
      return Fail(Code::kUsage,
                  Format("--memory {} is too little: this merge of {} models needs at least {}",
                         HumanBytes(limit), merge_.models.size(), HumanBytes(plan_.least_memory_bytes)));
    }
    const uint64_t arena = DecideResidency(limit);
    ChooseWorkers(limit - 2 * arena);
    SetItems(plan_.memory.item_bytes);
    for (size_t i = 0; i < merge_.tensors.size(); ++i)
      plan_.memory.arena_bytes = std::max(plan_.memory.arena_bytes, ArenaBytes(i));
    return {};
  }

 private:
  TensorPlan Describe(const ResolvedTensor& tensor) {
    TensorPlan plan;
    if (tensor.merged) {
      plan.element_bytes = SourceBytes(merge_, tensor, 0);
      plan.elements = tensor.elements;
      const bool known = plan_.constants[plan_.tensors.size()].has_value();
      if (tensor.elements > 0 && !known)
        plan.rounds = StatisticsCollector::Rounds(tensor.request, tensor.elements);
      needs_.statistics =
          std::max(needs_.statistics,
                   StatisticsCollector::MemoryBytes(tensor.request, tensor.inputs.size(), tensor.elements) +
                       PaddingBytes(tensor));
    } else {
      plan.elements = tensor.bytes();
    }
    needs_.sources = std::max(needs_.sources, tensor.sources.size());
    return plan;
  }

  uint64_t ItemElementsOf(size_t tensor, uint64_t item_bytes) const {
    const TensorPlan& plan = plan_.tensors[tensor];
    return ItemElements(merge_.tensors[tensor], plan.elements, plan.element_bytes, item_bytes);
  }

  uint64_t SlotBytes(uint64_t item_bytes) const {
    uint64_t largest = 0;
    for (size_t i = 0; i < merge_.tensors.size(); ++i) {
      const uint64_t elements = ItemElementsOf(i, item_bytes);
      largest =
          std::max(largest, InputBuffers(merge_, merge_.tensors[i], plan_.tensors[i], elements) +
                                GatherScratch(merge_.tensors[i]) + OutputBuffer(merge_.tensors[i], elements));
    }
    return largest;
  }

  uint64_t ScratchBytes(uint64_t item_bytes) const {
    const uint64_t tiles = (needs_.sources + 5) * kTileElements * sizeof(double);
    uint64_t largest = 0;
    for (size_t i = 0; i < merge_.tensors.size(); ++i)
      largest = std::max(largest, StatisticsScratch(plan_, i, ItemElementsOf(i, item_bytes)));
    return tiles + largest;
  }

  uint64_t Working(size_t workers, uint64_t item_bytes) const {
    return workers * (SlotBytes(item_bytes) + ScratchBytes(item_bytes)) + 2 * needs_.statistics;
  }

  // First smaller items, then fewer workers, then the smallest items: the memory law comes before speed.
  void ChooseWorkers(uint64_t limit) {
    const size_t wanted = std::max(plan_.options.threads, kPreferredWorkers);
    const auto fits = [&](size_t workers, uint64_t item) { return Working(workers, item) <= limit; };
    uint64_t item = kPreferredItemBytes;
    size_t workers = wanted;
    while (item > kModestItemBytes && !fits(workers, item))
      item /= 2;
    while (workers > std::min<size_t>(2, wanted) && !fits(workers, item))
      --workers;
    while (item > kLeafBytes && !fits(workers, item))
      item /= 2;
    while (workers > 1 && !fits(workers, item))
      --workers;
    plan_.memory = {.workers = workers,
                    .item_bytes = item,
                    .slot_bytes = SlotBytes(item),
                    .scratch_bytes = ScratchBytes(item),
                    .statistics_bytes = 2 * needs_.statistics};
  }

  void SetItems(uint64_t item_bytes) {
    for (size_t i = 0; i < merge_.tensors.size(); ++i) {
      TensorPlan& plan = plan_.tensors[i];
      plan.item_elements = ItemElementsOf(i, item_bytes);
      plan.items = CeilDivide(plan.elements, plan.item_elements);
    }
  }

  // Two arenas of at most a quarter of the limit each hold resident tensors; none where the rest would be too
  // little. Returns an arena's size, reckoned for items of any size, since that depends on the number of
  // threads.
  uint64_t DecideResidency(uint64_t limit) {
    const uint64_t arena_limit = std::min(limit / 4, (limit - plan_.least_memory_bytes) / 2);
    uint64_t arena = 0;
    for (size_t i = 0; i < merge_.tensors.size(); ++i) {
      TensorPlan& plan = plan_.tensors[i];
      if (plan.rounds == 0) continue;
      const uint64_t bytes = MostArenaBytes(i);
      plan.resident = bytes <= arena_limit;
      if (plan.resident) arena = std::max(arena, bytes);
    }
    return arena;
  }

  // Large items waste more of an arena at the tensor's end, small ones at the ends of their buffers.
  uint64_t MostArenaBytes(size_t tensor) const {
    const TensorPlan& plan = plan_.tensors[tensor];
    uint64_t most = 0;
    for (uint64_t item_bytes = kLeafBytes; item_bytes <= kPreferredItemBytes; item_bytes *= 2) {
      const uint64_t elements = ItemElementsOf(tensor, item_bytes);
      most = std::max(most, CeilDivide(plan.elements, elements) *
                                InputBuffers(merge_, merge_.tensors[tensor], plan, elements));
    }
    return most;
  }

  uint64_t ArenaBytes(size_t tensor) const {
    const TensorPlan& plan = plan_.tensors[tensor];
    if (!plan.resident) return 0;
    return plan.items * InputBuffers(merge_, merge_.tensors[tensor], plan, plan.item_elements);
  }

  Plan& plan_;
  const ResolvedMerge& merge_;
  Needs needs_;
};

}  // namespace

uint64_t StatisticsScratch(const Plan& plan, size_t tensor, uint64_t item_elements) {
  const ResolvedTensor& resolved = plan.merge->tensors[tensor];
  if (!resolved.merged || resolved.elements == 0) return 0;
  const uint64_t rounds = plan.tensors[tensor].rounds > 0
                              ? StatisticsCollector::ScratchBytes(resolved.request, resolved.elements)
                              : 0;
  if (!RanksElements(resolved)) return rounds;
  return rounds +
         RankedKeep::MemoryBytes(RankGroups::Of(resolved.facts), item_elements, resolved.inputs.size());
}

bool RanksElements(const ResolvedTensor& tensor) {
  return std::any_of(tensor.request.keep.begin(), tensor.request.keep.end(),
                     [](const KeepRule& rule) { return rule.kind == KeepRule::Kind::kRanked; });
}

uint64_t ItemElements(const ResolvedTensor& tensor, uint64_t elements, uint64_t element_bytes,
                      uint64_t item_bytes) {
  uint64_t wanted = item_bytes / element_bytes;
  if (RanksElements(tensor)) {
    const uint64_t group = RankGroups::Of(tensor.facts).elements();
    wanted = std::max(group, wanted / group * group);
  }
  return std::min(wanted, std::max<uint64_t>(1, elements));
}

uint64_t GatherScratch(const ResolvedTensor& tensor) {
  return tensor.sources[0].rows == nullptr ? 0 : Source::BufferBytes(kGatherChunkBytes);
}

uint64_t PaddingBytes(const ResolvedTensor& tensor) {
  const auto& rows = tensor.sources[0].rows;
  const bool pads = rows != nullptr && rows->map->padding_rows() > 0;
  return pads ? tensor.sources.size() * rows->row_elements * sizeof(double) : 0;
}

Result<void> PlanMemory(Plan& plan) {
  return MemoryPlanner(plan).Run();
}

}  // namespace mergepipe
