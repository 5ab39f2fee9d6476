#include <algorithm>
#include <cmath>

#include "methods/combine.h"
#include "methods/statistics.h"
#include "methods/task_vectors.h"

namespace mergepipe {
namespace {

// Below this the energies of all deltas together count as nothing, and all models weigh the same.
constexpr double kTinyEnergy = 1e-6;
constexpr double kTinyShare = 1e-6;

// Population variance of an element over the models, rounded once to float32.
template <typename T>
void Variance(std::span<T* const> inputs, T* out, size_t n) {
  const auto count = static_cast<double>(inputs.size());
  for (size_t k = 0; k < n; ++k) {
    double mean = 0;
    for (const T* input : inputs)
      mean += static_cast<double>(input[k]);
    mean /= count;
    double squares = 0;
    bool same = true;
    for (const T* input : inputs) {
      const double distance = static_cast<double>(input[k]) - mean;
      squares += distance * distance;
      same = same && input[k] == inputs[0][k];
    }
    out[k] = same ? T{0} : static_cast<T>(static_cast<float>(squares / count));
  }
}

// The energy Σ Δ² of each input over the elements that are selected. Selecting: round by round the k-th
// largest variance, k = select_topk of those that are not 0, then one round of energies.
class SelectedEnergies : public JointStatistics {
 public:
  SelectedEnergies(uint64_t elements, size_t inputs, float share, bool selects)
      : elements_(elements),
        share_(share),
        select_rounds_(selects ? MagnitudeSelection::Rounds(elements) : 0),
        selection_(elements, 1, /*l1=*/false),
        energies_(inputs) {}

  bool InOrder() const override { return round_ == select_rounds_ && threshold_.CutsAmongEquals(); }
  void Add(JointScratch& scratch, const StatisticsTile<float>& tile) override { AddTile(scratch, tile); }
  void Add(JointScratch& scratch, const StatisticsTile<double>& tile) override { AddTile(scratch, tile); }

  void Merge(JointScratch& scratch) override {
    if (round_ < select_rounds_) {
      if (scratch.magnitudes.empty()) return;
      selection_.Merge(scratch.magnitudes[0]);
      for (const uint64_t nonzeros : scratch.counts)
        nonzeros_ += nonzeros;
      scratch.counts.clear();
      return;
    }
    for (size_t i = 0; i < scratch.sums.size(); ++i)
      energies_[i].Merge(scratch.sums[i]);
    scratch.sums.clear();
  }

  void FinishRound() override {
    if (round_ < select_rounds_) {
      const auto wanted = static_cast<uint64_t>(static_cast<float>(nonzeros_) * share_);
      selection_.Keep(std::clamp<uint64_t>(wanted, 1, elements_));
      selection_.FinishRound();
      threshold_ = wanted == 0 ? Threshold{.key = kAboveAll} : selection_.threshold();
      equals_left_ = threshold_.equal_kept;
    }
    ++round_;
  }

  JointResult TakeResult() override {
    JointResult result;
    for (const ExactSum& energy : energies_)
      result.values.push_back(energy.Value());
    if (select_rounds_ > 0) result.threshold = threshold_;
    return result;
  }

 private:
  static constexpr uint32_t kAboveAll = 0x7fffffffu;

  template <typename T>
  void AddTile(JointScratch& scratch, const StatisticsTile<T>& tile) {
    if (select_rounds_ > 0) Variance(tile.inputs, tile.scratch, tile.n);
    if (round_ < select_rounds_) {
      scratch.magnitudes.resize(1);
      scratch.counts.resize(1);
      selection_.Count(scratch.magnitudes[0], tile.scratch, tile.n, *tile.loops);
      if (round_ == 0) scratch.counts[0] += tile.loops->count_nonzero(tile.scratch, tile.n);
      return;
    }
    scratch.sums.resize(energies_.size());
    if (select_rounds_ > 0)
      SelectByScore<T>(threshold_, &equals_left_, tile.scratch, tile.inputs, tile.n, tile.first, *tile.loops);
    for (size_t i = 0; i < energies_.size(); ++i)
      scratch.sums[i].Add(tile.loops->dot(tile.inputs[i], tile.inputs[i], tile.n));
  }

  uint64_t elements_;
  float share_;
  size_t select_rounds_;
  size_t round_ = 0;
  MagnitudeSelection selection_;
  uint64_t nonzeros_ = 0;
  Threshold threshold_;
  uint64_t equals_left_ = 0;  // rounds that cut among equals go in order: the first of them stay
  std::vector<ExactSum> energies_;
};

class SelectedEnergiesSpec : public JointStatisticsSpec {
 public:
  SelectedEnergiesSpec(uint64_t elements, size_t inputs, double share)
      : elements_(elements), inputs_(inputs), share_(share) {}
  size_t Rounds() const override { return 1 + (Selects() ? MagnitudeSelection::Rounds(elements_) : 0); }
  uint64_t MemoryBytes() const override {
    return MagnitudeSelection::MemoryBytes(elements_, false) + inputs_ * sizeof(ExactSum);
  }
  uint64_t ScratchBytes() const override {
    return MagnitudeSelection::kScratchBytes + inputs_ * sizeof(ExactSum);
  }
  std::unique_ptr<JointStatistics> Make() const override {
    return std::make_unique<SelectedEnergies>(elements_, inputs_, static_cast<float>(share_), Selects());
  }

 private:
  bool Selects() const { return share_ < 1; }
  uint64_t elements_;
  size_t inputs_;
  double share_;
};

Result<StatisticsRequest> Request(const TensorFacts& facts, const TensorParams& params) {
  StatisticsRequest request;
  const double share = params.Get("select_topk");
  if (share <= 0) {  // nothing is selected: the base
    request.keep.assign(params.inputs.size(), {.kind = KeepRule::Kind::kNone});
  } else {
    request.joint = std::make_shared<SelectedEnergiesSpec>(facts.elements, params.inputs.size(), share);
  }
  return request;
}

Constants Prepare(const TensorFacts& facts, const TensorParams& params, const TensorStatistics& statistics) {
  Constants constants;
  const auto elements = static_cast<double>(facts.elements);
  double total = 0;
  for (const double energy : statistics.joint.values)
    total += energy / elements;
  for (size_t i = 0; i < params.inputs.size(); ++i) {
    const bool even = std::fabs(total) < kTinyEnergy || statistics.joint.values.empty();
    constants.weights.push_back(even ? 1.0 / static_cast<double>(params.inputs.size())
                                     : statistics.joint.values[i] / elements / total);
  }
  return constants;
}

// The sign of Σ Δ_i is elected; what agrees with it is averaged by weight.
template <typename T>
void Apply(const Constants& constants, Tile<T>& tile) {
  const auto& loops = *tile.loops;
  T* mix = tile.scratch[0];
  T* weight = tile.scratch[1];
  Elect(
      constants, [](size_t) { return 1.0; }, tile);
  for (size_t k = 0; k < tile.n; ++k)
    weight[k] = std::max(weight[k], static_cast<T>(kTinyShare));
  loops.divide_by(mix, weight, tile.n);
  loops.add_to_base(tile.base, mix, tile.out, tile.n);
}

}  // namespace

const Method& Method_sce() {
  static const Method method = {
      .name = "sce",
      .summary =
          "selects the elements that vary most over the models, weighs models by energy, erases what "
          "disagrees",
      .paper = "Wan et al. 2024, FuseChat: Knowledge Fusion of Chat Models, arXiv:2408.07990",
      .formula =
          "θ = θ_0 + Σ w_i Δ'_i [sign agrees] / Σ w_i [sign agrees], w_i = ‖Δ'_i‖² / Σ_j ‖Δ'_j‖², "
          "Δ' = Δ where Var_i(Δ_i) is among the select_topk largest",
      .min_inputs = 1,
      .params = {{.name = "select_topk",
                  .default_value = 1.0,
                  .doc = "share of the elements whose variance is not 0 that is kept; from 1 on all are"},
                 MaskTypeParam()},
      .request = Request,
      .prepare = Prepare,
      .apply32 = Apply<float>,
      .apply64 = Apply<double>,
      .score32 = Variance<float>,
      .score64 = Variance<double>,
      .coefficients = EvenCoefficients,
      .elects_signs = true,
  };
  return method;
}

}  // namespace mergepipe
