#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "executor/engine.h"
#include "planner/blocks.h"
#include "support/evidence.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/runs.h"

// Merges under random masks, against merges of models in which what is left out was overwritten.

namespace mergepipe {
namespace {

using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::Ran;
using tests::RecipeOf;
using tests::RunPlan;
using tests::StoredTensor;
using tests::TempFolder;

constexpr size_t kExperts = 3;

struct Layout {
  uint64_t block_bytes = 16u << 10;
  bool little_memory = false;
  size_t threads = 2;
};

// At offsets that are no multiples of anything; the second expert stores some tensors wider.
std::vector<StoredTensor> Model(size_t number) {
  const auto seed = static_cast<uint32_t>(10 * number);
  std::vector<StoredTensor> tensors = {{"a", DType::kU8, {2 * number + 3}, std::string(2 * number + 3, 'x')},
                                       tests::RandomTensor("b", DType::kBF16, {150'001}, 1),
                                       tests::RandomTensor("c", DType::kF32, {40'000}, 2),
                                       tests::RandomTensor("d", DType::kF16, {9'000}, 3),
                                       tests::RandomTensor("e", DType::kF64, {5'000}, 4),
                                       tests::RandomTensor("f", DType::kBF16, {7}, 5)};
  tensors[0] = {"a", DType::kU8, {5}, "bytes"};
  for (size_t t = 1; t < tensors.size() && number > 0; ++t) {
    const bool wide = number == 2 && t % 2 == 1;
    tensors[t] = tests::Finetuned(tensors[t], wide ? DType::kF32 : tensors[t].dtype,
                                  seed + static_cast<uint32_t>(t), 0.25);
  }
  if (number % 2 == 1) tensors.insert(tensors.begin(), {"0", DType::kU8, {number}, std::string(number, 'y')});
  return tensors;
}

std::string Recipe(const std::string& method) {
  const bool one = method == "slerp";
  return RecipeOf(method, one ? 1 : kExperts, one ? "{t: 0.3}" : "{density: 0.4, rescale: true}", !one);
}

Planned PlanAt(const std::string& folder, const std::string& method, const Layout& layout) {
  PlanOptions options{
      .memory_bytes = tests::kRoomyMemory, .threads = layout.threads, .block_bytes = layout.block_bytes};
  Planned planned = Must(PlanRecipe(folder, Recipe(method), options, {.missing = MissingTensors::kBase}));
  if (!layout.little_memory) return planned;
  options.memory_bytes = planned.plan.least_memory_bytes;
  return Must(PlanRecipe(folder, Recipe(method), options, {.missing = MissingTensors::kBase}));
}

// Leaves out and shares blocks; those that are shared hold the same bytes.
void MaskAtRandom(Plan& plan, std::mt19937& random) {
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const ResolvedTensor& tensor = plan.merge->tensors[t];
    if (!tensor.merged || tensor.sources.size() < 2 || random() % 8 == 0) continue;
    plan.masks[t] = TensorMask(tensor.sources.size(), plan.tensors[t].elements, BlockElements(plan, t));
    for (size_t b = 0; b < plan.masks[t].blocks(); ++b) {
      for (size_t s = 1; s < tensor.sources.size(); ++s) {
        const size_t other = random() % s;
        const bool fits =
            plan.masks[t].Reads(other, b) && EntryOf(*plan.merge, tensor.sources[other]).dtype ==
                                                 EntryOf(*plan.merge, tensor.sources[s]).dtype;
        if (random() % 2 == 0) plan.masks[t].Set(s, b, fits && random() % 3 == 0 ? other : s);
      }
    }
  }
}

// A block of a source as the mask has it, in the source's own type.
std::string Seen(const Plan& plan, size_t t, size_t s, size_t b) {
  const ResolvedTensor& tensor = plan.merge->tensors[t];
  const size_t from = plan.masks[t].From(s, b);
  const size_t place = from == TensorMask::kOmitted ? 0 : from;
  const uint64_t bytes = SourceBlockBytes(plan, t, place, b);
  const std::string stored =
      tests::BytesOf(plan, t, place)
          .substr(b * BlockElements(plan, t) * DTypeBytes(EntryOf(*plan.merge, tensor.sources[place]).dtype),
                  bytes);
  const DType dtype = EntryOf(*plan.merge, tensor.sources[place]).dtype;
  const std::vector<double> values = tests::ValuesOf(StoredTensor{"", dtype, {}, stored});
  return tests::TensorOf("", EntryOf(*plan.merge, tensor.sources[s]).dtype, {values.size()}, values).bytes;
}

// Models that hold what the mask lets be seen.
void WriteSeen(const Plan& plan, const std::string& folder) {
  std::vector<std::vector<StoredTensor>> models;
  for (size_t m = 0; m <= kExperts; ++m)
    models.push_back(Model(m));
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const ResolvedTensor& tensor = plan.merge->tensors[t];
    if (plan.masks[t].reads_all()) continue;
    for (size_t s = 1; s < tensor.sources.size(); ++s) {
      std::string bytes;
      for (size_t b = 0; b < plan.masks[t].blocks(); ++b)
        bytes += Seen(plan, t, s, b);
      const std::string& path = plan.merge->models[tensor.sources[s].model].path;
      for (StoredTensor& stored : models[static_cast<size_t>(path.back() - '0')]) {
        if (stored.name == tensor.name) stored.bytes = bytes;
      }
    }
  }
  for (size_t m = 0; m < models.size(); ++m)
    tests::WriteCheckpoint(folder + (m == 0 ? std::string("/base") : Format("/expert{}", m)), models[m]);
}

class EngineUnderMasks : public testing::TestWithParam<std::string> {
 protected:
  EngineUnderMasks() {
    for (size_t m = 0; m <= kExperts; ++m)
      tests::WriteCheckpoint(folder_ / (m == 0 ? std::string("base") : Format("expert{}", m)), Model(m));
  }
  Planned Masked(const Layout& layout, uint32_t seed) const {
    std::mt19937 random(seed);
    Planned planned = PlanAt(folder_.path(), GetParam(), layout);
    MaskAtRandom(planned.plan, random);
    return planned;
  }
  TempFolder folder_;
};

TEST_P(EngineUnderMasks, WhatIsLeftOutIsTheReferenceAndWhatIsSharedIsTheHolder) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const Planned planned = Masked({.block_bytes = seed % 2 == 0 ? 16u << 10 : 64u << 10}, seed);
    const TempFolder seen;
    WriteSeen(planned.plan, seen.path());
    const Planned whole = PlanAt(seen.path(), GetParam(), {});
    const auto got = tests::TensorsOf(planned, Must(RunPlan(planned)));
    const auto want = tests::TensorsOf(whole, Must(RunPlan(whole)));
    for (const auto& [name, tensor] : want)
      EXPECT_TRUE(got.at(name).bytes == tensor.bytes) << name << " seed " << seed;
  }
}

TEST_P(EngineUnderMasks, ReadsWhatTheMaskSaysAndNothingElse) {
  for (const uint64_t block_bytes : {16u << 10, 64u << 10, 4u << 20}) {
    for (const bool little_memory : {false, true}) {
      const Planned planned = Masked({.block_bytes = block_bytes, .little_memory = little_memory}, 7);
      uint64_t expected = 0;
      for (size_t t = 0; t < planned.plan.tensors.size(); ++t) {
        for (size_t s = 0; s < planned.plan.merge->tensors[t].sources.size(); ++s)
          expected += ExpertBytes(planned.plan, t, s);
      }
      planned.ledger->LimitExpertBytes(expected);
      Must(RunPlan(planned));
      EXPECT_EQ(planned.ledger->TotalRead(Purpose::kExpertData), expected)
          << block_bytes << " " << little_memory;
      EXPECT_EQ(planned.ledger->TotalRead(Purpose::kBaseData), planned.plan.costs.base_read_bytes);
    }
  }
}

TEST_P(EngineUnderMasks, AByteLessThanThePlanNeedsIsRefused) {
  const Planned planned = Masked({}, 7);
  uint64_t expected = 0;
  for (size_t t = 0; t < planned.plan.tensors.size(); ++t) {
    for (size_t s = 0; s < planned.plan.merge->tensors[t].sources.size(); ++s)
      expected += ExpertBytes(planned.plan, t, s);
  }
  planned.ledger->LimitExpertBytes(expected - 1);
  EXPECT_THAT(RunPlan(planned), tests::FailsWith(Code::kInternal, "would pass the budget"));
  EXPECT_LT(planned.ledger->TotalRead(Purpose::kExpertData), expected);
}

TEST_P(EngineUnderMasks, ThreadsAndMemoryDoNotShow) {
  const Planned plain = Masked({.threads = 1}, 9);
  const Ran expected = Must(RunPlan(plain));
  for (const Layout& layout : {Layout{.little_memory = true, .threads = 1},
                               Layout{.little_memory = true, .threads = 8}, Layout{.threads = 3}}) {
    const Ran ran = Must(RunPlan(Masked(layout, 9)));
    EXPECT_TRUE(ran.files == expected.files) << layout.little_memory << " " << layout.threads;
    for (size_t t = 0; t < ran.result.records.size(); ++t) {
      EXPECT_EQ(ran.result.records[t].sources, expected.result.records[t].sources);
      EXPECT_EQ(ran.result.records[t].digest, expected.result.records[t].digest);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, EngineUnderMasks,
                         testing::Values("task_arithmetic", "linear", "ties", "dare_linear", "dare_ties",
                                         "slerp"),
                         [](const auto& method) { return method.param; });

}  // namespace
}  // namespace mergepipe
