#include "methods/random_drop.h"

namespace mergepipe {

const Method& Method_dare_ties() {
  static const Method method = TaskVectorMethod(
      Mix::kElected,
      {
          .name = "dare_ties",
          .summary =
              "drops random elements of each task vector, elects a sign per element, mixes what agrees",
          .paper = "Yu et al. 2023, Language Models are Super Mario, arXiv:2311.03099",
          .formula = "as ties, with Δ'_i = m_i Δ_i ‖Δ_i‖₁/‖m_i Δ_i‖₁, m_i ~ Bernoulli(density)",
          .params = TaskVectorParams(/*normalize=*/false, /*rescale=*/true),
          .request = RequestRandomDrop,
      });
  return method;
}

}  // namespace mergepipe
