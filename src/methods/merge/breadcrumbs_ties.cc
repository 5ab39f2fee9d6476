#include "methods/breadcrumbs.h"

namespace mergepipe {

const Method& Method_breadcrumbs_ties() {
  static const Method method = TaskVectorMethod(
      Mix::kElected,
      {
          .name = "breadcrumbs_ties",
          .summary = "breadcrumbs with a sign election per element: what disagrees is left out",
          .paper = "Davari, Belilovsky 2023, Model Breadcrumbs, arXiv:2312.06795",
          .formula =
              "θ = θ_0 + λ Σ w_i Δ'_i [sign agrees], Δ'_i = Δ_i without its gamma·n largest elements, of the "
              "others the density·n largest",
          .params = BreadcrumbsParams(),
          .request = RequestBreadcrumbs,
      });
  return method;
}

}  // namespace mergepipe
