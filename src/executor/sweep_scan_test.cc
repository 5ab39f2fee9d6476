#include "executor/sweep_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/text.h"
#include "planner/blocks.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/runs.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::Planned;
using tests::StoredTensor;
using tests::TempFolder;

using Tensors = std::map<std::string, StoredTensor>;

// Deltas of a few distinct sizes, so that trimming cuts among equals that lie in many items.
StoredTensor Coarse(const StoredTensor& base, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> values = tests::ValuesOf(base);
  for (double& value : values)
    value += 0.25 * (static_cast<double>(random() % 5) - 2);
  return tests::TensorOf(base.name, base.dtype, base.shape, values);
}

class SweepTest : public testing::Test {
 protected:
  SweepTest() {
    const std::vector<StoredTensor> base = {tests::RandomTensor("big", DType::kF32, {90'001}, 1),
                                            tests::RandomTensor("coarse", DType::kBF16, {210, 251}, 2),
                                            tests::RandomTensor("double", DType::kF64, {9'001}, 4),
                                            tests::RandomTensor("scalar", DType::kF32, {}, 6),
                                            {"empty", DType::kF32, {0, 5}, ""},
                                            {"ids", DType::kI64, {5'000}, std::string(40'000, '\x7f')}};
    tests::WriteCheckpoint(folder_ / "base", base);
    for (uint32_t expert : {1u, 2u}) {
      std::vector<StoredTensor> tensors = tests::NearTo(base, DType::kF32, 10 * expert);
      tensors[1] = Coarse(base[1], expert);
      tensors[2] = tests::Finetuned(base[2], DType::kF64, expert, 0.1);
      tests::WriteCheckpoint(folder_ / Format("expert{}", expert), tensors);
    }
  }

  Planned Plan(const std::string& method, const std::string& parameters = "{}") {
    return Must(
        tests::PlanRecipe(folder_.path(), tests::RecipeOf(method, 2, parameters),
                          {.memory_bytes = tests::kRoomyMemory, .threads = 2, .block_bytes = 32u << 10}));
  }

  // Reads each block of each expert with this probability.
  static SweepMasks RandomMasks(const mergepipe::Plan& plan, double share, uint32_t seed) {
    std::mt19937 random(seed);
    const auto limit = static_cast<uint64_t>(share * 0x1p32);
    SweepMasks masks(plan.tensors.size());
    for (size_t t = 0; t < masks.size(); ++t) {
      const ResolvedTensor& tensor = plan.merge->tensors[t];
      if (!tensor.merged || tensor.elements == 0) continue;
      masks[t] = TensorMask(tensor.sources.size(), tensor.elements, BlockElements(plan, t));
      for (size_t s = 1; s < masks[t].sources(); ++s) {
        for (size_t b = 0; b < masks[t].blocks(); ++b)
          masks[t].Set(s, b, random() < limit ? s : TensorMask::kOmitted);
      }
    }
    return masks;
  }

  static SweepFindings Sweep(const Planned& planned, const std::vector<SweepMasks>& variants,
                             const ScanLimits& limits = {.threads = 2, .memory_bytes = 64u << 20}) {
    return Must(TrySweep(planned, variants, limits));
  }
  static Result<SweepFindings> TrySweep(const Planned& planned, const std::vector<SweepMasks>& variants,
                                        const ScanLimits& limits) {
    ProgressCounters progress;
    auto found = ScanSweep(planned.plan, variants, *Must(kernels::ChooseKernels("")), limits, *planned.ledger,
                           progress);
    if (found.has_value()) {
      EXPECT_EQ(progress.done_bytes, progress.total_bytes);
    }
    return found;
  }

  // What the engine stores under these masks.
  static Tensors Stored(Planned planned, const SweepMasks& masks) {
    planned.plan.masks = masks;
    return tests::TensorsOf(planned, Must(tests::RunPlan(planned)));
  }

  static double Distance(const Tensors& a, const Tensors& b) {
    double sum = 0;
    for (const auto& [name, tensor] : a) {
      if (!IsMergeable(tensor.dtype)) continue;
      const auto x = tests::ValuesOf(tensor), y = tests::ValuesOf(b.at(name));
      for (size_t i = 0; i < x.size(); ++i)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    }
    return std::sqrt(sum);
  }
  static double Norm(Tensors tensors) {
    Tensors zeros;
    for (const auto& [name, tensor] : tensors)
      zeros[name] = {name, tensor.dtype, tensor.shape, std::string(tensor.bytes.size(), '\0')};
    return Distance(tensors, zeros);
  }

  TempFolder folder_;
};

class SweepOfMethod : public SweepTest,
                      public testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(SweepOfMethod, ErrorsAreThoseOfWhatTheEngineStores) {
  const Planned planned = Plan(GetParam().first, GetParam().second);
  const SweepMasks everything(planned.plan.tensors.size());
  std::vector<SweepMasks> variants = {everything};
  for (const double share : {0.0, 0.3, 0.7})
    variants.push_back(RandomMasks(planned.plan, share, 7));
  const SweepFindings found = Sweep(planned, variants);
  const Tensors full = Stored(planned, everything);
  EXPECT_NEAR(found.weight_norm, Norm(full), 1e-10 * Norm(full));
  EXPECT_NEAR(found.update_norm, Distance(full, tests::ReadCheckpoint(folder_ / "base")), 1e-9);
  EXPECT_EQ(found.error_norms[0], 0);
  for (size_t v = 1; v < variants.size(); ++v)
    EXPECT_NEAR(found.error_norms[v], Distance(full, Stored(planned, variants[v])), 1e-9) << v;
}

INSTANTIATE_TEST_SUITE_P(Methods, SweepOfMethod,
                         testing::Values(std::pair("linear", "{}"), std::pair("task_arithmetic", "{}"),
                                         std::pair("ties", "{density: 0.3}"),
                                         std::pair("dare_ties", "{density: 0.5}"),
                                         std::pair("dare_linear", "{density: 0.5}")));

TEST_F(SweepTest, ThreadsAndMemoryChangeNoBit) {
  const Planned planned = Plan("ties", "{density: 0.3}");
  std::vector<SweepMasks> variants;
  for (uint32_t seed = 0; seed < 5; ++seed)
    variants.push_back(RandomMasks(planned.plan, 0.5, seed));
  const SweepFindings one = Sweep(planned, variants, {.threads = 1, .memory_bytes = 256u << 20});
  for (const ScanLimits& limits : {ScanLimits{.threads = 7, .memory_bytes = 256u << 20},
                                   ScanLimits{.threads = 2, .memory_bytes = 5u << 20}}) {
    const SweepFindings other = Sweep(planned, variants, limits);
    EXPECT_EQ(other.weight_norm, one.weight_norm);
    EXPECT_EQ(other.update_norm, one.update_norm);
    EXPECT_EQ(other.error_norms, one.error_norms);
  }
}

TEST_F(SweepTest, EveryByteIsReadOnceForAllVariantsWhereTheMemoryIsEnough) {
  for (const char* method : {"task_arithmetic", "ties"}) {
    const Planned planned = Plan(method, std::string(method) == "ties" ? "{density: 0.3}" : "{}");
    Sweep(planned, std::vector(6, RandomMasks(planned.plan, 0.5, 1)),
          {.threads = 2, .memory_bytes = 256u << 20});
    EXPECT_EQ(planned.ledger->TotalRead(Purpose::kExpertData), planned.plan.costs.full_expert_bytes);
  }
}

TEST_F(SweepTest, TooLittleMemoryIsRefusedWithWhatIsNeeded) {
  const Planned planned = Plan("ties", "{density: 0.3}");
  EXPECT_THAT(TrySweep(planned, {}, {.threads = 1, .memory_bytes = 100'000}),
              FailsWith(Code::kUsage, "needs at least"));
}

TEST_F(SweepTest, ASignalStopsIt) {
  const Planned planned = Plan("ties", "{density: 0.3}");
  const std::atomic<int> signal{2};
  EXPECT_THAT(TrySweep(planned, {}, {.threads = 2, .memory_bytes = 64u << 20, .stop_signal = &signal}),
              FailsWith(Code::kInterrupted, "interrupted"));
}

TEST(SweepFindingsTest, WithoutAnUpdateThereIsNothingToRelateTo) {
  const SweepFindings found{.weight_norm = 4, .update_norm = 0, .error_norms = {}};
  EXPECT_EQ(found.Of(1).of_weights, 0.25);
  EXPECT_FALSE(found.Of(1).of_update.has_value());
}

}  // namespace
}  // namespace mergepipe
