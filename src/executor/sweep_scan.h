#pragma once

#include <span>
#include <vector>

#include "executor/progress.h"
#include "executor/scan.h"
#include "kernels/kernels.h"
#include "planner/plan.h"
#include "storage/ledger.h"

namespace mergepipe {

/// The access set of one variant of a merge, by output tensor.
using SweepMasks = std::vector<TensorMask>;

/// Norms over all output values of types that are computed with, as stored, in float64.
struct SweepFindings {
  double weight_norm = 0;            ///< ‖θ_full‖₂
  double update_norm = 0;            ///< ‖θ_full − θ_0‖₂, θ_0 being what the reference stores
  std::vector<double> error_norms;   ///< ‖θ_A − θ_full‖₂, by variant
  Deviation Of(double error) const;  ///< an error as a share of both norms
};

/// Computes the full read of a plan and every variant of it side by side, without writing, from one pass over
/// the data: each value is the one that a merge would store. Tensors whose statistics need rounds and that do
/// not fit into limits.memory_bytes are read once more for each round. Reads are charged to the ledger. Fails
/// with kUsage when the memory is too little, with kInvalidInput where a value is not finite, with
/// kInterrupted on a signal and with what storage says.
Result<SweepFindings> ScanSweep(const Plan& full, std::span<const SweepMasks> variants,
                                const kernels::Kernels& kernels, const ScanLimits& limits, Ledger& ledger,
                                ProgressCounters& progress);

}  // namespace mergepipe
