#include "executor/sample_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/digest.h"
#include "base/try.h"
#include "executor/charged_read.h"
#include "executor/row_gather.h"
#include "planner/blocks.h"
#include "planner/fetched.h"
#include "planner/memory.h"

namespace mergepipe {
namespace {

constexpr uint64_t kPage = Source::kAlignment;

// Shared infinities, NaN and what overflows tell nothing of the rest of a block.
double MeanOf(double sum, uint64_t count) {
  const double mean = sum / static_cast<double>(count);
  return std::fabs(mean) < std::numeric_limits<float>::max() ? mean : 0;
}

// One sampled page of one block, of the reference and of all sources that are not known.
struct Sample {
  uint32_t tensor = 0;
  uint32_t block = 0;
  uint64_t first = 0;  // element in the tensor
  uint64_t count = 0;
  double base = 0;                 // mean of θ_0²
  std::vector<float> gram;         // means of Δ_i Δ_j, i >= j, by unknown source
  std::vector<Digest128> digests;  // by unknown source, until they are digested

  float Gram(size_t i, size_t j) const { return i < j ? Gram(j, i) : gram[i * (i + 1) / 2 + j]; }
};

class SampledEvidence final : public NoEvidence {
 public:
  SampledEvidence(const Plan& draft, std::shared_ptr<Evidence> known)
      : NoEvidence(*draft.merge), options_(draft.options), known_(std::move(known)) {
    for (const TensorPlan& tensor : draft.tensors)
      element_bytes_.push_back(tensor.element_bytes);
  }

  // Which sources of a tensor want samples.
  std::vector<size_t> Unknown(const Plan& draft, size_t tensor) const {
    std::vector<size_t> unknown;
    for (size_t s = 1; s < merge_.tensors[tensor].sources.size() && merge_.tensors[tensor].merged; ++s) {
      const TensorSource& source = merge_.tensors[tensor].sources[s];
      // Rows in another order were never compared, however well the model is known.
      if (MayOmit(draft, tensor, s) && (!known_->Knows(source.model) || source.rows != nullptr))
        unknown.push_back(s);
    }
    return unknown;
  }

  // Spreads the samples: every k-th block of all, with the smallest k that the limit allows.
  void Choose(const Plan& draft, uint64_t limit) {
    unknown_.resize(merge_.tensors.size());
    std::vector<Sample> all;
    uint64_t bytes = 0;
    for (size_t t = 0; t < merge_.tensors.size(); ++t) {
      unknown_[t] = Unknown(draft, t);
      for (size_t b = 0; b < BlockCount(draft, t) && !unknown_[t].empty(); ++b) {
        all.push_back(PageOf(draft, t, b));
        bytes += Cost(draft, all.back());
      }
    }
    if (limit == 0) return;
    const uint64_t every = std::max<uint64_t>(1, (bytes + limit - 1) / limit);
    for (uint64_t i = every / 2; i < all.size(); i += every) {
      if (sample_bytes_ + Cost(draft, all[i]) > limit) continue;
      sample_bytes_ += Cost(draft, all[i]);
      samples_.push_back(std::move(all[i]));
    }
  }

  Result<void> Read(const Plan& draft, const kernels::Kernels& kernels, const ScanLimits& limits,
                    Ledger& ledger) {
    constexpr size_t kWorkers = 8;
    MP_TRY(ParallelScan(samples_.size(), kWorkers, limits.stop_signal,
                        [&](size_t, uint64_t i) { return ReadSample(draft, kernels, ledger, samples_[i]); }));
    Digest();
    Average();
    return {};
  }

  Result<TensorEvidence> Of(size_t t) override {
    TensorEvidence evidence = MP_TRY(known_->Of(t));
    if (unknown_[t].empty()) return evidence;
    const ResolvedTensor& tensor = merge_.tensors[t];
    const size_t n = tensor.sources.size();
    const uint64_t block = options_.block_bytes / element_bytes_[t];
    const auto blocks = static_cast<size_t>((tensor.elements + block - 1) / block);
    for (const size_t s : unknown_[t]) {
      evidence.sources[s] = SourceEvidence{{}, false};
      evidence.sources[s]->knowledge.blocks.energy.resize(blocks);
    }
    evidence.sampled_gram.assign(blocks * n * n, 0);
    const bool base_known = evidence.base.has_value();
    if (!base_known) evidence.base = BaseColumns{std::vector<double>(blocks), {}};
    for (size_t b = 0; b < blocks; ++b) {
      const auto elements = static_cast<double>(std::min(block, tensor.elements - b * block));
      const Sample* nearest = Nearest(t, b);
      if (!base_known)
        evidence.base->energy[b] = elements * (nearest == nullptr ? base_mean_ : nearest->base);
      Fill(t, b, elements, nearest, evidence);
    }
    return evidence;
  }

  std::string Identity(size_t model) const override {
    return identities_[model].empty() ? known_->Identity(model) : identities_[model];
  }
  bool Knows(size_t model) const override { return known_->Knows(model); }
  uint64_t sample_bytes() const override { return sample_bytes_; }
  Strength strength() const override { return Strength::kSampled; }

 private:
  uint64_t ElementBytes(size_t t, size_t s) const {
    return DTypeBytes(EntryOf(merge_, merge_.tensors[t].sources[s]).dtype);
  }

  // A page in the middle of the block, at a page's start in the base's file where there is room.
  Sample PageOf(const Plan& draft, size_t t, size_t b) const {
    const uint64_t block = BlockElements(draft, t);
    const uint64_t start = b * block;
    const uint64_t elements = std::min(block, merge_.tensors[t].elements - start);
    uint64_t widest = element_bytes_[t];
    for (const size_t s : unknown_[t])
      widest = std::max(widest, ElementBytes(t, s));
    Sample sample{.tensor = static_cast<uint32_t>(t),
                  .block = static_cast<uint32_t>(b),
                  .count = std::min(elements, kPage / widest),
                  .gram = {},
                  .digests = {}};
    const uint64_t middle = start + (elements - sample.count) / 2;
    const bool gathered = merge_.tensors[t].sources[0].rows != nullptr;
    const uint64_t into_page = gathered ? 0 : FileOffset(t, 0, middle) % kPage / element_bytes_[t];
    sample.first = middle - start >= into_page ? middle - into_page : middle;
    return sample;
  }

  uint64_t FileOffset(size_t t, size_t s, uint64_t element) const {
    const TensorSource& source = merge_.tensors[t].sources[s];
    const Checkpoint& checkpoint = *merge_.models[source.model].checkpoint;
    const Shard& shard = checkpoint.shards()[source.place.shard];
    return shard.header.data_start + checkpoint.entry(source.place).begin + element * ElementBytes(t, s);
  }

  // Expert bytes: those of the reference too where it is an expert, or has rows of experts.
  uint64_t Cost(const Plan& draft, const Sample& sample) const {
    uint64_t bytes = BytesFetched(draft, sample.tensor, 0, sample.first, sample.count).expert;
    for (const size_t s : unknown_[sample.tensor])
      bytes += BytesFetched(draft, sample.tensor, s, sample.first, sample.count).expert;
    return bytes;
  }

  Result<void> ReadSample(const Plan& draft, const kernels::Kernels& kernels, Ledger& ledger,
                          Sample& sample) {
    const auto& unknown = unknown_[sample.tensor];
    const kernels::Loops<double>& loops = kernels.f64;
    const RowGather gather(draft, sample.tensor, kernels, ledger, Purpose::kSample);
    std::vector<std::byte> page(Source::BufferBytes(kPage)), reference(Source::BufferBytes(kPage));
    std::vector<std::byte> scratch(GatherScratch(merge_.tensors[sample.tensor]));
    std::vector<double> base(sample.count);
    std::vector<std::vector<double>> deltas(unknown.size(), std::vector<double>(sample.count));
    const auto load = [&](size_t s, std::span<std::byte> into,
                          std::vector<double>& values) -> Result<Digest128> {
      const RowGather::Target target{.reference = reference.data(), .out = into.data(), .scratch = scratch};
      const auto stored = MP_TRY(Load(draft, sample, s, gather, target, into, ledger));
      loops.widen(EntryOf(merge_, merge_.tensors[sample.tensor].sources[s]).dtype, stored.data(),
                  values.data(), values.size());
      return DigestOf(stored);
    };
    MP_TRY(load(0, reference, base));
    sample.base = MeanOf(loops.dot(base.data(), base.data(), base.size()), sample.count);
    sample.gram.reserve(unknown.size() * (unknown.size() + 1) / 2);
    for (size_t i = 0; i < unknown.size(); ++i) {
      sample.digests.push_back(MP_TRY(load(unknown[i], page, deltas[i])));
      loops.subtract(deltas[i].data(), base.data(), deltas[i].data(), base.size());
      for (size_t j = 0; j <= i; ++j) {
        const double product = loops.dot(deltas[i].data(), deltas[j].data(), base.size());
        sample.gram.push_back(static_cast<float>(MeanOf(product, sample.count)));
      }
    }
    return {};
  }

  // The stored bytes of the sample, or what is gathered for it.
  Result<std::span<const std::byte>> Load(const Plan& draft, const Sample& sample, size_t s,
                                          const RowGather& gather, const RowGather::Target& target,
                                          std::span<std::byte> buffer, Ledger& ledger) const {
    const TensorSource& source = merge_.tensors[sample.tensor].sources[s];
    const uint64_t element = ElementBytes(sample.tensor, s);
    const uint64_t bytes = sample.count * element;
    if (source.rows != nullptr) {
      MP_TRY(gather.Gather(s, {sample.first, sample.count}, target));
      return std::span<const std::byte>(target.out, bytes);
    }
    const auto range =
        MP_TRY(ReadCharged(draft, source, sample.first * element, bytes, buffer, ledger, Purpose::kSample));
    return std::span<const std::byte>(range.data, bytes);
  }

  void Digest() {
    std::vector<Sha256> shas(merge_.models.size());
    std::vector<bool> sampled(merge_.models.size());
    for (Sample& sample : samples_) {
      for (size_t i = 0; i < sample.digests.size(); ++i) {
        const size_t model = merge_.tensors[sample.tensor].sources[unknown_[sample.tensor][i]].model;
        if (known_->Knows(model)) continue;
        shas[model].Update(Hex(sample.digests[i]));
        sampled[model] = true;
      }
      sample.digests = {};
    }
    for (size_t m = 0; m < shas.size(); ++m)
      identities_.push_back(sampled[m] ? shas[m].FinishHex() : "");
  }

  // For tensors without a sample: the means over all samples of a model.
  void Average() {
    model_mean_.assign(merge_.models.size(), 0);
    std::vector<size_t> counts(merge_.models.size(), 0);
    for (const Sample& sample : samples_) {
      const auto& unknown = unknown_[sample.tensor];
      base_mean_ += sample.base / static_cast<double>(samples_.size());
      for (size_t i = 0; i < unknown.size(); ++i) {
        const size_t model = merge_.tensors[sample.tensor].sources[unknown[i]].model;
        model_mean_[model] += static_cast<double>(sample.Gram(i, i));
        ++counts[model];
      }
    }
    for (size_t m = 0; m < counts.size(); ++m)
      model_mean_[m] /= static_cast<double>(std::max<size_t>(1, counts[m]));
  }

  // The sample of the tensor that is nearest to a block; null where it has none.
  const Sample* Nearest(size_t t, size_t b) const {
    const auto key = [](const Sample& s) { return std::pair<size_t, size_t>(s.tensor, s.block); };
    const auto above = std::lower_bound(samples_.begin(), samples_.end(), std::pair(t, b),
                                        [&](const Sample& s, const auto& place) { return key(s) < place; });
    const Sample* next = above != samples_.end() && above->tensor == t ? &*above : nullptr;
    const Sample* before =
        above != samples_.begin() && std::prev(above)->tensor == t ? &*std::prev(above) : nullptr;
    if (next == nullptr || before == nullptr) return next == nullptr ? before : next;
    return next->block - b < b - before->block ? next : before;
  }

  void Fill(size_t t, size_t b, double elements, const Sample* nearest, TensorEvidence& evidence) const {
    const auto& unknown = unknown_[t];
    const size_t n = merge_.tensors[t].sources.size();
    for (size_t i = 0; i < unknown.size(); ++i) {
      const double mean = nearest == nullptr ? model_mean_[merge_.tensors[t].sources[unknown[i]].model]
                                             : static_cast<double>(nearest->Gram(i, i));
      evidence.sources[unknown[i]]->knowledge.blocks.energy[b] = elements * mean;
      for (size_t j = 0; j < unknown.size() && nearest != nullptr; ++j)
        evidence.sampled_gram[(b * n + unknown[i]) * n + unknown[j]] =
            static_cast<float>(elements) * nearest->Gram(i, j);
    }
  }

  PlanOptions options_;
  std::vector<uint64_t> element_bytes_;  // of each tensor's reference
  std::shared_ptr<Evidence> known_;
  std::vector<std::vector<size_t>> unknown_;  // by tensor
  std::vector<Sample> samples_;               // by tensor and block
  std::vector<std::string> identities_;       // by model; "" where it was not sampled
  std::vector<double> model_mean_;            // of Δ²
  double base_mean_ = 0;
  uint64_t sample_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Evidence>> SampleExperts(const Plan& draft, uint64_t limit,
                                                std::shared_ptr<Evidence> known,
                                                const kernels::Kernels& kernels, const ScanLimits& limits,
                                                Ledger& ledger) {
  auto evidence = std::make_unique<SampledEvidence>(draft, std::move(known));
  evidence->Choose(draft, limit);
  MP_TRY(evidence->Read(draft, kernels, limits, ledger));
  return std::unique_ptr<Evidence>(std::move(evidence));
}

}  // namespace mergepipe
