#include "planner/catalog_evidence.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "planner/plan.h"

namespace mergepipe {
namespace {

class CatalogEvidence final : public NoEvidence {
 public:
  CatalogEvidence(const ResolvedMerge& merge, Catalog& catalog, uint64_t block_bytes)
      : NoEvidence(merge),
        catalog_(catalog),
        block_bytes_(block_bytes),
        has_constants_(merge.tensors.size()) {}

  Result<void> FindModels() {
    for (const ResolvedModel& model : merge_.models)
      known_.push_back(MP_TRY(catalog_.Find(*model.checkpoint)));
    analysed_.resize(known_.size());
    std::vector<bool> asked(known_.size());
    for (const ResolvedTensor& tensor : merge_.tensors) {
      for (size_t s = 1; s < tensor.sources.size(); ++s) {
        const size_t model = tensor.sources[s].model;
        if (!tensor.merged || asked[model] || tensor.elements == 0) continue;
        asked[model] = true;
        const auto &expert = known_[model], &base = known_[tensor.sources[0].model];
        analysed_[model] = expert && base && MP_TRY(catalog_.IsAnalysed(expert->id, base->id, block_bytes_));
      }
    }
    all_known_ = true;
    for (size_t m = 0; m < asked.size(); ++m)
      all_known_ = all_known_ && (!asked[m] || analysed_[m]);
    return {};
  }

  Result<TensorEvidence> Of(size_t number) override {
    TensorEvidence evidence = MP_TRY(OfBase(number));
    const ResolvedTensor& tensor = merge_.tensors[number];
    const auto trims = [](const KeepRule& rule) { return rule.kind == KeepRule::Kind::kLargest; };
    const auto& keep = tensor.request.keep;
    const bool histogram = !has_constants_[number] && std::any_of(keep.begin(), keep.end(), trims);
    for (size_t s = 1; s < tensor.sources.size() && evidence.base; ++s) {
      auto knowledge = MP_TRY(LoadSource(tensor, s, histogram));
      if (knowledge) evidence.sources[s] = SourceEvidence{std::move(*knowledge), true};
    }
    return evidence;
  }

  Result<TensorEvidence> ThresholdsOf(size_t number) override {
    const ResolvedTensor& tensor = merge_.tensors[number];
    TensorEvidence evidence = WantsSums(tensor) ? MP_TRY(Of(number)) : MP_TRY(OfThresholds(number));
    has_constants_[number] = ConstantsOf(tensor, evidence).has_value();
    return evidence;
  }

  std::string Identity(size_t model) const override {
    return known_[model] ? known_[model]->content : NoEvidence::Identity(model);
  }
  bool Knows(size_t model) const override { return analysed_[model]; }
  Strength strength() const override { return all_known_ ? Strength::kFull : Strength::kNone; }

 private:
  // Sums over deltas that are not trimmed.
  static bool WantsSums(const ResolvedTensor& tensor) {
    const auto& keep = tensor.request.keep;
    return tensor.request.l1 && std::any_of(keep.begin(), keep.end(), [&](const KeepRule& rule) {
             return rule.kind != KeepRule::Kind::kLargest || rule.count >= tensor.elements;
           });
  }

  Result<TensorEvidence> OfThresholds(size_t number) {
    const ResolvedTensor& tensor = merge_.tensors[number];
    TensorEvidence evidence = MP_TRY(OfBase(number));
    for (size_t s = 1; s < tensor.sources.size() && evidence.base; ++s) {
      auto thresholds = MP_TRY(LoadThresholds(tensor, s));
      if (thresholds) evidence.sources[s] = SourceEvidence{{.thresholds = std::move(*thresholds)}, true};
    }
    return evidence;
  }

  Result<TensorEvidence> OfBase(size_t number) {
    const ResolvedTensor& tensor = merge_.tensors[number];
    TensorEvidence evidence{.sources = {}, .base = std::nullopt, .sampled_gram = {}};
    evidence.sources.resize(tensor.sources.size());
    const bool gathered = tensor.sources[0].rows != nullptr;  // rows in this order were never compared
    if (!tensor.merged || tensor.elements == 0 || gathered) return evidence;
    const auto& reference = known_[tensor.sources[0].model];
    if (reference)
      evidence.base =
          MP_TRY(catalog_.LoadBase(reference->id, EntryOf(merge_, tensor.sources[0]).name, block_bytes_));
    if (evidence.base && evidence.base->energy.size() != Blocks(tensor)) return Misfit(tensor);
    return evidence;
  }

  uint64_t Blocks(const ResolvedTensor& tensor) const {
    const uint64_t block = block_bytes_ / DTypeBytes(EntryOf(merge_, tensor.sources[0]).dtype);
    return (tensor.elements + block - 1) / block;
  }

  Failure Misfit(const ResolvedTensor& tensor) const {
    return Fail(
        Code::kInvalidInput,
        Format("{}: the catalog is damaged: it has columns of another size for tensor '{}'; remove it and "
               "analyse again, nothing else is lost",
               catalog_.path(), tensor.name));
  }

  // Slices may shift layers: tensors of different names nobody has compared.
  bool Compared(const ResolvedTensor& tensor, size_t source) const {
    return known_[tensor.sources[source].model] && known_[tensor.sources[0].model] &&
           EntryOf(merge_, tensor.sources[source]).name == EntryOf(merge_, tensor.sources[0]).name;
  }

  Result<std::optional<TensorKnowledge>> LoadSource(const ResolvedTensor& tensor, size_t source,
                                                    bool histogram) {
    if (!Compared(tensor, source)) return std::optional<TensorKnowledge>();
    auto knowledge =
        MP_TRY(catalog_.Load(known_[tensor.sources[source].model]->id, known_[tensor.sources[0].model]->id,
                             EntryOf(merge_, tensor.sources[source]).name, block_bytes_, histogram));
    if (knowledge && knowledge->blocks.blocks() != Blocks(tensor)) return Misfit(tensor);
    return knowledge;
  }

  Result<std::optional<std::vector<ExactThreshold>>> LoadThresholds(const ResolvedTensor& tensor,
                                                                    size_t source) {
    if (!Compared(tensor, source)) return std::optional<std::vector<ExactThreshold>>();
    return catalog_.LoadThresholds(known_[tensor.sources[source].model]->id,
                                   known_[tensor.sources[0].model]->id,
                                   EntryOf(merge_, tensor.sources[source]).name, block_bytes_);
  }

  Catalog& catalog_;
  uint64_t block_bytes_;
  std::vector<std::optional<KnownCheckpoint>> known_;  // by model
  std::vector<bool> analysed_;
  std::vector<bool> has_constants_;  // by tensor: thresholds say all that a histogram could
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
