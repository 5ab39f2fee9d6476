#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catalog/knowledge.h"
#include "recipe/resolve.h"

namespace mergepipe {

/// What is known of the delta of one source of an output tensor.
struct SourceEvidence {
  TensorKnowledge knowledge;
  bool exact = true;  ///< false: energies are estimates from samples, and nothing else is known
};

/// What is known of one output tensor before its data is read.
struct TensorEvidence {
  std::vector<std::optional<SourceEvidence>> sources;  ///< by source; none for the reference
  std::optional<BaseColumns> base;  ///< of the reference; without digests where it is an estimate
  /// Sampled inner products of the deltas of all sources, [blocks, sources, sources]; empty where none.
  std::vector<float> sampled_gram;
};

/// How well the experts of a merge are known.
enum class Strength { kNone, kSampled, kFull };
const char* StrengthName(Strength strength);

/// Statistics of blocks, tensor by tensor, so that memory does not grow with the merge.
class Evidence {
 public:
  virtual ~Evidence() = default;
  virtual Result<TensorEvidence> Of(size_t tensor) = 0;
  /// At least the thresholds that Of would give; for less work where there is no need of more.
  virtual Result<TensorEvidence> ThresholdsOf(size_t tensor) { return Of(tensor); }
  /// What a plan knows a model by: a digest of its content, of sampled pages, or of its headers.
  virtual std::string Identity(size_t model) const = 0;
  /// Whether the model's content is known by the catalog.
  virtual bool Knows(size_t model) const = 0;
  /// Bytes that were read to get it; charged to the budget.
  virtual uint64_t sample_bytes() const { return 0; }
  virtual Strength strength() const = 0;
};

/// Nothing is known: models are known by their headers.
class NoEvidence : public Evidence {
 public:
  explicit NoEvidence(const ResolvedMerge& merge) : merge_(merge) {}
  Result<TensorEvidence> Of(size_t tensor) override {
    return TensorEvidence{
        .sources = std::vector<std::optional<SourceEvidence>>(merge_.tensors[tensor].sources.size()),
        .base = std::nullopt,
        .sampled_gram = {}};
  }
  std::string Identity(size_t model) const override {
    return merge_.models[model].checkpoint->HeaderDigest();
  }
  bool Knows(size_t) const override { return false; }
  Strength strength() const override { return Strength::kNone; }

 protected:
  const ResolvedMerge& merge_;
};

}  // namespace mergepipe
