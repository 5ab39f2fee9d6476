#include "catalog/sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::Must;

TEST(Sketch, QuantisingKeepsEachBucketWithinHalfAStep) {
  std::vector<double> sums(kSketchBuckets);
  for (size_t k = 0; k < sums.size(); ++k)
    sums[k] = std::sin(static_cast<double>(k)) * 3e-5;
  const QuantisedSketch sketch = Quantise(sums);
  for (size_t k = 0; k < sums.size(); ++k)
    EXPECT_NEAR(sketch.values[k] * static_cast<double>(sketch.scale), sums[k],
                0.51 * static_cast<double>(sketch.scale));
}

TEST(Sketch, NothingAndTheImmeasurablySmallAreZero) {
  for (const double value : {0.0, 1e-300, -1e-60}) {
    const QuantisedSketch sketch = Quantise(std::vector<double>(kSketchBuckets, value));
    EXPECT_EQ(sketch.scale, 0.0f);
    EXPECT_EQ(sketch.values[5], 0);
  }
}

// Columns of one block with the sketch of these deltas.
BlockColumns ColumnsOf(const std::vector<float>& delta) {
  const kernels::Kernels& kernels = *Must(kernels::ChooseKernels(""));
  float sums[kSketchBuckets] = {};
  kernels.f32.add_sketch(delta.data(), delta.size(), 0, sums);
  const QuantisedSketch sketch = Quantise(std::vector<double>(sums, sums + kSketchBuckets));
  BlockColumns columns;
  columns.sketch_scale = {sketch.scale};
  columns.sketch.assign(sketch.values, sketch.values + kSketchBuckets);
  return columns;
}

TEST(Sketch, InnerProductsAreEstimatedWithinTheNoise) {
  constexpr size_t kCount = 1 << 16;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> a(kCount), noise(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    a[i] = normal(random);
    noise[i] = normal(random);
  }
  for (const float share : {-1.0f, 0.0f, 0.5f, 1.0f}) {
    std::vector<float> b(kCount);
    double exact = 0, norm_a = 0, norm_b = 0;
    for (size_t i = 0; i < kCount; ++i) {
      b[i] = share * a[i] + (1 - std::fabs(share)) * noise[i];
      exact += a[i] * b[i];
      norm_a += a[i] * a[i];
      norm_b += b[i] * b[i];
    }
    const double sigma = std::sqrt(norm_a * norm_b / kSketchBuckets);
    EXPECT_NEAR(SketchDot(ColumnsOf(a), ColumnsOf(b), 0), exact, 5 * sigma) << share;
  }
}

TEST(Sketch, TheGramMatrixHoldsTheDots) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 1);
  std::vector<BlockColumns> experts;
  for (int e = 0; e < 19; ++e) {
    std::vector<float> delta(1000);
    for (float& v : delta)
      v = normal(random);
    experts.push_back(ColumnsOf(delta));
  }
  std::vector<const BlockColumns*> pointers;
  for (const BlockColumns& columns : experts)
    pointers.push_back(&columns);
  std::vector<double> gram(experts.size() * experts.size());
  std::vector<int32_t> scratch;
  SketchGram(pointers, 0, *Must(kernels::ChooseKernels("")), scratch, gram.data());
  for (size_t i = 0; i < experts.size(); ++i) {
    for (size_t j = 0; j < experts.size(); ++j)
      EXPECT_EQ(gram[i * experts.size() + j], SketchDot(experts[i], experts[j], 0));
  }
}

}  // namespace
}  // namespace mergepipe
