#include "catalog/sketch.h"

#include <algorithm>
#include <cmath>

namespace mergepipe {
namespace {

constexpr double kSteps = 127;

const int8_t* SketchOf(const BlockColumns& columns, size_t block) {
  return columns.sketch.data() + block * kSketchBuckets;
}

double ScaleOf(const BlockColumns& columns, size_t block) {
  return static_cast<double>(columns.sketch_scale[block]);
}

}  // namespace

QuantisedSketch Quantise(std::span<const double> sums) {
  double largest = 0;
  for (const double sum : sums)
    largest = std::max(largest, std::fabs(sum));
  QuantisedSketch sketch{.scale = static_cast<float>(largest / kSteps)};
  if (!(sketch.scale > 0) || !std::isfinite(sketch.scale)) return {};
  for (size_t k = 0; k < sums.size(); ++k) {
    const double steps = std::nearbyint(sums[k] / static_cast<double>(sketch.scale));
    sketch.values[k] = static_cast<int8_t>(std::clamp(steps, -kSteps, kSteps));
  }
  return sketch;
}

double SketchDot(const BlockColumns& a, const BlockColumns& b, size_t block) {
  const int8_t* x = SketchOf(a, block);
  const int8_t* y = SketchOf(b, block);
  int32_t sum = 0;
  for (size_t k = 0; k < kSketchBuckets; ++k)
    sum += x[k] * y[k];
  return ScaleOf(a, block) * ScaleOf(b, block) * sum;
}

void SketchGram(std::span<const BlockColumns* const> experts, size_t block, const kernels::Kernels& kernels,
                std::vector<int32_t>& scratch, double* gram) {
  const size_t count = experts.size();
  std::vector<const int8_t*> sketches;
  for (const BlockColumns* columns : experts)
    sketches.push_back(SketchOf(*columns, block));
  scratch.resize(count * count);
  kernels.multiply_sketches(sketches.data(), count, scratch.data());
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j)
      gram[i * count + j] =
          ScaleOf(*experts[i], block) * ScaleOf(*experts[j], block) * scratch[i * count + j];
  }
}

}  // namespace mergepipe
