#include "methods/random_drop.h"

namespace mergepipe {

const Method& Method_dare_linear() {
  static const Method method = TaskVectorMethod(
      Mix::kSum, {
                     .name = "dare_linear",
                     .summary = "drops random elements of each task vector and adds the weighted rest",
                     .paper = "Yu et al. 2023, Language Models are Super Mario, arXiv:2311.03099",
                     .formula = "θ = θ_0 + λ Σ w_i m_i Δ_i ‖Δ_i‖₁/‖m_i Δ_i‖₁, m_i ~ Bernoulli(density)",
                     .params = TaskVectorParams(/*normalize=*/false, /*rescale=*/true),
                     .request = RequestRandomDrop,
                 });
  return method;
}

}  // namespace mergepipe
