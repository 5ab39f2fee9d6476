#include "methods/vector_gram.h"

namespace mergepipe {
namespace {

class VectorGram : public JointStatistics {
 public:
  VectorGram(const VectorSet& vectors, size_t inputs)
      : vectors_(vectors), pairs_(inputs * (inputs + 1) / 2), products_(vectors.count() * pairs_, 0.0) {}

  bool InOrder() const override { return true; }
  void Add(JointScratch&, const StatisticsTile<float>& tile) override { AddTile(tile); }
  void Add(JointScratch&, const StatisticsTile<double>& tile) override { AddTile(tile); }
  void Merge(JointScratch&) override {}
  void FinishRound() override {}
  JointResult TakeResult() override { return {.values = std::move(products_), .threshold = {}}; }

 private:
  template <typename T>
  void AddTile(const StatisticsTile<T>& tile) {
    return vectors_.columns ? AddColumns(tile) : AddRows(tile);
  }

  template <typename T>
  void AddRows(const StatisticsTile<T>& tile) {
    ForRows({.length = vectors_.length}, tile.first, tile.n, [&](uint64_t row, size_t at, size_t n) {
      double* sum = &products_[row * pairs_];
      for (size_t i = 0; i < tile.inputs.size(); ++i) {
        for (size_t j = i; j < tile.inputs.size(); ++j)
          *sum++ += tile.loops->dot(tile.inputs[i] + at, tile.inputs[j] + at, n);
      }
    });
  }

  template <typename T>
  void AddColumns(const StatisticsTile<T>& tile) {
    for (size_t k = 0; k < tile.n; ++k) {
      double* sum = &products_[(tile.first + k) % vectors_.length * pairs_];
      for (size_t i = 0; i < tile.inputs.size(); ++i) {
        for (size_t j = i; j < tile.inputs.size(); ++j)
          *sum++ += static_cast<double>(tile.inputs[i][k]) * static_cast<double>(tile.inputs[j][k]);
      }
    }
  }

  VectorSet vectors_;
  size_t pairs_;
  std::vector<double> products_;  // [vectors, pairs]
};

class VectorGramSpec : public JointStatisticsSpec {
 public:
  VectorGramSpec(const VectorSet& vectors, size_t inputs) : vectors_(vectors), inputs_(inputs) {}
  size_t Rounds() const override { return 1; }
  uint64_t MemoryBytes() const override {
    const uint64_t pairs = inputs_ * (inputs_ + 1) / 2;
    return vectors_.count() * (pairs + inputs_) * sizeof(double);
  }
  std::unique_ptr<JointStatistics> Make() const override {
    return std::make_unique<VectorGram>(vectors_, inputs_);
  }

 private:
  VectorSet vectors_;
  size_t inputs_;
};

}  // namespace

VectorSet VectorSet::Of(const TensorFacts& facts, bool columns) {
  VectorSet set{.elements = facts.elements, .columns = columns};
  if (columns) {
    const uint64_t first = facts.shape.empty() ? 1 : facts.shape[0];
    set.length = std::max<uint64_t>(1, facts.elements / std::max<uint64_t>(1, first));
  } else {
    set.length = std::max<uint64_t>(1, Rows::Of(facts).length);
  }
  return set;
}

StatisticsRequest RequestVectorGram(const VectorSet& vectors, size_t inputs) {
  if (vectors.count() == 1) return {.gram = true};
  return {.joint = std::make_shared<VectorGramSpec>(vectors, inputs)};
}

}  // namespace mergepipe
