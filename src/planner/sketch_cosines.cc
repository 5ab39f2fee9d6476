#include "planner/sketch_cosines.h"

namespace mergepipe {
namespace {

const kernels::Kernels& FastestKernels() {
  static const kernels::Kernels& kernels = **kernels::ChooseKernels("");
  return kernels;
}

}  // namespace

// Over the blocks of a tensor so far, by pair: Σ cosine·norms, Σ norms, Σ norms²; norms = ‖Δ_a‖‖Δ_b‖.
struct SketchCosines::Sums {
  explicit Sums(size_t pairs) : dot(pairs), norms(pairs), squares(pairs) {}
  std::vector<double> dot, norms, squares;

  std::vector<size_t> sources;  // that have a sketch
  std::vector<const BlockColumns*> columns;
  // Of the block at hand, by position in `sources`.
  std::vector<const int8_t*> sketches;
  std::vector<int32_t> products;  // of all pairs of sketches
  std::vector<double> inverse;    // 1 / length of the sketch; 0 where that is 0
  std::vector<double> norm;       // ‖Δ‖

  void LoadBlock(size_t block) {
    const size_t count = sources.size();
    for (size_t i = 0; i < count; ++i)
      sketches[i] = columns[i]->sketch.data() + block * kSketchBuckets;
    FastestKernels().multiply_sketches(sketches.data(), count, products.data());
    for (size_t i = 0; i < count; ++i) {
      const auto square = static_cast<double>(products[i * count + i]);
      inverse[i] = square > 0 && columns[i]->sketch_scale[block] > 0 ? 1 / std::sqrt(square) : 0;
      norm[i] = std::sqrt(columns[i]->energy[block]);
    }
  }
};

SketchCosines::SketchCosines(std::span<const BlockColumns* const> sources, size_t blocks)
    : of_block_(blocks * sources.size() * (sources.size() - 1) / 2),
      of_tensor_(sources.size() * (sources.size() - 1) / 2) {
  Sums sums(of_tensor_.size());
  for (size_t s = 0; s < sources.size(); ++s) {
    if (sources[s] == nullptr) continue;
    sums.sources.push_back(s);
    sums.columns.push_back(sources[s]);
  }
  const size_t count = sums.sources.size();
  sums.sketches.resize(count);
  sums.products.resize(count * count);
  sums.inverse.resize(count);
  sums.norm.resize(count);
  for (size_t b = 0; b < blocks && count > 1; ++b)
    AddBlock(b, sums);
  for (size_t p = 0; p < of_tensor_.size(); ++p) {
    const double noise = kErrors * std::sqrt(sums.squares[p] / static_cast<double>(kSketchBuckets));
    if (std::fabs(sums.dot[p]) >= noise && sums.norms[p] > 0) of_tensor_[p] = sums.dot[p] / sums.norms[p];
  }
}

void SketchCosines::AddBlock(size_t block, Sums& sums) {
  sums.LoadBlock(block);
  const size_t count = sums.sources.size();
  float* const cosines = of_block_.data() + block * of_tensor_.size();
  for (size_t i = 1; i < count; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const size_t pair = PairOf(sums.sources[i], sums.sources[j]);
      const double cosine =
          static_cast<double>(sums.products[i * count + j]) * (sums.inverse[i] * sums.inverse[j]);
      const double norms = sums.norm[i] * sums.norm[j];
      cosines[pair] = static_cast<float>(cosine);
      sums.dot[pair] += cosine * norms;
      sums.norms[pair] += norms;
      sums.squares[pair] += norms * norms;
    }
  }
}

}  // namespace mergepipe
