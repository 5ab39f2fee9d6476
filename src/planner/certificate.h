#pragma once

#include <vector>

#include "planner/plan.h"

namespace mergepipe {

/// Norms of one block of a merged tensor.
struct CertificateBlock {
  size_t tensor = 0;
  uint64_t elements = 0;
  double base_energy = 0;    ///< ‖θ_0‖²
  double all_norms = 0;      ///< Σ |λ_i| ‖Δ_i‖
  double omitted_norms = 0;  ///< the same over what is left out
};

/// Adds up the certificate of an additive merge, block by block:
/// ‖θ_A − θ_full‖² ≤ Σ_b (Σ_{i left out} |λ_i| ‖Δ_ib‖)² before rounding; and for what rounding adds on both
/// sides, (u + γ)(‖θ_0‖ + Σ |λ_i| ‖Δ_i‖) and half a subnormal step per element over the blocks that an
/// omission touches, with u the unit roundoff of the stored type and γ that of the work type's sums. Rounded
/// up.
class CertificateSum {
 public:
  explicit CertificateSum(const ResolvedMerge& merge) : merge_(merge) {}
  void Add(const CertificateBlock& block, const std::vector<double>& coefficients);
  Certificate Value() const;

 private:
  const ResolvedMerge& merge_;
  double omitted_ = 0;    // squares
  double relative_ = 0;   // squares
  double subnormal_ = 0;  // squares
};

}  // namespace mergepipe
