#include "planner/certificate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/text.h"
#include "planner/block_error.h"
#include "planner/choose.h"
#include "support/evidence.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "support/runs.h"

namespace mergepipe {
namespace {

using tests::FakeEvidence;
using tests::Must;
using tests::Planned;
using tests::PlanRecipe;
using tests::RecipeOf;
using tests::StoredTensor;
using tests::TempFolder;

constexpr PlanOptions kOptions{.memory_bytes = tests::kRoomyMemory, .block_bytes = 16u << 10};

// Values whose sizes lie far apart, down to what is subnormal in F16.
std::vector<double> Values(size_t count, std::mt19937& random, double scale) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values)
    value = normal(random) * scale * std::pow(2.0, -static_cast<double>(random() % 30));
  return values;
}

void WriteModels(const std::string& folder, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  const size_t count = 9'000 + random() % 20'000;
  const std::vector<double> base = Values(count, random, 4);
  const double scale = std::pow(10.0, -static_cast<double>(random() % 5));
  tests::WriteCheckpoint(folder + "/base", {tests::TensorOf("w", dtype, {count}, base)});
  for (int e = 1; e <= 3; ++e) {
    std::vector<double> values = Values(count, random, scale);
    for (size_t k = 0; k < count; ++k)
      values[k] += base[k];
    tests::WriteCheckpoint(folder + Format("/expert{}", e), {tests::TensorOf("w", dtype, {count}, values)});
  }
}

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k)
    sum += (a[k] - b[k]) * (a[k] - b[k]);
  return std::sqrt(sum);
}

// Σ λ_i Δ_i over what the mask leaves out, in float64.
double ExactError(const Plan& plan, const std::vector<double>& coefficients) {
  const TensorMask& mask = plan.masks[0];
  const std::vector<double> base = tests::ValuesOf(plan, 0, 0);
  std::vector<double> error(base.size(), 0);
  for (size_t s = 1; s < mask.sources(); ++s) {
    const std::vector<double> values = tests::ValuesOf(plan, 0, s);
    for (size_t k = 0; k < error.size(); ++k)
      error[k] += mask.FromAt(s, k) == TensorMask::kOmitted ? coefficients[s] * (values[k] - base[k]) : 0;
  }
  return Distance(error, std::vector<double>(error.size(), 0));
}

std::vector<double> MergedValues(const Planned& planned) {
  return tests::ValuesOf(tests::TensorsOf(planned, Must(tests::RunPlan(planned))).at("w"));
}

struct Case {
  const char* method;
  DType stored;
  const char* out_dtype;
};

class CertificateHolds : public testing::TestWithParam<Case> {};

TEST_P(CertificateHolds, ForWhatIsStoredAndBeforeItIsRounded) {
  const Case& c = GetParam();
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const TempFolder folder;
    WriteModels(folder.path(), c.stored, seed);
    const std::string recipe = RecipeOf(c.method, 3) + Format("out_dtype: {}\n", c.out_dtype);
    Planned planned = Must(PlanRecipe(folder.path(), recipe, kOptions));
    const std::vector<double> full = MergedValues(planned);
    FakeEvidence evidence = tests::ReckonEvidence(planned.plan);
    for (const double share : {0.0, 25.0, 60.0, 95.0}) {
      Plan& plan = planned.plan;
      Must(ChooseReads(plan, {.kind = Budget::Kind::kShare, .percent = share, .policy = Policy::kRandom},
                       evidence));
      const Certificate certificate = plan.budget.certificate.value();
      const auto coefficients = SourceCoefficients(*plan.merge, plan.merge->tensors[0]);
      EXPECT_LE(ExactError(plan, coefficients), certificate.l2 * (1 + 1e-9)) << seed << " " << share;
      EXPECT_LE(Distance(MergedValues(planned), full), certificate.l2 + certificate.rounding_l2)
          << seed << " " << share;
      plan.masks[0] = {};
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, CertificateHolds,
    testing::Values(Case{"task_arithmetic", DType::kF32, "float32"},
                    Case{"task_arithmetic", DType::kF32, "bfloat16"},
                    Case{"task_arithmetic", DType::kF32, "float16"},
                    Case{"task_arithmetic", DType::kBF16, "bfloat16"},
                    Case{"task_arithmetic", DType::kF16, "float16"}, Case{"linear", DType::kF32, "float32"},
                    Case{"linear", DType::kBF16, "bfloat16"}, Case{"linear", DType::kF16, "float32"}),
    [](const auto& c) {
      return Format("{}_{}_{}", c.param.method, DTypeName(c.param.stored), c.param.out_dtype);
    });

TEST(Certificate, IsNothingWhereNothingIsLeftOut) {
  const TempFolder folder;
  WriteModels(folder.path(), DType::kF32, 1);
  const Planned planned = Must(PlanRecipe(folder.path(), RecipeOf("task_arithmetic", 3), kOptions));
  CertificateSum sum(*planned.plan.merge);
  sum.Add({.tensor = 0, .elements = 4'096, .base_energy = 100, .all_norms = 5, .omitted_norms = 0},
          {0, 1, 1, 1});
  EXPECT_EQ(sum.Value().l2, 0);
  EXPECT_EQ(sum.Value().rounding_l2, 0);
}

TEST(Certificate, AddsBlocksAsSquaresAndWhatIsLeftOutOfOneAsNorms) {
  const TempFolder folder;
  WriteModels(folder.path(), DType::kF32, 1);
  const Planned planned = Must(PlanRecipe(folder.path(), RecipeOf("task_arithmetic", 3), kOptions));
  CertificateSum sum(*planned.plan.merge);
  for (const double norm : {3.0, 4.0})
    sum.Add({.tensor = 0, .elements = 10, .base_energy = 1, .all_norms = 7, .omitted_norms = norm},
            {0, 1, 1, 1});
  EXPECT_NEAR(sum.Value().l2, 5, 1e-5);
  EXPECT_GE(sum.Value().l2, 5) << "rounded up";
}

}  // namespace
}  // namespace mergepipe
