#include "executor/sample_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "planner/blocks.h"
#include "planner/choose.h"
#include "support/evidence.h"
#include "support/families.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::FakeEvidence;
using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TempFolder;

class SampleScanTest : public testing::Test {
 protected:
  Planned Plan(const std::string& method = "task_arithmetic") const {
    return Must(PlanRecipe(folder_.path(), RecipeOf(method, 2),
                           {.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock}));
  }
  static Result<std::unique_ptr<Evidence>> Sample(const Planned& planned, uint64_t limit, size_t threads = 2,
                                                  std::shared_ptr<Evidence> known = nullptr) {
    if (known == nullptr) known = std::make_shared<NoEvidence>(*planned.plan.merge);
    return SampleExperts(planned.plan, limit, std::move(known), *Must(kernels::ChooseKernels("")),
                         {.threads = threads}, *planned.ledger);
  }
  void Write(const std::vector<std::vector<StoredTensor>>& models) const {
    for (size_t m = 0; m < models.size(); ++m)
      tests::WriteCheckpoint(folder_ / (m == 0 ? std::string("base") : Format("expert{}", m)), models[m]);
  }
  TempFolder folder_;
};

TEST_F(SampleScanTest, KeepsTheLimitAndChargesWhatItReadsAsSamples) {
  tests::WriteFamily(folder_.path(), {.experts = 2, .mixed = true});
  for (const uint64_t limit : {0u, 1u, 4'095u, 8'192u, 20'000u, 60'000u, 10'000'000u}) {
    const Planned planned = Plan();
    planned.ledger->LimitExpertBytes(limit);
    const auto evidence = Must(Sample(planned, limit));
    EXPECT_LE(evidence->sample_bytes(), limit);
    EXPECT_EQ(planned.ledger->TotalRead(Purpose::kSample), evidence->sample_bytes());
    EXPECT_EQ(planned.ledger->TotalRead(Purpose::kExpertData), 0u);
    EXPECT_EQ(evidence->strength(), Strength::kSampled);
  }
}

TEST_F(SampleScanTest, ReadsOnePageOfEveryBlockWhereThereIsRoom) {
  const auto base = tests::RandomTensor("w", DType::kF32, {40'960}, 1);
  Write({{base}, {tests::Finetuned(base, DType::kF32, 2, 1)}, {tests::Finetuned(base, DType::kF32, 3, 1)}});
  const Planned planned = Plan();
  EXPECT_EQ(Must(Sample(planned, 1u << 20))->sample_bytes(), 10u * 2 * 4096);
  EXPECT_EQ(planned.ledger->TotalRead(Purpose::kBaseData), 10u * 4096);
}

// Block b's delta is b + 1 everywhere: the estimate tells which block's sample it is.
TEST_F(SampleScanTest, SpreadsItsSamplesEvenly) {
  constexpr size_t kBlocks = 60;
  std::vector<double> zero(kBlocks * 4'096, 0), delta(zero);
  for (size_t k = 0; k < delta.size(); ++k)
    delta[k] = static_cast<double>(k / 4'096 + 1);
  const auto tensor = [&](const std::vector<double>& values) {
    return tests::TensorOf("w", DType::kF32, {values.size()}, values);
  };
  Write({{tensor(zero)}, {tensor(delta)}, {tensor(delta)}});
  for (const size_t samples : {1u, 3u, 7u, 20u, 59u}) {
    const auto evidence = Must(Sample(Plan(), samples * 2 * 4096));
    const TensorEvidence found = Must(evidence->Of(0));
    for (size_t b = 0; b < kBlocks; ++b) {
      const double from = std::sqrt(found.sources[1]->knowledge.blocks.energy[b] / 4'096) - 1;
      EXPECT_LE(std::fabs(from - static_cast<double>(b)), std::ceil(60.0 / static_cast<double>(samples)))
          << samples << " samples, block " << b;
    }
  }
}

TEST_F(SampleScanTest, EstimatesAreExactForDeltasThatAreTheSameEverywhere) {
  std::vector<std::vector<StoredTensor>> models(3);
  for (size_t m = 0; m < 3; ++m) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
      const DType stored = m == 2 && dtype != DType::kF64 ? DType::kF32 : dtype;
      const double value = m == 0 ? 3 : m == 1 ? 3.5 : 2.75;
      models[m].push_back(tests::TensorOf(std::string(DTypeName(dtype)), stored, {20'001},
                                          std::vector<double>(20'001, value)));
    }
  }
  Write(models);
  const Planned planned = Plan();
  const auto evidence = Must(Sample(planned, 1u << 20));
  for (size_t t = 0; t < 4; ++t) {
    const TensorEvidence found = Must(evidence->Of(t));
    for (size_t b = 0; b < BlockCount(planned.plan, t); ++b) {
      const auto n = static_cast<double>(tests::ElementsOfBlock(planned.plan, t, b));
      EXPECT_EQ(found.base->energy[b], 9 * n);
      EXPECT_EQ(found.sources[1]->knowledge.blocks.energy[b], 0.25 * n);
      EXPECT_EQ(found.sources[2]->knowledge.blocks.energy[b], 0.0625 * n);
      EXPECT_EQ(found.sampled_gram[(b * 3 + 1) * 3 + 2], static_cast<float>(-0.125 * n));
      EXPECT_EQ(found.sampled_gram[(b * 3 + 2) * 3 + 1], static_cast<float>(-0.125 * n));
      EXPECT_FALSE(found.sources[1]->exact);
    }
    EXPECT_TRUE(found.base->digest.empty());
  }
}

bool SameEvidence(const TensorEvidence& a, const TensorEvidence& b) {
  bool same = a.sampled_gram == b.sampled_gram && a.sources.size() == b.sources.size() &&
              a.base.has_value() == b.base.has_value() && (!a.base || a.base->energy == b.base->energy);
  for (size_t s = 0; same && s < a.sources.size(); ++s) {
    same = a.sources[s].has_value() == b.sources[s].has_value() &&
           (!a.sources[s] || a.sources[s]->knowledge.blocks.energy == b.sources[s]->knowledge.blocks.energy);
  }
  return same;
}

TEST_F(SampleScanTest, ThreadsDoNotShow) {
  tests::WriteFamily(folder_.path(), {.experts = 2, .mixed = true});
  const Planned planned = Plan();
  const auto one = Must(Sample(planned, 50'000, 1));
  for (const size_t threads : {2u, 16u}) {
    const auto many = Must(Sample(planned, 50'000, threads));
    for (size_t t = 0; t < planned.plan.tensors.size(); ++t)
      EXPECT_TRUE(SameEvidence(Must(one->Of(t)), Must(many->Of(t))));
    for (size_t m = 0; m < 3; ++m)
      EXPECT_EQ(one->Identity(m), many->Identity(m));
  }
}

TEST_F(SampleScanTest, ModelsAreKnownByThePagesThatWereSampled) {
  tests::WriteFamily(folder_.path(), {.experts = 2});
  const Planned planned = Plan();
  const auto before = Must(Sample(planned, 1u << 20));
  const NoEvidence headers(*planned.plan.merge);
  EXPECT_EQ(before->Identity(0), headers.Identity(0)) << "the base is not sampled";
  EXPECT_NE(before->Identity(1), headers.Identity(1));
  EXPECT_NE(before->Identity(1), before->Identity(2));
  auto tensors = tests::ReadCheckpoint(folder_ / "expert1");
  StoredTensor& changed = tensors.at("d.f16");
  changed.bytes = std::string(changed.bytes.size(), '\1');
  std::vector<StoredTensor> all;
  for (const auto& [name, tensor] : tensors)
    all.push_back(tensor);
  tests::WriteCheckpoint(folder_ / "expert1", all);
  const auto after = Must(Sample(Plan(), 1u << 20));
  EXPECT_NE(after->Identity(1), before->Identity(1));
  EXPECT_EQ(after->Identity(2), before->Identity(2));
}

TEST_F(SampleScanTest, WhatIsKnownIsNotSampled) {
  tests::WriteFamily(folder_.path(), {.experts = 2});
  const Planned planned = Plan();
  auto known = std::make_shared<FakeEvidence>(tests::ReckonEvidence(planned.plan));
  const auto evidence = Must(Sample(planned, 1u << 20, 2, known));
  EXPECT_EQ(evidence->sample_bytes(), 0u);
  EXPECT_EQ(planned.ledger->TotalRead(Purpose::kSample), 0u);
  EXPECT_EQ(evidence->Identity(1), known->Identity(1));
  for (size_t t = 0; t < planned.plan.tensors.size(); ++t)
    EXPECT_TRUE(SameEvidence(Must(evidence->Of(t)), known->tensors[t]));
}

// Slices: layer 1 is b's and c's alone, which no model can stand in for.
TEST_F(SampleScanTest, AReferenceThatIsAnExpertIsPaidForLikeOne) {
  const auto layer = [](int number, uint32_t seed) {
    return tests::RandomTensor(Format("model.layers.{}.w", number), DType::kF32, {40'000}, seed);
  };
  Write({{layer(0, 1)}, {layer(0, 2), layer(1, 3)}, {layer(0, 4), layer(1, 5)}});
  const Planned planned =
      Must(PlanRecipe(folder_.path(), R"(
merge_method: linear
parameters: {weight: 0.5}
slices:
  - sources: [{model: ~/base, layer_range: [0, 1]}]
  - sources: [{model: ~/expert1, layer_range: [1, 2]}, {model: ~/expert2, layer_range: [1, 2]}]
)",
                      {.memory_bytes = tests::kRoomyMemory, .block_bytes = tests::kSmallBlock}));
  ASSERT_FALSE(planned.plan.reference_model[planned.Tensor("model.layers.1.w").sources[0].model]);
  for (const uint64_t limit : {10'000u, 40'960u, 1u << 20}) {
    Ledger& ledger = *planned.ledger;
    const uint64_t before = ledger.TotalRead(Purpose::kSample);
    const auto evidence = Must(Sample(planned, limit));
    EXPECT_LE(evidence->sample_bytes(), limit);
    EXPECT_EQ(ledger.TotalRead(Purpose::kSample) - before, evidence->sample_bytes()) << limit;
  }
}

TEST_F(SampleScanTest, ASignalStopsIt) {
  tests::WriteFamily(folder_.path(), {.experts = 2});
  const Planned planned = Plan();
  const std::atomic<int> signal{2};
  EXPECT_THAT(SampleExperts(planned.plan, 1u << 20, std::make_shared<NoEvidence>(*planned.plan.merge),
                            *Must(kernels::ChooseKernels("")), {.threads = 2, .stop_signal = &signal},
                            *planned.ledger),
              FailsWith(Code::kInterrupted, ""));
}

}  // namespace
}  // namespace mergepipe
