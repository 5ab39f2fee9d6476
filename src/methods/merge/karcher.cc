#include "methods/gram_combination.h"

namespace mergepipe {
namespace {

// So near to just opposite (in radians) the tangent has no direction but that of rounding.
constexpr double kOpposite = 1e-6;
constexpr double kPi = 3.14159265358979323846;

// The Fréchet mean of unit vectors on the sphere, found by gradient steps. Every vector met on the way is a
// combination of the inputs, so that only coefficients are kept and all angles come from the Gram matrix.
class SphereMean {
 public:
  SphereMean(const Gram& gram, double tolerance) : gram_(gram), tolerance_(tolerance) {
    for (size_t i = 0; i < gram.inputs(); ++i) {
      if (gram.Norm(i) > tolerance) valid_.push_back(i);
    }
    share_ = 1.0 / static_cast<double>(std::max<size_t>(1, valid_.size()));
  }

  // Coefficients of the unit vector u in u = Σ c_i x_i; all 0 where no input is long enough to have a
  // direction.
  std::vector<double> Find(int64_t most_steps) {
    u_.assign(gram_.inputs(), 0.0);
    if (valid_.empty()) return u_;
    Start();
    for (int64_t step = 0; step < most_steps; ++step) {
      if (!Step()) break;
    }
    return u_;
  }

 private:
  // The normalised mean, or the first direction where the mean vanishes.
  void Start() {
    for (const size_t i : valid_)
      u_[i] = share_ / gram_.Norm(i);
    const double norm = gram_.Norm(u_);
    if (norm >= tolerance_) return Scale(1 / norm);
    std::fill(u_.begin(), u_.end(), 0.0);
    u_[valid_[0]] = 1 / gram_.Norm(valid_[0]);
  }

  // Moves along the mean of the tangents towards the inputs; false once that is nothing.
  bool Step() {
    std::vector<double> tangent(u_.size(), 0.0);
    for (const size_t i : valid_) {
      const double cosine = std::clamp(gram_.Of(i, u_) / gram_.Norm(i), -1.0, 1.0);
      const double angle = std::acos(cosine);
      if (angle < tolerance_ || angle > kPi - kOpposite) continue;
      const double factor = share_ * angle / std::sin(angle);
      tangent[i] += factor / gram_.Norm(i);
      for (size_t j = 0; j < u_.size(); ++j)
        tangent[j] -= factor * cosine * u_[j];
    }
    const double length = gram_.Norm(tangent);
    if (length < tolerance_) return false;
    for (size_t j = 0; j < u_.size(); ++j)
      u_[j] = std::cos(length) * u_[j] + std::sin(length) * tangent[j] / length;
    const double norm = gram_.Norm(u_);
    if (norm > tolerance_) Scale(1 / norm);
    return true;
  }

  void Scale(double factor) {
    for (double& c : u_)
      c *= factor;
  }

  const Gram& gram_;
  double tolerance_;
  std::vector<size_t> valid_;  // inputs that are long enough to have a direction
  double share_ = 1;           // of each of them in the mean
  std::vector<double> u_;
};

Result<StatisticsRequest> Request(const TensorFacts&, const TensorParams& params) {
  return StatisticsRequest{.gram = params.inputs.size() > 1};
}

Constants Prepare(const TensorFacts& facts, const TensorParams& params, const TensorStatistics& statistics) {
  const size_t inputs = params.inputs.size();
  if (inputs == 1) return {.weights = {1.0}, .domain = facts.domain};
  const Gram gram(statistics.gram.data(), inputs);
  double mean_norm = 0;
  for (size_t i = 0; i < inputs; ++i)
    mean_norm += gram.Norm(i) / static_cast<double>(inputs);
  SphereMean mean(gram, params.Get("tol"));
  std::vector<double> weights = mean.Find(static_cast<int64_t>(params.Get("max_iter")));
  for (double& weight : weights)
    weight *= mean_norm;
  return {.weights = std::move(weights), .domain = facts.domain};
}

}  // namespace

const Method& Method_karcher() {
  static const Method method = {
      .name = "karcher",
      .summary = "the mean of the models' directions on the sphere, with the mean of their lengths",
      .paper = "Model Merging on the Riemannian mean, arXiv:2603.04972; Karcher 1977",
      .formula = "θ = mean ‖θ_i‖ · argmin_u Σ angle(u, θ_i)², ‖u‖ = 1",
      .domain = Domain::kValues,
      .needs_base = false,
      .base_is_special = false,
      .min_inputs = 1,
      .params = {{.name = "max_iter",
                  .type = ParamType::kInteger,
                  .default_value = 10.0,
                  .minimum = 0.0,
                  .doc = "most steps towards the mean"},
                 {.name = "tol",
                  .default_value = 1e-5,
                  .minimum = 0.0,
                  .doc = "lengths and angles below this count as 0"}},
      .request = Request,
      .prepare = Prepare,
      .apply32 = ApplyCombination<float>,
      .apply64 = ApplyCombination<double>,
      .coefficients = EvenCoefficients,  // as if the sphere were flat
  };
  return method;
}

}  // namespace mergepipe
