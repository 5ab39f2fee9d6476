#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "executor/engine.h"
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
using tests::TempFolder;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A base and two experts with one tensor; one element of each can be set.
class NonFiniteTest : public testing::Test {
 protected:
  void Write(const std::string& model, std::optional<double> odd, DType dtype = DType::kF32) {
    std::vector<double> values(20'000, 0.5);
    if (odd) values[17'123] = *odd;
    tests::WriteCheckpoint(folder_ / model, {tests::TensorOf("w", dtype, {200, 100}, values)});
  }
  Result<Ran> Run(const std::string& method, bool allow = false, const std::string& more = "") {
    planned_ = Must(PlanRecipe(folder_.path(), RecipeOf(method, 2, "{density: 0.5}") + more));
    return RunPlan(planned_, {.allow_nonfinite = allow});
  }
  double Odd(const Ran& ran) { return tests::ValuesOf(tests::TensorsOf(planned_, ran).at("w"))[17'123]; }

  TempFolder folder_;
  Planned planned_;
};

TEST_F(NonFiniteTest, AnInputsNanOrInfinityIsAnErrorThatSaysWhere) {
  Write("base", std::nullopt);
  Write("expert1", std::nullopt);
  for (const double odd : {std::nan(""), kInfinity, -kInfinity}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      Write("expert2", odd, dtype);
      for (const char* method : {"linear", "task_arithmetic", "ties"})
        EXPECT_THAT(Run(method),
                    FailsWith(Code::kInvalidInput, "/expert2: tensor 'w' is not finite at element 17123"))
            << method;
    }
  }
}

TEST_F(NonFiniteTest, ItIsCountedAndMergedWhenAllowed) {
  Write("base", std::nullopt);
  Write("expert1", std::nullopt);
  Write("expert2", std::nan(""));
  const Ran ran = Must(Run("task_arithmetic", true));
  EXPECT_EQ(ran.result.nonfinite_tensors, 1u);
  EXPECT_TRUE(std::isnan(Odd(ran)));
}

TEST_F(NonFiniteTest, AnInfinityThatAllInputsShareStays) {
  for (const double shared : {kInfinity, -kInfinity}) {
    Write("base", shared);
    Write("expert1", shared, DType::kBF16);
    Write("expert2", shared);
    for (const char* method : {"linear", "task_arithmetic", "ties", "dare_ties"})
      EXPECT_EQ(Odd(Must(Run(method))), shared) << method;
    Write("expert2", -shared);
    EXPECT_THAT(Run("ties"), FailsWith(Code::kInvalidInput, "is not finite at element 17123"));
  }
}

TEST_F(NonFiniteTest, ANanIsAnErrorEvenWhenShared) {
  for (const char* model : {"base", "expert1", "expert2"})
    Write(model, std::nan(""));
  EXPECT_THAT(Run("ties"), FailsWith(Code::kInvalidInput, "/base: tensor 'w' is not finite"));
}

TEST_F(NonFiniteTest, AnInfinityThatTheArithmeticMakesIsAnError) {
  Write("base", 3e38);
  Write("expert1", -3e38);
  Write("expert2", std::nullopt);
  EXPECT_THAT(Run("task_arithmetic"),
              FailsWith(Code::kInvalidInput,
                        "tensor 'w': the merge makes a value that is not finite at element 17123"));
}

TEST_F(NonFiniteTest, AnInfinityThatRoundingMakesIsAnError) {
  Write("base", std::nullopt);
  Write("expert1", 200'000);
  Write("expert2", std::nullopt);
  EXPECT_THAT(Run("task_arithmetic"), tests::Succeeds());
  EXPECT_THAT(Run("task_arithmetic", false, "out_dtype: float16\n"),
              FailsWith(Code::kInvalidInput, "(stored as F16)"));
  const Ran ran = Must(Run("task_arithmetic", true, "out_dtype: float16\n"));
  EXPECT_EQ(Odd(ran), kInfinity);
  EXPECT_EQ(ran.result.nonfinite_tensors, 1u);
}

TEST_F(NonFiniteTest, WhatIsOnlyCopiedIsLookedAtToo) {
  Write("base", std::nan(""));
  Planned planned =
      Must(PlanRecipe(folder_.path(), "merge_method: passthrough\nmodels: [{model: ~/base}]\n"));
  EXPECT_THAT(RunPlan(planned),
              FailsWith(Code::kInvalidInput, "/base: tensor 'w' is not finite at element 17123"));
  EXPECT_THAT(RunPlan(planned, {.allow_nonfinite = true}), tests::Succeeds());
}

}  // namespace
}  // namespace mergepipe
