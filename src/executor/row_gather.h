#pragma once

#include <span>

#include "kernels/kernels.h"
#include "planner/plan.h"
#include "storage/ledger.h"

namespace mergepipe {

/// Reads sources whose rows are laid out anew: each row from where it is stored, in the output's order and
/// one type. What is read is charged to the model that stores it. Safe for concurrent use.
class RowGather {
 public:
  RowGather(const Plan& plan, size_t tensor, const kernels::Kernels& kernels, Ledger& ledger,
            Purpose expert = Purpose::kExpertData)
      : plan_(plan),
        tensor_(plan.merge->tensors[tensor]),
        kernels_(kernels),
        ledger_(ledger),
        expert_(expert) {}

  struct Target {
    const std::byte* reference = nullptr;  ///< the same elements of the tensor's reference, gathered before
    std::byte* out = nullptr;
    std::span<std::byte> scratch;  ///< of kScratchBytes
  };
  /// Gathers elements [first, first + count) of a source into target.out; padding becomes zero. Returns the
  /// bytes that were read. Fails like ReadCharged.
  Result<uint64_t> Gather(size_t source, ElementRun run, const Target& target) const;

 private:
  struct StoredRun {
    TensorSource source;
    DType dtype = DType::kF32;
    uint64_t first = 0;  // element of the stored tensor
    uint64_t count = 0;
  };

  StoredRun RunOf(const GatheredRows& rows, const StoredRow& row, uint64_t column, uint64_t count) const;
  Result<void> Copy(const StoredRun& run, DType as, const Target& target) const;
  template <typename T>
  Result<void> Mean(std::span<const StoredRun> parts, const Target& target) const;
  Result<const std::byte*> Read(const StoredRun& run, uint64_t at, uint64_t count,
                                std::span<std::byte> scratch) const;
  void Widen(DType from, const std::byte* stored, DType as, std::byte* out, uint64_t count) const;

  const Plan& plan_;
  const ResolvedTensor& tensor_;
  const kernels::Kernels& kernels_;
  Ledger& ledger_;
  const Purpose expert_;
};

}  // namespace mergepipe
