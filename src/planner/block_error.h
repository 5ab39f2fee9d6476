#pragma once

#include <cstdint>
#include <vector>

#include "planner/evidence.h"
#include "planner/plan.h"
#include "planner/sketch_cosines.h"

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
  double Energy(size_t source, size_t block) const { return energy_[source * blocks_ + block]; }
  const std::vector<double>& energies() const { return energy_; }  ///< [sources, blocks]
  /// ‖Δ‖² as it is.
  double RawEnergy(size_t source, size_t block) const;
  double Coefficient(size_t source) const { return sources_[source].coefficient; }

 private:
  // What is known of one source, and what the method does with it.
  struct Source {
    const BlockColumns* columns = nullptr;  // null where nothing is known
    bool exact = false;
    bool may_omit = false;
    DType dtype = DType::kF32;
    double coefficient = 0;
    double spread = 1;      // factor on the energy that random dropping makes
    uint32_t trim_key = 0;  // magnitudes below it do not survive; 0 keeps all
    bool trim_exact = false;
  };

  void NoteSources();
  void NoteRules();
  void FindEnergies();
  double KeptEnergy(const Source& source, size_t block) const;
  bool IsLossless(size_t source, size_t block) const;
  std::vector<double> CrossTerms(size_t block) const;
  bool SameBytes(size_t a, size_t b, size_t block) const;
  std::vector<ReadUnit> Units(size_t block, std::vector<size_t>& lossless) const;
  double OwnTerm(const ReadUnit& unit, size_t block) const;

  const Plan& plan_;
  const ResolvedTensor& tensor_;
  const TensorEvidence& evidence_;
  size_t number_;
  size_t blocks_;
  bool crosses_;  // inner products count
  std::vector<Source> sources_;
  std::vector<double> energy_;  // [sources, blocks]
  SketchCosines cosines_;
};

/// λ_i of each source in θ = θ_0 + Σ λ_i Δ_i, where the method is such a sum or nearly one.
std::vector<double> SourceCoefficients(const ResolvedMerge& merge, const ResolvedTensor& tensor);

}  // namespace mergepipe
