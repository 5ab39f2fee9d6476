#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "methods/joint_statistics.h"
#include "methods/steady_math.h"

namespace mergepipe {
namespace {

constexpr size_t kOther = 0, kBase = 1;  // what rows are kept for
constexpr double kFloor = 1e-8;          // added to each probability

// How far the distribution that a row of the other model gives (softmax) lies from that of the base: the
// Kullback-Leibler divergence of each row, and then the quartiles of the importance |Δ| · KL over the tensor.
// All sums are float64, over the parts of a row in tiles, in the order of the tensor.
//
// Round 0: for each row Σ exp(x − max) of both, kept with the maximum so far. Round 1: the divergences. Then
// as many as the selection of magnitudes takes.
class Importance : public JointStatistics {
 public:
  Importance(const Rows& rows, size_t base) : rows_(rows), base_(base) {
    for (auto& model : softmax_)
      model.resize(rows.count());
    divergence_.resize(rows.count());
    for (const double quartile : {0.25, 0.5, 0.75}) {
      const auto below = static_cast<uint64_t>(quartile * static_cast<double>(rows.elements - 1));
      quartiles_.emplace_back(rows.elements, rows.elements - below, /*l1=*/false);
    }
  }

  bool InOrder() const override { return round_ < 2; }
  void Add(JointScratch& scratch, const StatisticsTile<float>& tile) override { AddTile(scratch, tile); }
  void Add(JointScratch& scratch, const StatisticsTile<double>& tile) override { AddTile(scratch, tile); }
  void Merge(JointScratch& scratch) override {
    for (size_t q = 0; q < scratch.magnitudes.size(); ++q)
      quartiles_[q].Merge(scratch.magnitudes[q]);
  }

  void FinishRound() override {
    if (round_ == 1) {
      for (double& divergence : divergence_)
        divergence = std::max(0.0, divergence);  // rounding alone takes it below
    }
    for (MagnitudeSelection& quartile : quartiles_) {
      if (round_ >= 2) quartile.FinishRound();
    }
    ++round_;
  }

  // The divergence of each row, and last the threshold of importance.
  JointResult TakeResult() override {
    std::array<double, 3> q{};
    for (size_t i = 0; i < q.size(); ++i)
      q[i] = std::bit_cast<float>(quartiles_[i].threshold().key);
    JointResult result{.values = std::move(divergence_), .threshold = {}};
    result.values.push_back(q[1] + 1.5 * (q[2] - q[0]));
    return result;
  }

 private:
  // Σ exp(x − maximum) of a row so far.
  struct Softmax {
    double maximum = -INFINITY;
    double sum = 0;
  };

  template <typename T>
  void AddTile(JointScratch& scratch, const StatisticsTile<T>& tile) {
    const T* base = tile.inputs[base_];
    const T* other = tile.inputs[1 - base_];
    if (round_ < 2) {
      ForRows(rows_, tile.first, tile.n, [&](uint64_t row, size_t at, size_t n) {
        if (round_ == 1) return AddDivergence(row, other + at, base + at, n);
        AddSoftmax(softmax_[kOther][row], other + at, n);
        AddSoftmax(softmax_[kBase][row], base + at, n);
      });
      return;
    }
    ForRows(rows_, tile.first, tile.n, [&](uint64_t row, size_t at, size_t n) {
      for (size_t k = at; k < at + n; ++k)
        tile.scratch[k] = static_cast<T>(Score(other[k], base[k], divergence_[row]));
    });
    scratch.magnitudes.resize(quartiles_.size());
    for (size_t q = 0; q < quartiles_.size(); ++q)
      quartiles_[q].Count(scratch.magnitudes[q], tile.scratch, tile.n, *tile.loops);
  }

  template <typename T>
  static void AddSoftmax(Softmax& row, const T* x, size_t n) {
    const auto maximum = static_cast<double>(*std::max_element(x, x + n));
    if (maximum > row.maximum) {
      row.sum *= SteadyExp(row.maximum - maximum);
      row.maximum = maximum;
    }
    for (size_t k = 0; k < n; ++k)
      row.sum += SteadyExp(static_cast<double>(x[k]) - row.maximum);
  }

  // Σ p log(p/q) over a part of a row.
  template <typename T>
  void AddDivergence(uint64_t row, const T* other, const T* base, size_t n) {
    const Softmax& of_other = softmax_[kOther][row];
    const Softmax& of_base = softmax_[kBase][row];
    double sum = 0;
    for (size_t k = 0; k < n; ++k) {
      const double p = SteadyExp(static_cast<double>(other[k]) - of_other.maximum) / of_other.sum + kFloor;
      const double q = SteadyExp(static_cast<double>(base[k]) - of_base.maximum) / of_base.sum + kFloor;
      sum += p * SteadyLog(p / q);
    }
    divergence_[row] += sum;
  }

 public:
  // |Δ| · KL, rounded once to float32.
  template <typename T>
  static float Score(T other, T base, double divergence) {
    return static_cast<float>(std::fabs(static_cast<double>(other) - static_cast<double>(base)) * divergence);
  }

 private:
  Rows rows_;
  size_t base_;
  size_t round_ = 0;
  std::array<std::vector<Softmax>, 2> softmax_;
  std::vector<double> divergence_;  // by row
  std::vector<MagnitudeSelection> quartiles_;
};

class ImportanceSpec : public JointStatisticsSpec {
 public:
  ImportanceSpec(const Rows& rows, size_t base) : rows_(rows), base_(base) {}
  size_t Rounds() const override { return 2 + MagnitudeSelection::Rounds(rows_.elements); }
  uint64_t MemoryBytes() const override {
    return rows_.count() * 6 * sizeof(double) + 3 * MagnitudeSelection::MemoryBytes(rows_.elements, false);
  }
  uint64_t ScratchBytes() const override { return 3 * MagnitudeSelection::kScratchBytes; }
  std::unique_ptr<JointStatistics> Make() const override {
    return std::make_unique<Importance>(rows_, base_);
  }

 private:
  Rows rows_;
  size_t base_;
};

Result<StatisticsRequest> Request(const TensorFacts& facts, const TensorParams&) {
  return StatisticsRequest{.joint = std::make_shared<ImportanceSpec>(Rows::Of(facts), *facts.base_input)};
}

Constants Prepare(const TensorFacts& facts, const TensorParams&, const TensorStatistics& statistics) {
  Constants constants{.weights = {0, 0}, .domain = facts.domain, .vector_length = Rows::Of(facts).length};
  constants.weights[*facts.base_input] = 1;  // says which one is the base
  constants.joint = statistics.joint;
  constants.factor = constants.joint.values.back();
  return constants;
}

// The other model's value comes through where it matters.
std::vector<double> Coefficients(const TensorFacts& facts, const TensorParams&) {
  std::vector<double> coefficients = {1, 1};
  coefficients[*facts.base_input] = 0;
  return coefficients;
}

template <typename T>
void Apply(const Constants& constants, Tile<T>& tile) {
  const size_t base_input = constants.weights[0] == 1 ? 0 : 1;
  const T* base = tile.inputs[base_input];
  const T* other = tile.inputs[1 - base_input];
  ForRows({.length = constants.vector_length}, tile.first, tile.n, [&](uint64_t row, size_t at, size_t n) {
    for (size_t k = at; k < at + n; ++k) {
      const double score = Importance::Score(other[k], base[k], constants.joint.values[row]);
      tile.out[k] = score >= constants.factor ? other[k] : base[k];
    }
  });
}

}  // namespace

const Method& Method_arcee_fusion() {
  static const Method method = {
      .name = "arcee_fusion",
      .summary = "takes from the other model the elements that matter most, and the rest from the base",
      .paper = "Arcee AI, Arcee Fusion (mergekit)",
      .formula =
          "θ = θ_1 where I >= median(I) + 1.5 (Q_3(I) − Q_1(I)), else θ_0; I = |Δ| · KL(softmax(row of θ_1) "
          "‖ "
          "softmax(row of θ_0))",
      .domain = Domain::kValues,
      .min_inputs = 2,
      .max_inputs = 2,
      .request = Request,
      .prepare = Prepare,
      .apply32 = Apply<float>,
      .apply64 = Apply<double>,
      .coefficients = Coefficients,
  };
  return method;
}

}  // namespace mergepipe
