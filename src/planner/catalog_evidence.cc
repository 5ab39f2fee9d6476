#include "planner/catalog_evidence.h"

#include "base/try.h"

namespace mergepipe {
namespace {

class CatalogEvidence final : public NoEvidence {
 public:
  CatalogEvidence(const ResolvedMerge& merge, Catalog& catalog, uint64_t block_bytes)
      : NoEvidence(merge), catalog_(catalog), block_bytes_(block_bytes) {}

  Result<void> FindModels() {
    for (const ResolvedModel& model : merge_.models)
      known_.push_back(MP_TRY(catalog_.Find(*model.checkpoint)));
    // One tensor of each model tells whether it was analysed against this base at this block size.
    analysed_.resize(known_.size());
    std::vector<bool> asked(known_.size());
    for (const ResolvedTensor& tensor : merge_.tensors) {
      for (size_t s = 1; s < tensor.sources.size(); ++s) {
        const size_t model = tensor.sources[s].model;
        if (!tensor.merged || asked[model] || tensor.elements == 0) continue;
        asked[model] = true;
        analysed_[model] = MP_TRY(LoadSource(tensor, s)).has_value();
      }
    }
    all_known_ = true;
    for (size_t m = 0; m < asked.size(); ++m)
      all_known_ = all_known_ && (!asked[m] || analysed_[m]);
    return {};
  }

  Result<TensorEvidence> Of(size_t number) override {
    const ResolvedTensor& tensor = merge_.tensors[number];
    TensorEvidence evidence{.sources = {}, .base = std::nullopt, .sampled_gram = {}};
    evidence.sources.resize(tensor.sources.size());
    if (!tensor.merged || tensor.elements == 0) return evidence;
    const auto& reference = known_[tensor.sources[0].model];
    if (reference)
      evidence.base =
          MP_TRY(catalog_.LoadBase(reference->id, EntryOf(merge_, tensor.sources[0]).name, block_bytes_));
    for (size_t s = 1; s < tensor.sources.size() && evidence.base; ++s) {
      auto knowledge = MP_TRY(LoadSource(tensor, s));
      if (knowledge) evidence.sources[s] = SourceEvidence{std::move(*knowledge), true};
    }
    return evidence;
  }

  std::string Identity(size_t model) const override {
    return known_[model] ? known_[model]->content : NoEvidence::Identity(model);
  }
  bool Knows(size_t model) const override { return analysed_[model]; }
  Strength strength() const override { return all_known_ ? Strength::kFull : Strength::kNone; }

 private:
  // Nothing for tensors of different names (slices may shift layers): nobody has compared those.
  Result<std::optional<TensorKnowledge>> LoadSource(const ResolvedTensor& tensor, size_t source) {
    const auto& expert = known_[tensor.sources[source].model];
    const auto& base = known_[tensor.sources[0].model];
    const std::string& name = EntryOf(merge_, tensor.sources[source]).name;
    if (!expert || !base || name != EntryOf(merge_, tensor.sources[0]).name)
      return std::optional<TensorKnowledge>();
    return catalog_.Load(expert->id, base->id, name, block_bytes_);
  }

  Catalog& catalog_;
  uint64_t block_bytes_;
  std::vector<std::optional<KnownCheckpoint>> known_;  // by model
  std::vector<bool> analysed_;
  bool all_known_ = false;
};

}  // namespace

const char* StrengthName(Strength strength) {
  switch (strength) {
    case Strength::kNone:
      return "none";
    case Strength::kSampled:
      return "sampled";
    case Strength::kFull:
      return "full";
  }
  return "none";
}

Result<std::unique_ptr<Evidence>> EvidenceFromCatalog(const ResolvedMerge& merge, Catalog& catalog,
                                                      uint64_t block_bytes) {
  auto evidence = std::make_unique<CatalogEvidence>(merge, catalog, block_bytes);
  MP_TRY(evidence->FindModels());
  return std::unique_ptr<Evidence>(std::move(evidence));
}

}  // namespace mergepipe
