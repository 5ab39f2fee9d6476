#include <algorithm>

#include "methods/changed_elements.h"
#include "methods/joint_statistics.h"

namespace mergepipe {
namespace {

// By input: how many elements it changes alone, and how many together with others.
class ChangeCounts : public JointStatistics {
 public:
  ChangeCounts(size_t inputs, double epsilon) : epsilon_(epsilon), counts_(2 * inputs, 0) {}

  void Add(JointScratch& scratch, const StatisticsTile<float>& tile) override { AddTile(scratch, tile); }
  void Add(JointScratch& scratch, const StatisticsTile<double>& tile) override { AddTile(scratch, tile); }
  void Merge(JointScratch& scratch) override {
    for (size_t i = 0; i < scratch.counts.size(); ++i)
      counts_[i] += scratch.counts[i];
    scratch.counts.clear();
  }
  void FinishRound() override {}
  JointResult TakeResult() override {
    return {.values = std::vector<double>(counts_.begin(), counts_.end()), .threshold = {}};
  }

 private:
  template <typename T>
  void AddTile(JointScratch& scratch, const StatisticsTile<T>& tile) const {
    scratch.counts.resize(counts_.size());
    const T epsilon = static_cast<T>(epsilon_);
    CountChanges(tile.inputs, epsilon, tile.scratch, tile.n);
    for (size_t i = 0; i < tile.inputs.size(); ++i) {
      for (size_t k = 0; k < tile.n; ++k) {
        if (std::fabs(tile.inputs[i][k]) > epsilon)
          ++scratch.counts[2 * i + (tile.scratch[k] == T{1} ? 0 : 1)];
      }
    }
  }

  double epsilon_;
  std::vector<uint64_t> counts_;  // [inputs, {alone, together}]
};

class ChangeCountsSpec : public JointStatisticsSpec {
 public:
  ChangeCountsSpec(size_t inputs, double epsilon) : inputs_(inputs), epsilon_(epsilon) {}
  size_t Rounds() const override { return 1; }
  uint64_t MemoryBytes() const override { return 2 * inputs_ * sizeof(uint64_t); }
  std::unique_ptr<JointStatistics> Make() const override {
    return std::make_unique<ChangeCounts>(inputs_, epsilon_);
  }

 private:
  size_t inputs_;
  double epsilon_;
};

Result<StatisticsRequest> Request(const TensorFacts&, const TensorParams& params) {
  return StatisticsRequest{
      .joint = std::make_shared<ChangeCountsSpec>(params.inputs.size(), params.Get("epsilon"))};
}

// λ_i = 1 + r · clip(ρ_i, 0, α), ρ_i = shared / max(alone, ε), in float32 as the peer does.
Constants Prepare(const TensorFacts&, const TensorParams& params, const TensorStatistics& statistics) {
  Constants constants{.factor = params.Get("epsilon")};
  const auto r = static_cast<float>(params.Get("r"));
  const auto alpha = static_cast<float>(params.Get("alpha"));
  for (size_t i = 0; i < params.inputs.size(); ++i) {
    const auto alone = static_cast<float>(statistics.joint.values[2 * i]);
    const auto shared = static_cast<float>(statistics.joint.values[2 * i + 1]);
    const float ratio = shared / std::max(alone, static_cast<float>(params.Get("epsilon")));
    constants.weights.push_back(1.0F + r * std::min(std::max(ratio, 0.0F), alpha));
  }
  return constants;
}

}  // namespace

const Method& Method_ramplus_tl() {
  static const Method method = {
      .name = "ramplus_tl",
      .summary =
          "as ram, and enlarges what a model changes alone the more of its changes it shares in the tensor",
      .paper = "Yuan et al. 2026, Behavior Knowledge Merge in Reinforced Agentic Models, arXiv:2601.13572",
      .formula =
          "as ram, with λ_i Δ_i where model i alone changes an element; λ_i = 1 + r · min(α, shared_i / "
          "alone_i)",
      .min_inputs = 1,
      .params = {{.name = "r", .default_value = 0.1, .doc = "how much sharing enlarges"},
                 {.name = "alpha",
                  .default_value = 0.2,
                  .doc = "largest ratio of shared to lone changes that counts"},
                 LeastChangeParam()},
      .request = Request,
      .prepare = Prepare,
      .apply32 = ApplyChanges<float>,
      .apply64 = ApplyChanges<double>,
      .coefficients = EvenCoefficients,  // where deltas are dense most elements are changed by all
  };
  return method;
}

}  // namespace mergepipe
