#include "methods/task_vectors.h"

namespace mergepipe {

const Method& Method_task_arithmetic() {
  static const Method method = TaskVectorMethod(
      Mix::kSum, {
                     .name = "task_arithmetic",
                     .summary = "adds weighted task vectors to the base",
                     .paper = "Ilharco et al. 2022, Editing Models with Task Arithmetic, arXiv:2212.04089",
                     .formula = "θ = θ_0 + λ Σ w_i Δ_i",
                     .additive = true,
                     .params = TaskVectorParams(/*normalize=*/false, /*rescale=*/false),
                     .unused_params = {"density", "rescale"},
                 });
  return method;
}

}  // namespace mergepipe
