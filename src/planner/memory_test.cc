#include "planner/memory.h"

#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TempFolder;

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

/// A merge of models whose files are holes: shapes and types are all that a plan sees.
class HollowMerge {
 public:
  explicit HollowMerge(uint32_t seed) : random_(seed) {
    const std::vector<std::vector<uint64_t>> shapes = Shapes();
    const size_t experts = 1 + Draw(4);
    for (size_t model = 0; model <= experts; ++model)
      Write(model == 0 ? "base" : Format("expert{}", model), shapes);
    constexpr const char* kMethods[] = {"ties", "dare_linear", "dare_ties", "task_arithmetic", "linear"};
    const std::string recipe = RecipeOf(kMethods[Draw(5)], experts, "{density: 0.4, rescale: true}");
    merge_ = std::make_shared<const ResolvedMerge>(Must(tests::Resolve(folder_.path(), recipe, ledger_)));
  }

  Result<Plan> PlanWith(uint64_t memory, size_t threads) const {
    return MakePlan(merge_, {.memory_bytes = memory, .threads = threads});
  }
  uint64_t Least() const { return Must(PlanWith(tests::kRoomyMemory, 1)).least_memory_bytes; }
  uint64_t Draw(uint64_t below) { return random_() % below; }

 private:
  std::vector<std::vector<uint64_t>> Shapes() {
    std::vector<std::vector<uint64_t>> shapes = {{}, {0}, {1}};
    for (size_t i = 0; i < 8; ++i)
      shapes.push_back({1 + Draw(1ull << (4 + Draw(22)))});
    return shapes;
  }

  void Write(const std::string& name, const std::vector<std::vector<uint64_t>>& shapes) {
    constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};
    const DType dtype = kTypes[Draw(4)];
    std::vector<StoredTensor> tensors = {{"ids", DType::kI64, {70'001}, ""}};
    for (size_t i = 0; i < shapes.size(); ++i)
      tensors.push_back({Format("w{}", i), Draw(5) == 0 ? kTypes[Draw(4)] : dtype, shapes[i], ""});
    tests::WriteHollowCheckpoint(folder_ / name, tensors);
  }

  TempFolder folder_;
  Ledger ledger_;
  std::mt19937_64 random_;
  std::shared_ptr<const ResolvedMerge> merge_;
};

constexpr size_t kThreads[] = {1, 2, 8, 64};

TEST(Planner, MemoryStaysUnderTheLimit) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    HollowMerge merge(seed);
    const uint64_t least = merge.Least();
    for (int round = 0; round < 10; ++round) {
      const uint64_t limit = least + merge.Draw(kMiB << merge.Draw(11));
      for (const size_t threads : kThreads) {
        EXPECT_LE(Must(merge.PlanWith(limit, threads)).memory.total_bytes(), limit)
            << "seed " << seed << ", " << threads << " threads";
      }
    }
  }
}

TEST(Planner, TheLeastMemoryIsEnoughAndNoByteLess) {
  for (uint32_t seed = 100; seed < 115; ++seed) {
    const HollowMerge merge(seed);
    const uint64_t least = merge.Least();
    for (const size_t threads : kThreads) {
      const Plan plan = Must(merge.PlanWith(least, threads));
      EXPECT_EQ(plan.least_memory_bytes, least);
      EXPECT_LE(plan.memory.total_bytes(), least);
      EXPECT_THAT(merge.PlanWith(least - 1, threads),
                  FailsWith(Code::kUsage, Format("needs at least {}", HumanBytes(least))));
    }
  }
}

TEST(Planner, MoreMemoryNeverReadsMore) {
  for (uint32_t seed = 200; seed < 215; ++seed) {
    const HollowMerge merge(seed);
    uint64_t reads = UINT64_MAX;
    for (uint64_t limit = merge.Least(); limit < 64ull << 30; limit += 1 + limit / 7) {
      const Plan plan = Must(merge.PlanWith(limit, 2));
      EXPECT_LE(plan.costs.expert_read_bytes, reads) << "seed " << seed << " at " << limit;
      reads = plan.costs.expert_read_bytes;
    }
    for (const TensorPlan& tensor : Must(merge.PlanWith(64ull << 30, 2)).tensors)
      EXPECT_EQ(tensor.passes(), 1u) << "with room for everything";
  }
}

TEST(Planner, ThreadsDecideNothingThatIsRead) {
  for (uint32_t seed = 300; seed < 315; ++seed) {
    HollowMerge merge(seed);
    const uint64_t limit = merge.Least() + merge.Draw(256 * kMiB);
    const Plan one = Must(merge.PlanWith(limit, 1));
    for (const size_t threads : kThreads) {
      const Plan many = Must(merge.PlanWith(limit, threads));
      EXPECT_EQ(many.digest, one.digest);
      EXPECT_EQ(many.costs.expert_read_bytes, one.costs.expert_read_bytes);
      for (size_t i = 0; i < one.tensors.size(); ++i)
        EXPECT_EQ(many.tensors[i].resident, one.tensors[i].resident) << i;
    }
  }
}

// What the executor takes from the slots and arenas, reckoned anew.
void ExpectBuffersFit(const Plan& plan) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const ResolvedTensor& tensor = plan.merge->tensors[i];
    const TensorPlan& work = plan.tensors[i];
    uint64_t inputs = 0;
    for (const TensorSource& source : tensor.sources) {
      const uint64_t element = tensor.merged ? DTypeBytes(EntryOf(*plan.merge, source).dtype) : 1;
      inputs += Source::BufferBytes(work.item_elements * element);
    }
    const uint64_t output =
        tensor.merged ? Source::BufferBytes(work.item_elements * DTypeBytes(tensor.dtype)) : 0;
    if (work.resident) {
      EXPECT_LE(work.items * inputs, plan.memory.arena_bytes);
      EXPECT_LE(output, plan.memory.slot_bytes);
    } else {
      EXPECT_LE(inputs + output, plan.memory.slot_bytes);
    }
  }
}

TEST(Planner, BuffersHoldEveryItem) {
  for (uint32_t seed = 400; seed < 415; ++seed) {
    HollowMerge merge(seed);
    const uint64_t least = merge.Least();
    for (const uint64_t limit : {least, least + merge.Draw(64 * kMiB), uint64_t{2} << 30}) {
      for (const size_t threads : kThreads)
        ExpectBuffersFit(Must(merge.PlanWith(limit, threads)));
    }
  }
}

TEST(Planner, ItemsAreWholeLeavesAndCoverTheTensor) {
  for (uint32_t seed = 500; seed < 510; ++seed) {
    const Plan plan = Must(HollowMerge(seed).PlanWith(tests::kRoomyMemory, 2));
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      const TensorPlan& work = plan.tensors[i];
      const ResolvedTensor& tensor = plan.merge->tensors[i];
      EXPECT_EQ(work.elements, tensor.merged ? tensor.elements : tensor.bytes());
      EXPECT_GE(work.items * work.item_elements, work.elements);
      EXPECT_TRUE(work.items == 0 || (work.items - 1) * work.item_elements < work.elements);
      EXPECT_TRUE(work.items <= 1 || work.item_elements % work.leaf_elements() == 0);
    }
  }
}

// A base and `experts` with one matrix of `elements` BF16 numbers, merged with ties.
uint64_t LeastMemory(uint64_t elements, size_t experts) {
  const TempFolder folder;
  for (size_t model = 0; model <= experts; ++model)
    tests::WriteHollowCheckpoint(folder / (model == 0 ? "base" : Format("expert{}", model)),
                                 {{"w", DType::kBF16, {elements}, ""}});
  const Plan plan = Must(PlanRecipe(folder.path(), RecipeOf("ties", experts, "{density: 0.2}"))).plan;
  EXPECT_LE(plan.memory.total_bytes(), tests::kRoomyMemory);
  return plan.least_memory_bytes;
}

TEST(Planner, MemoryDoesNotGrowWithTheTensor) {
  EXPECT_EQ(LeastMemory(1ull << 24, 3), LeastMemory(1ull << 40, 3));
  EXPECT_LE(LeastMemory(1ull << 40, 3), 8 * kMiB);
}

TEST(Planner, MemoryGrowsWithTheExpertsByOneSmallBufferEach) {
  uint64_t before = LeastMemory(1ull << 30, 2);
  for (const size_t experts : {3u, 4u, 5u}) {
    const uint64_t least = LeastMemory(1ull << 30, experts);
    EXPECT_GT(least, before);
    EXPECT_LE(least - before, 2 * kMiB);
    before = least;
  }
}

}  // namespace
}  // namespace mergepipe
