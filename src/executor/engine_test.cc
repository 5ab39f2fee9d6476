#include "executor/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "base/text.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/runs.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::Ran;
using tests::RecipeOf;
using tests::RunPlan;
using tests::StoredTensor;
using tests::TempFolder;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Deltas of a few distinct sizes, so that trimming cuts among equals that lie in many items.
StoredTensor Coarse(const StoredTensor& base, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> values = tests::ValuesOf(base);
  for (double& value : values)
    value += 0.25 * (static_cast<double>(random() % 7) - 3);
  return tests::TensorOf(base.name, dtype, base.shape, values);
}

// Tensors of many items and of one, of every type, scalar and empty ones, and some that are only copied.
std::vector<StoredTensor> Base() {
  return {tests::RandomTensor("big", DType::kF32, {300, 257}, 1),
          tests::RandomTensor("coarse", DType::kBF16, {210, 251}, 2),
          tests::RandomTensor("half", DType::kF16, {9'000}, 3),
          tests::RandomTensor("double", DType::kF64, {9'001}, 4),
          tests::RandomTensor("bias", DType::kBF16, {7}, 5),
          tests::RandomTensor("scalar", DType::kF32, {}, 6),
          {"empty", DType::kF32, {0, 5}, ""},
          {"ids", DType::kI64, {5'000}, std::string(40'000, '\1')},
          {"mask", DType::kBool, {3}, std::string("\1\0\1", 3)}};
}

std::vector<StoredTensor> Expert(const std::vector<StoredTensor>& base, uint32_t number) {
  std::vector<StoredTensor> tensors;
  for (const StoredTensor& tensor : base) {
    const bool coarse = tensor.name == "coarse";
    const DType dtype = number == 2 && tensor.dtype != DType::kF64 ? DType::kF32 : tensor.dtype;
    if (!IsMergeable(tensor.dtype))
      tensors.push_back(tensor);
    else
      tensors.push_back(coarse ? Coarse(tensor, dtype, number)
                               : tests::Finetuned(tensor, dtype, 100 * number, 0.1));
  }
  return tensors;
}

/// A sharded base and three experts, one of them sharded too and one stored wider.
class Family {
 public:
  Family() {
    const std::vector<StoredTensor> base = Base();
    tests::WriteSharded(folder_ / "base", {{base[0], base[5], base[6], base[8]},
                                           {base[1], base[2], base[3], base[4], base[7]}});
    tests::WriteCheckpoint(folder_ / "expert1", Expert(base, 1));
    tests::WriteCheckpoint(folder_ / "expert2", Expert(base, 2));
    const std::vector<StoredTensor> third = Expert(base, 3);
    tests::WriteSharded(folder_ / "expert3",
                        {{third.begin(), third.begin() + 4}, {third.begin() + 4, third.end()}});
  }
  std::string path() const { return folder_.path(); }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TempFolder folder_;
};

const Family& SharedFamily() {
  static const Family family;
  return family;
}

// A recipe for every method of the table, trimming where the method can.
std::string RecipeFor(const Method& method) {
  size_t experts = 3;
  if (method.max_inputs == 2) experts = method.base_is_optional() ? 2 : 1;
  if (method.max_inputs == 1) experts = 0;
  std::string parameters;
  bool weighted = false;
  for (const ParamSpec& spec : method.params) {
    weighted = weighted || spec.name == "weight";
    for (const auto& [name, value] :
         {std::pair("density", "0.4"), std::pair("rescale", "true"), std::pair("t", "0.3")})
      parameters += spec.name == name ? Format("{}{}: {}", parameters.empty() ? "" : ", ", name, value) : "";
  }
  return RecipeOf(method.name, experts, "{" + parameters + "}", weighted);
}

class EveryMethodOnDisk : public testing::TestWithParam<const Method*> {
 protected:
  Planned PlanWith(const PlanOptions& options) const {
    return Must(PlanRecipe(SharedFamily().path(), RecipeFor(*GetParam()), options));
  }
};

TEST_P(EveryMethodOnDisk, ThreadsMemoryAndBlocksDoNotShow) {
  const Planned plain = PlanWith({.memory_bytes = tests::kRoomyMemory, .threads = 1});
  const Ran expected = Must(RunPlan(plain));
  const uint64_t least = plain.plan.least_memory_bytes;
  for (const PlanOptions& options :
       {PlanOptions{.memory_bytes = least, .threads = 1}, PlanOptions{.memory_bytes = least, .threads = 8},
        PlanOptions{.memory_bytes = least + (1u << 20), .threads = 2},
        PlanOptions{.memory_bytes = least + (3u << 20), .threads = 3},
        PlanOptions{.memory_bytes = 1u << 30, .threads = 8, .block_bytes = 16u << 10}}) {
    const Ran ran = Must(RunPlan(PlanWith(options)));
    EXPECT_TRUE(ran.files == expected.files)
        << options.memory_bytes << " bytes, " << options.threads << " threads";
    for (size_t i = 0; i < ran.result.records.size(); ++i) {
      EXPECT_EQ(ran.result.records[i].digest, expected.result.records[i].digest);
      EXPECT_EQ(ran.result.records[i].chunks, expected.result.records[i].chunks);
      if (options.block_bytes == plain.plan.options.block_bytes) {  // sources are known by their blocks
        EXPECT_EQ(ran.result.records[i].sources, expected.result.records[i].sources);
      }
      EXPECT_EQ(ran.result.records[i].thresholds.size(), expected.result.records[i].thresholds.size());
    }
  }
}

TEST_P(EveryMethodOnDisk, InstructionSetsDoNotShow) {
  const PlanOptions options{.memory_bytes = tests::kRoomyMemory, .threads = 2};
  const Ran expected = Must(RunPlan(PlanWith(options)));
  for (const std::string& target : kernels::RunnableTargets())
    EXPECT_TRUE(Must(RunPlan(PlanWith(options), {.kernels = *kernels::ChooseKernels(target)})).files ==
                expected.files)
        << target;
}

TEST_P(EveryMethodOnDisk, ReadsAndWritesWhatThePlanSays) {
  for (const uint64_t extra : {uint64_t{0}, uint64_t{256} << 20}) {
    const uint64_t least = PlanWith({.memory_bytes = tests::kRoomyMemory}).plan.least_memory_bytes;
    const Planned planned = PlanWith({.memory_bytes = least + extra, .threads = 2});
    ProgressCounters progress;
    Must(RunPlan(planned, {.progress = &progress}));
    EXPECT_EQ(planned.ledger->TotalRead(Purpose::kBaseData), planned.plan.costs.base_read_bytes);
    EXPECT_EQ(planned.ledger->TotalRead(Purpose::kExpertData), planned.plan.costs.expert_read_bytes);
    EXPECT_EQ(planned.ledger->Written(), planned.plan.costs.write_bytes);
  }
}

TEST_P(EveryMethodOnDisk, WhatIsNoNumberIsTheBasesByteForByte) {
  const Planned planned = PlanWith({.memory_bytes = tests::kRoomyMemory, .threads = 2});
  const auto tensors = tests::TensorsOf(planned, Must(RunPlan(planned)));
  EXPECT_EQ(tensors.size(), Base().size());
  for (const StoredTensor& base : Base()) {
    EXPECT_EQ(tensors.at(base.name).dtype, base.dtype);
    EXPECT_EQ(tensors.at(base.name).shape, base.shape);
    EXPECT_TRUE(IsMergeable(base.dtype) || tensors.at(base.name).bytes == base.bytes) << base.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryMethodOnDisk, testing::ValuesIn(AllMethods()),
                         [](const auto& method) { return method.param->name; });

// --- values

TEST(Engine, TaskArithmeticIsBasePlusWeightedDeltasInEveryType) {
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), RecipeOf("task_arithmetic", 3)));
  const auto merged = tests::TensorsOf(planned, Must(RunPlan(planned)));
  for (const StoredTensor& base : Base()) {
    if (!IsMergeable(base.dtype)) continue;
    std::vector<double> expected = tests::ValuesOf(base);
    for (size_t e = 0; e < 3; ++e) {
      const auto expert = tests::ReadCheckpoint(SharedFamily() / Format("expert{}", e + 1)).at(base.name);
      const std::vector<double> theta = tests::ValuesOf(base), moved = tests::ValuesOf(expert);
      for (size_t k = 0; k < theta.size(); ++k)
        expected[k] += (0.5 + 0.3 * static_cast<double>(e)) * (moved[k] - theta[k]);
    }
    const std::vector<double> got = tests::ValuesOf(merged.at(base.name));
    const double unit = base.dtype == DType::kBF16 ? 0x1p-8 : base.dtype == DType::kF16 ? 0x1p-11 : 1e-6;
    for (size_t k = 0; k < got.size(); ++k)
      ASSERT_NEAR(got[k], expected[k], unit * std::max(1.0, std::fabs(expected[k])))
          << base.name << " at " << k;
  }
}

TEST(Engine, ExpertsEqualToTheBaseGiveTheBasesBytes) {
  const TempFolder folder;
  std::vector<StoredTensor> base = Base();
  base.push_back(tests::TensorOf("odd", DType::kF32, {5}, {-0.0, 1e-45, -kInfinity, kInfinity, 3e38}));
  for (const char* model : {"base", "expert1", "expert2"})
    tests::WriteCheckpoint(folder / model, base);
  for (const char* method : {"task_arithmetic", "ties", "dare_linear", "dare_ties"}) {
    const Planned planned =
        Must(PlanRecipe(folder.path(), RecipeOf(method, 2, "{density: 0.3, rescale: true}")));
    const auto merged = tests::TensorsOf(planned, Must(RunPlan(planned)));
    for (const StoredTensor& tensor : base)
      EXPECT_EQ(merged.at(tensor.name).bytes, tensor.bytes) << method << ": " << tensor.name;
  }
}

TEST(Engine, TiesKeepsJustItsShareAcrossItems) {
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), RecipeOf("ties", 1, "{density: 0.3}")));
  const Ran ran = Must(RunPlan(planned));
  const auto base = tests::ReadCheckpoint(SharedFamily() / "base");
  const auto merged = tests::TensorsOf(planned, ran);
  const std::vector<double> before = tests::ValuesOf(base.at("big")),
                            after = tests::ValuesOf(merged.at("big"));
  size_t changed = 0;
  for (size_t k = 0; k < before.size(); ++k)
    changed += before[k] != after[k];
  EXPECT_EQ(changed, static_cast<size_t>(0.3 * 300 * 257));
  const TensorRecord& record = ran.result.records[planned.Number("coarse")];
  ASSERT_EQ(record.thresholds.size(), 1u);
  EXPECT_GT(record.thresholds[0].equals, record.thresholds[0].equals_kept) << "the cut lies among equals";
}

// --- stopping, going on, and faults on the way

TEST(Engine, ASignalStopsIt) {
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), RecipeOf("ties", 3, "{density: 0.4}")));
  const std::atomic<int> signal{2};
  EXPECT_THAT(RunPlan(planned, {.stop_signal = &signal}), FailsWith(Code::kInterrupted, "interrupted"));
}

TEST(Engine, ASignalMidwayStopsItBeforeTheRestIsDone) {
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), RecipeOf("ties", 3, "{density: 0.4}")));
  std::atomic<int> signal{0};
  size_t done = 0;
  EngineOptions options{.stop_signal = &signal};
  options.on_tensor = [&](size_t, const TensorRecord&) -> Result<void> {
    ++done;
    signal = 15;
    return {};
  };
  EXPECT_THAT(RunPlan(planned, options), FailsWith(Code::kInterrupted, "interrupted"));
  EXPECT_LT(done, planned.plan.merge->tensors.size() - 1);
}

TEST(Engine, EveryTensorWithElementsIsReportedOnceWithItsRecord) {
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), RecipeOf("ties", 3)));
  std::map<std::string, std::string> reported;
  EngineOptions options;
  options.on_tensor = [&](size_t tensor, const TensorRecord& record) -> Result<void> {
    EXPECT_TRUE(reported.emplace(planned.plan.merge->tensors[tensor].name, record.digest).second);
    return {};
  };
  const Ran ran = Must(RunPlan(planned, options));
  EXPECT_EQ(reported.size(), Base().size() - 1);
  EXPECT_EQ(reported.count("empty"), 0u);
  for (const auto& [name, digest] : reported)
    EXPECT_EQ(ran.result.records[planned.Number(name)].digest, digest);
}

TEST(Engine, AnErrorFromTheReportStopsIt) {
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), RecipeOf("ties", 3)));
  EngineOptions options;
  options.on_tensor = [](size_t, const TensorRecord&) -> Result<void> {
    return Fail(Code::kDifference, "enough");
  };
  EXPECT_THAT(RunPlan(planned, options), FailsWith(Code::kDifference, "enough"));
}

TEST(Engine, WhatIsFinishedIsNeitherReadNorReportedAgain) {
  const std::string recipe = RecipeOf("ties", 3, "{density: 0.4}");
  const Ran whole = Must(RunPlan(Must(PlanRecipe(SharedFamily().path(), recipe))));
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), recipe));
  std::vector<std::optional<TensorRecord>> finished(whole.result.records.begin(), whole.result.records.end());
  finished[planned.Number("bias")].reset();
  std::vector<std::string> reported;
  EngineOptions options;
  options.on_tensor = [&](size_t tensor, const TensorRecord&) -> Result<void> {
    reported.push_back(planned.plan.merge->tensors[tensor].name);
    return {};
  };
  const Ran rest = Must(RunPlan(planned, options, finished));
  EXPECT_EQ(reported, std::vector<std::string>{"bias"});
  EXPECT_EQ(planned.ledger->TotalRead(Purpose::kBaseData), 14u);
  EXPECT_EQ(tests::TensorsOf(planned, rest).at("bias").bytes,
            tests::TensorsOf(planned, whole).at("bias").bytes);
  for (size_t i = 0; i < rest.result.records.size(); ++i)
    EXPECT_EQ(rest.result.records[i].digest, whole.result.records[i].digest);
}

TEST(Engine, AnInputThatShrinksMeanwhileIsAnError) {
  const Family family;
  const Planned planned = Must(PlanRecipe(family.path(), RecipeOf("ties", 3)));
  std::filesystem::resize_file(family / "expert1/model.safetensors", 5'000);
  EXPECT_THAT(RunPlan(planned),
              FailsWith(Code::kInvalidInput, "expert1/model.safetensors: ends before byte"));
}

TEST(Engine, ProgressEndsAtTheTotal) {
  const Planned planned = Must(PlanRecipe(SharedFamily().path(), RecipeOf("ties", 3, "{density: 0.4}")));
  ProgressCounters progress;
  Must(RunPlan(planned, {.progress = &progress}));
  uint64_t data = 0;
  for (const ResolvedTensor& tensor : planned.plan.merge->tensors)
    data += tensor.bytes();
  EXPECT_EQ(progress.done_bytes,
            planned.plan.costs.base_read_bytes + planned.plan.costs.expert_read_bytes + data);
}

}  // namespace
}  // namespace mergepipe
