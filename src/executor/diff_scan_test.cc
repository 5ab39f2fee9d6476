#include "executor/diff_scan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tests::Must;
using tests::StoredTensor;
using tests::TempFolder;

class DiffTest : public testing::Test {
 protected:
  void Write(const std::string& model, const std::vector<StoredTensor>& tensors) {
    tests::WriteCheckpoint(folder_ / model, tensors);
  }
  // Compares b with a, and with base where there is one.
  DiffFindings Diff(size_t threads = 2, bool with_base = false) {
    Ledger ledger;
    std::unique_ptr<Checkpoint> models[3];
    for (const auto& [i, name] : std::map<size_t, const char*>{{0, "a"}, {1, "b"}, {2, "base"}}) {
      if (i < 2 || with_base) models[i] = Must(Checkpoint::Open(folder_ / name, name, ledger));
    }
    ProgressCounters progress;
    return Must(ScanDifference(*models[0], *models[1], models[2].get(), *Must(kernels::ChooseKernels("")),
                               {.threads = threads, .memory_bytes = 256u << 20}, progress));
  }
  TempFolder folder_;
};

TEST_F(DiffTest, NormsAndCountsAreThoseOfTheValues) {
  Write("a", {tests::TensorOf("w", DType::kF32, {4}, {3, 4, 0, 0})});
  Write("b", {tests::TensorOf("w", DType::kF32, {4}, {3, 2, 0, -1})});
  Write("base", {tests::TensorOf("w", DType::kBF16, {4}, {3, 0, 3, 0})});
  const TensorDifference w = Diff(2, true).tensors.at(0);
  EXPECT_EQ(w.elements, 4u);
  EXPECT_EQ(w.differing_elements, 2u);
  EXPECT_EQ(w.max_abs, 2);
  EXPECT_DOUBLE_EQ(w.difference_norm, std::sqrt(5));
  EXPECT_DOUBLE_EQ(w.weight_norm, 5);
  EXPECT_DOUBLE_EQ(w.update_norm, 5);
  EXPECT_TRUE(w.comparable && w.has_base);
  EXPECT_EQ(w.note, "");
}

TEST_F(DiffTest, StoredTypesDoNotMatterButValuesDo) {
  Write("a", {tests::TensorOf("w", DType::kF32, {2}, {1.5, -2})});
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    Write("b", {tests::TensorOf("w", dtype, {2}, {1.5, -2})});
    EXPECT_EQ(Diff().tensors.at(0).differing_elements, 0u) << DTypeName(dtype);
  }
  Write("a", {tests::TensorOf("w", DType::kF64, {1}, {1 + 1e-12})});
  Write("b", {tests::TensorOf("w", DType::kF32, {1}, {1})});
  EXPECT_NEAR(Diff().tensors.at(0).max_abs, 1e-12, 1e-15);
}

TEST_F(DiffTest, ThreadsDoNotShow) {
  const StoredTensor big = tests::RandomTensor("w", DType::kF32, {1'000'003}, 1);
  Write("a", {big});
  Write("b", {tests::Finetuned(big, DType::kBF16, 2, 0.1)});
  const TensorDifference one = Diff(1).tensors.at(0);
  EXPECT_GT(one.difference_norm, 0);
  for (const size_t threads : {3u, 20u}) {
    const TensorDifference many = Diff(threads).tensors.at(0);
    EXPECT_EQ(many.difference_norm, one.difference_norm);
    EXPECT_EQ(many.weight_norm, one.weight_norm);
    EXPECT_EQ(many.max_abs, one.max_abs);
    EXPECT_EQ(many.differing_elements, one.differing_elements);
  }
}

TEST_F(DiffTest, TensorsOfOneSideAloneAreListed) {
  const auto w = [](const char* name) { return tests::TensorOf(name, DType::kF32, {1}, {1}); };
  Write("a", {w("both"), w("left")});
  Write("b", {w("both"), w("right")});
  Write("base", {w("other")});
  const DiffFindings findings = Diff(2, true);
  EXPECT_THAT(findings.only_in_a, ElementsAre("left"));
  EXPECT_THAT(findings.only_in_b, ElementsAre("right"));
  EXPECT_THAT(findings.missing_in_base, ElementsAre("both"));
  EXPECT_EQ(findings.tensors.size(), 1u);
  EXPECT_FALSE(findings.tensors[0].has_base);
}

TEST_F(DiffTest, ShapesThatDifferAreNoNumbers) {
  Write("a", {tests::TensorOf("w", DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6})});
  Write("b", {tests::TensorOf("w", DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6})});
  const TensorDifference w = Diff().tensors.at(0);
  EXPECT_FALSE(w.comparable);
  EXPECT_EQ(w.note, "shape [2, 3] against [3, 2]");
  EXPECT_EQ(w.differing_elements, 6u);
}

TEST_F(DiffTest, CodesAreComparedByTheirBytes) {
  Write("a", {{"ids", DType::kI16, {3}, std::string("\1\0\2\0\3\0", 6)}});
  Write("b", {{"ids", DType::kI16, {3}, std::string("\1\0\2\1\3\0", 6)}});
  EXPECT_EQ(Diff().tensors.at(0).differing_elements, 1u);
  EXPECT_THAT(Diff().tensors.at(0).note, HasSubstr("compared by its bytes"));
  Write("b", {tests::TensorOf("ids", DType::kF32, {3}, {1, 2, 3})});
  EXPECT_FALSE(Diff().tensors.at(0).comparable);
  EXPECT_EQ(Diff().tensors.at(0).differing_elements, 3u);
}

TEST_F(DiffTest, EmptyTensorsAndScalarsAreEqualToThemselves) {
  for (const char* model : {"a", "b"})
    Write(model, {{"empty", DType::kF32, {0}, ""}, tests::TensorOf("scalar", DType::kF16, {}, {7})});
  for (const TensorDifference& tensor : Diff().tensors)
    EXPECT_EQ(tensor.differing_elements, 0u) << tensor.name;
}

TEST_F(DiffTest, EqualInfinitiesAndNansAreNoDifference) {
  for (const char* model : {"a", "b"})
    Write(model, {tests::TensorOf("w", DType::kF32, {3}, {INFINITY, NAN, 1})});
  const TensorDifference w = Diff().tensors.at(0);
  EXPECT_EQ(w.differing_elements, 0u);
  EXPECT_EQ(w.max_abs, 0);
}

}  // namespace
}  // namespace mergepipe
