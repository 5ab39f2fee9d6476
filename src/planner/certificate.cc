#include "planner/certificate.h"

#include <cmath>

namespace mergepipe {
namespace {

// Deltas are rounded to float32 before their energies are summed in float64: norms err by less than this,
// relatively.
constexpr double kUp = 1 + 0x1p-22;

// Bits of the significand, and the smallest subnormal.
struct Precision {
  int digits = 24;
  double step = 0x1p-149;
};

Precision PrecisionOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {11, 0x1p-24};
    case DType::kBF16:
      return {8, 0x1p-133};
    case DType::kF64:
      return {53, 0x1p-1074};
    default:
      return {};
  }
}

double Square(double x) {
  return x * x;
}

}  // namespace

void CertificateSum::Add(const CertificateBlock& block, const std::vector<double>& coefficients) {
  if (block.omitted_norms == 0) return;
  const Precision stored = PrecisionOf(merge_.tensors[block.tensor].dtype);
  double sum = 0;
  for (const double c : coefficients)
    sum += std::fabs(c);
  // A difference, a product and a sum for each input; a division, a factor and the base's sum for the
  // mixture.
  const double operations = 3 * static_cast<double>(coefficients.size()) + 3;
  const double work = operations * 0x1p-24 / (1 - operations * 0x1p-24);
  const double norm = std::max(1.0, sum) * std::sqrt(block.base_energy) + block.all_norms;
  omitted_ += Square(block.omitted_norms);
  relative_ += Square(2 * (std::ldexp(1.0, -stored.digits) + work) * norm);
  subnormal_ += Square(stored.step) * static_cast<double>(block.elements);
}

Certificate CertificateSum::Value() const {
  return {std::sqrt(omitted_) * kUp, (std::sqrt(relative_) + std::sqrt(subnormal_)) * kUp};
}

}  // namespace mergepipe
