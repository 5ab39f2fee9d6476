#include "methods/ranked_drop.h"

namespace mergepipe {

const Method& Method_della_linear() {
  static const Method method = TaskVectorMethod(
      Mix::kSum,
      {
          .name = "della_linear",
          .summary =
              "drops elements of each task vector by chance, small ones rather than large ones, and adds the "
              "weighted rest",
          .paper = "Deep et al. 2024, DELLA-Merging, arXiv:2406.11617",
          .formula = "θ = θ_0 + λ Σ w_i m_i Δ_i s_i, m_i ~ Bernoulli(density − ε + 2ε · rank of |Δ_i| in its "
                     "row), s_i "
                     "= ‖Δ_i‖₁/‖m_i Δ_i‖₁",
          .params = RankedDropParams(/*normalize=*/false),
          .request = RequestRankedDrop,
      });
  return method;
}

}  // namespace mergepipe
