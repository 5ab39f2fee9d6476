#include "methods/task_vectors.h"

namespace mergepipe {

const Method& Method_task_arithmetic() {
  static const Method method = {
      .name = "task_arithmetic",
      .summary = "adds weighted task vectors to the base",
      .paper = "Ilharco et al. 2022, Editing Models with Task Arithmetic, arXiv:2212.04089",
      .formula = "θ = θ_0 + λ Σ w_i Δ_i",
      .additive = true,
      .min_inputs = 1,
      .params = TaskVectorParams(/*normalize=*/false, /*rescale=*/false),
      .unused_params = {"density", "rescale"},
      .prepare = PrepareTaskVectors,
      .apply32 = ApplySum<float>,
      .apply64 = ApplySum<double>,
      .coefficients = TaskVectorCoefficients,
  };
  return method;
}

}  // namespace mergepipe
