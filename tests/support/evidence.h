#pragma once

#include <string>
#include <vector>

#include "planner/evidence.h"
#include "planner/plan.h"

namespace mergepipe::tests {

/// Evidence that a test makes up, or reckons by itself.
class FakeEvidence : public Evidence {
 public:
  Result<TensorEvidence> Of(size_t tensor) override { return tensors[tensor]; }
  std::string Identity(size_t model) const override { return "model " + std::to_string(model); }
  bool Knows(size_t) const override { return known == Strength::kFull; }
  uint64_t sample_bytes() const override { return samples; }
  Strength strength() const override { return known; }

  std::vector<TensorEvidence> tensors;
  Strength known = Strength::kFull;
  uint64_t samples = 0;
};

/// What an analysis of all experts finds, reckoned from the stored bytes the slow way; with the exact
/// thresholds of what the method trims where `thresholds`.
FakeEvidence ReckonEvidence(const Plan& plan, bool thresholds = false);

/// The draft of the same merge with the constants that the evidence gives.
Plan DraftWith(const Plan& plan, Evidence& evidence);

/// Elements of a block of an output tensor: fewer in the last one.
uint64_t ElementsOfBlock(const Plan& plan, size_t tensor, size_t block);
/// The stored bytes of a source of an output tensor.
std::string BytesOf(const Plan& plan, size_t tensor, size_t source);
/// Its values, and its delta to the reference; rounded to float32 unless one of the two is F64.
std::vector<double> ValuesOf(const Plan& plan, size_t tensor, size_t source);
std::vector<double> DeltaOf(const Plan& plan, size_t tensor, size_t source);

/// The bits of the float32 magnitude.
uint32_t KeyOf(double value);

}  // namespace mergepipe::tests
