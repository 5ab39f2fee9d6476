#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mergepipe/result.h"

namespace mergepipe {

/// In which order blocks are worth reading.
enum class Policy {
  kGram,     ///< decrease of the predicted error per byte, with inner products between experts
  kNorm,     ///< energy per byte, each expert on its own
  kUniform,  ///< the same evenly spread blocks of every expert
  kFair,     ///< every expert the same bytes, its largest energies first
  kRandom,   ///< by a seeded hash
};

std::vector<std::string> PolicyNames();
std::string PolicyName(Policy policy);
/// Fails with kUsage, naming the nearest.
Result<Policy> ParsePolicy(const std::string& name);

/// How much may be read.
struct Budget {
  enum class Kind { kNone, kBytes, kShare, kDeviation };
  Kind kind = Kind::kNone;
  uint64_t bytes = 0;       ///< kBytes
  double percent = 100;     ///< kShare: of what the full read of the same merge would fetch
  double deviation = 0;     ///< kDeviation: the predicted error is at most this
  bool of_weights = false;  ///< kDeviation: relative to the weights, else to the update
  Policy policy = Policy::kGram;

  /// The bytes that it allows where a full read fetches `full_bytes`; nothing for kNone and kDeviation.
  std::optional<uint64_t> Bytes(uint64_t full_bytes) const;
};

/// Reads "10%", "8GiB" or "123456". Fails with kUsage.
Result<Budget> ParseBudget(const std::string& text);

}  // namespace mergepipe
