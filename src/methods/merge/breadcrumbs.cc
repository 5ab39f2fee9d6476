#include "methods/breadcrumbs.h"

namespace mergepipe {

const Method& Method_breadcrumbs() {
  static const Method method = TaskVectorMethod(
      Mix::kSum,
      {
          .name = "breadcrumbs",
          .summary =
              "drops the largest and the smallest elements of each task vector and adds the weighted rest",
          .paper = "Davari, Belilovsky 2023, Model Breadcrumbs, arXiv:2312.06795",
          .formula =
              "θ = θ_0 + λ Σ w_i Δ'_i, Δ'_i = Δ_i without its gamma·n largest elements, of the others the "
              "density·n largest",
          .params = BreadcrumbsParams(),
          .request = RequestBreadcrumbs,
      });
  return method;
}

}  // namespace mergepipe
