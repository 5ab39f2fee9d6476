#include "support/families.h"

#include <cmath>
#include <random>

#include "base/text.h"
#include "support/checkpoints.h"

namespace mergepipe::tests {
namespace {

std::vector<StoredTensor> BaseTensors(std::mt19937& random) {
  const auto size = [&](uint64_t least) { return least + random() % 3'000; };
  const auto seed = [&] { return static_cast<uint32_t>(random()); };
  return {{"a.odd", DType::kU8, {3}, "abc"},
          RandomTensor("b.bf16", DType::kBF16, {size(30'000)}, seed()),
          RandomTensor("c.f32", DType::kF32, {size(18'000)}, seed()),
          RandomTensor("d.f16", DType::kF16, {size(1'000)}, seed()),
          RandomTensor("e.f64", DType::kF64, {size(5'000)}, seed())};
}

DType Wider(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

/// One tensor of one expert, made block by block.
class Tuning {
 public:
  Tuning(const StoredTensor& base, DType dtype, std::mt19937& random)
      : base_(ValuesOf(base)), values_(base_), random_(random), dtype_(dtype) {}

  StoredTensor Of(const StoredTensor& base, const StoredTensor* before) {
    const uint64_t block = kSmallBlock / DTypeBytes(base.dtype);
    const bool comparable = before != nullptr && before->dtype == dtype_;
    const std::vector<double> others = comparable ? ValuesOf(*before) : base_;
    for (uint64_t first = 0; first < base_.size(); first += block)
      Fill(first, std::min<uint64_t>(first + block, base_.size()), others);
    return TensorOf(base.name, dtype_, base.shape, values_);
  }

 private:
  void Fill(uint64_t first, uint64_t end, const std::vector<double>& others) {
    const auto kind = random_() % 8;
    std::normal_distribution<double> normal(0,
                                            std::pow(10.0, -2.0 + 0.2 * static_cast<double>(random_() % 10)));
    for (uint64_t k = first; k < end && kind != 0; ++k) {
      if (kind == 1) values_[k] = others[k];
      if (kind == 2) values_[k] = 2 * base_[k] - others[k];
      if (kind > 2) values_[k] = base_[k] + normal(random_);
    }
  }

  std::vector<double> base_, values_;
  std::mt19937& random_;
  DType dtype_;
};

}  // namespace

void WriteFamily(const std::string& folder, const FamilyOptions& options) {
  std::mt19937 random(options.seed);
  const std::vector<StoredTensor> base = BaseTensors(random);
  WriteCheckpoint(folder + "/base", base);
  std::vector<StoredTensor> before;
  for (size_t e = 1; e <= options.experts; ++e) {
    std::vector<StoredTensor> expert;
    for (size_t t = 0; t < base.size(); ++t) {
      const bool wide = options.mixed && random() % 2 == 0;
      const DType dtype = wide ? Wider(base[t].dtype) : base[t].dtype;
      expert.push_back(base[t]);
      if (IsMergeable(base[t].dtype))
        expert.back() = Tuning(base[t], dtype, random).Of(base[t], before.empty() ? nullptr : &before[t]);
    }
    WriteCheckpoint(folder + Format("/expert{}", e), expert);
    before = std::move(expert);
  }
}

}  // namespace mergepipe::tests
