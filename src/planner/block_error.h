#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "planner/evidence.h"
#include "planner/plan.h"

namespace mergepipe {

/// Sources of one block that are read or left out together because their stored bytes are the same.
struct ReadUnit {
  std::vector<size_t> sources;  ///< ascending; the first is the one that is read
  uint64_t bytes = 0;           ///< of one read
};

/// The predicted squared error of one block as a function of what is left out: Σ over left-out units u, v of
/// form[u, v], with form[u, v] = λ_u λ_v <Δ_u, Δ_v>.
struct BlockError {
  std::vector<ReadUnit> units;
  std::vector<double> form;      ///< [units, units], symmetric
  std::vector<size_t> lossless;  ///< sources that need no read: nothing of them is left out
  double Of(const std::vector<bool>& left_out) const;  ///< at least 0
  double OfAll() const;
};

/// Reads to be made one after the other: each with the gain in squared error that it brings.
struct ReadStep {
  std::vector<size_t> units;
  double gain = 0;
  uint64_t bytes = 0;
};

/// The order in which the units of a block are worth reading: greedy by gain per byte; units that only pay
/// together (experts that cancel each other) are one step, so that rates never rise and no step has a
/// negative gain.
std::vector<ReadStep> OrderBlock(const BlockError& block);

/// The blocks of one output tensor, with what is known of them.
class TensorErrors {
 public:
  /// `gram`: with inner products between sources; else each source counts on its own.
  TensorErrors(const Plan& plan, size_t tensor, const TensorEvidence& evidence, bool gram);

  size_t blocks() const { return blocks_; }
  /// Stored bytes of one read of a block of a source.
  uint64_t BlockBytes(size_t source, size_t block) const;
  BlockError Block(size_t block) const;
  /// λ² ‖Δ‖² of one source's block, after trimming; 0 where nothing is known.
  double Energy(size_t source, size_t block) const;
  /// ‖Δ‖² as it is, for certificates.
  double RawEnergy(size_t source, size_t block) const;
  double Coefficient(size_t source) const { return coefficients_[source]; }

 private:
  double KeptEnergy(size_t source, size_t block) const;
  bool IsLossless(size_t source, size_t block) const;
  double InnerProduct(size_t a, size_t b, size_t block) const;
  void FindCosines();
  size_t PairOf(size_t a, size_t b) const;
  bool SameBytes(size_t a, size_t b, size_t block) const;
  std::vector<ReadUnit> Units(size_t block, std::vector<size_t>& lossless) const;

  const Plan& plan_;
  const ResolvedTensor& tensor_;
  const TensorEvidence& evidence_;
  size_t number_;
  size_t blocks_;
  bool crosses_;                       // inner products count
  std::vector<double> coefficients_;   // by source
  std::vector<double> spread_;         // by source: factor on the energy that random dropping makes
  std::vector<uint32_t> trim_key_;     // by source: magnitudes below it do not survive; 0 keeps all
  std::vector<bool> trim_exact_;       // by source
  std::vector<float> cosine_;          // [pairs, blocks], from sketches
  std::vector<double> tensor_cosine_;  // by pair, over all blocks; 0 below its own noise
};

/// λ_i of each source in θ = θ_0 + Σ λ_i Δ_i, where the method is such a sum or nearly one.
std::vector<double> SourceCoefficients(const ResolvedMerge& merge, const ResolvedTensor& tensor);

}  // namespace mergepipe
