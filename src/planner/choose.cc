#include "planner/choose.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/parallel.h"
#include "base/text.h"
#include "base/try.h"
#include "planner/access_order.h"
#include "planner/blocks.h"
#include "planner/certificate.h"
#include "planner/fetched.h"

namespace mergepipe {
namespace {

// Expert bytes that are read whatever a mask says.
uint64_t FixedBytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    for (size_t s = 0; s < plan.merge->tensors[t].sources.size(); ++s)
      bytes += MayOmit(plan, t, s) ? 0 : BytesFetched(plan, t, s).expert * plan.tensors[t].passes();
  }
  return bytes;
}

// A tensor whose rows are laid out anew, of which no catalog knows anything; null where there is none.
const ResolvedTensor* FirstGathered(const ResolvedMerge& merge) {
  const auto found =
      std::find_if(merge.tensors.begin(), merge.tensors.end(),
                   [](const ResolvedTensor& tensor) { return tensor.sources[0].rows != nullptr; });
  return found == merge.tensors.end() ? nullptr : &*found;
}

// As --block-size takes it.
std::string BlockSizeText(uint64_t bytes) {
  constexpr uint64_t kMiB = 1u << 20;
  return bytes % kMiB == 0 ? Format("{}MiB", bytes / kMiB) : Format("{}KiB", bytes >> 10);
}

// Steps that change nothing that is predicted are taken all the same where the budget has room: the
// prediction may be an estimate, and a full budget is the full read.
class Chooser {
 public:
  Chooser(Plan& plan, const Budget& budget, Evidence& evidence)
      : plan_(plan), merge_(*plan.merge), budget_(budget), evidence_(evidence), order_(plan, budget.policy) {}

  Result<void> Run() {
    BudgetOutcome& out = plan_.budget;
    out.request = budget_;
    out.bytes = budget_.Bytes(plan_.costs.full_expert_bytes);
    out.sample_bytes = evidence_.sample_bytes();
    out.strength = evidence_.strength();
    out.lossless_bytes = 0;
    out.sources.assign(merge_.tensors.size(), {});
    MP_TRY(ReadEvidence());
    steps_ = order_.Finish();
    const size_t taken = MP_TRY(Cut());
    out.complete = taken == steps_.size();
    out.cut_rate = out.complete ? 0 : steps_[taken].gain / static_cast<double>(steps_[taken].bytes);
    for (size_t i = 0; i < taken; ++i)
      Take(steps_[i]);
    for (size_t i = taken; i < steps_.size(); ++i)
      LeaveOut(steps_[i]);
    MP_TRY(Predict(taken));
    Settle();
    return {};
  }

 private:
  // What is kept of each tensor once its statistics are gone.
  struct TensorBlocks {
    std::vector<double> energy;                   // [sources, blocks], weighed, trimmed
    std::vector<double> base_energy;              // by block; empty where unknown
    std::vector<std::vector<Digest128>> digests;  // by source and block; empty where unknown
    bool Knows(size_t source) const { return !digests[source].empty(); }
  };

  // Tensors are worked on at the same time, and what comes of it is put together in their order.
  Result<void> ReadEvidence() {
    blocks_.resize(merge_.tensors.size());
    std::vector<AccessOrder> parts(merge_.tensors.size(), order_);
    MP_TRY(ForEachTensor([&](size_t t) { return ReadTensor(t, parts[t]); }));
    order_.Append(std::move(parts));
    for (size_t t = 0; t < blocks_.size(); ++t) {
      for (const double e : blocks_[t].base_energy)
        weight_energy_ += e;
      const auto& digests = blocks_[t].digests;
      if (merge_.tensors[t].merged)
        all_exact_ = all_exact_ &&
                     std::none_of(digests.begin(), digests.end(), [](const auto& d) { return d.empty(); });
    }
    return {};
  }

  Result<void> ForEachTensor(const std::function<Result<void>(size_t t)>& work) {
    const size_t threads =
        std::clamp<size_t>(merge_.tensors.size(), 1, std::max<size_t>(1, plan_.options.threads));
    return ParallelScan(merge_.tensors.size(), threads, nullptr,
                        [&](size_t, uint64_t t) { return work(static_cast<size_t>(t)); });
  }

  Result<TensorEvidence> Load(size_t t) {
    const std::lock_guard lock(loading_);
    if (kept_.contains(t)) return std::move(kept_.extract(t).mapped());
    return evidence_.Of(t);
  }

  // Policies that do not look at inner products predict by them all the same, once it is known what is read.
  void Keep(size_t t, TensorEvidence evidence) {
    if (budget_.policy == Policy::kGram) return;
    const std::lock_guard lock(loading_);
    const uint64_t bytes = BytesOf(evidence);
    if (bytes > kept_room_) return;  // it is loaded again
    kept_room_ -= bytes;
    kept_.emplace(t, std::move(evidence));
  }

  static uint64_t BytesOf(const TensorEvidence& evidence) {
    constexpr uint64_t kBlock = kSketchBuckets + kOctaves * sizeof(uint32_t) + 64;
    uint64_t bytes = evidence.sampled_gram.size() * sizeof(float);
    for (const auto& source : evidence.sources)
      bytes += source ? source->knowledge.blocks.blocks() * kBlock +
                            source->knowledge.histogram.size() * sizeof(source->knowledge.histogram[0])
                      : 0;
    return bytes;
  }

  Result<void> ReadTensor(size_t t, AccessOrder& order) {
    plan_.masks[t] = {};
    if (!HasExperts(t)) return NoteWeights(t);
    const size_t sources = merge_.tensors[t].sources.size();
    TensorEvidence evidence = MP_TRY(Load(t));
    const TensorErrors errors(plan_, t, evidence, budget_.policy == Policy::kGram);
    plan_.masks[t] = TensorMask(sources, plan_.tensors[t].elements, BlockElements(plan_, t));
    for (size_t s = 1; s < sources; ++s) {
      if (!MayOmit(plan_, t, s)) ReadAlways(t, s);
    }
    plan_.budget.sources[t].assign(sources, {});  // the draft read everything
    Remember(t, evidence, errors);
    for (size_t b = 0; b < errors.blocks(); ++b) {
      const BlockError error = errors.Block(b);
      for (const size_t s : error.lossless)
        Skip(t, s, b);
      order.Add(t, b, errors, error);
    }
    Keep(t, std::move(evidence));
    return {};
  }

  bool HasExperts(size_t t) const {
    for (size_t s = 1; s < merge_.tensors[t].sources.size(); ++s) {
      if (MayOmit(plan_, t, s)) return plan_.tensors[t].elements > 0;
    }
    return false;
  }

  // Tensors that no expert touches count for the norm of the weights.
  Result<void> NoteWeights(size_t t) {
    if (evidence_.strength() == Strength::kNone || !merge_.tensors[t].merged) return {};
    TensorEvidence evidence = MP_TRY(Load(t));
    if (evidence.base) blocks_[t].base_energy = std::move(evidence.base->energy);
    return {};
  }

  void ReadAlways(size_t t, size_t s) {
    for (size_t b = 0; b < BlockCount(plan_, t); ++b)
      plan_.masks[t].Set(s, b, s);
  }

  void Skip(size_t t, size_t s, size_t b) {
    SourceOutcome& outcome = plan_.budget.sources[t][s];
    outcome.lossless_bytes += SourceBlockBytes(plan_, t, s, b) * plan_.tensors[t].passes();
  }

  void Remember(size_t t, const TensorEvidence& evidence, const TensorErrors& errors) {
    TensorBlocks& kept = blocks_[t];
    const size_t sources = evidence.sources.size();
    const size_t blocks = errors.blocks();
    kept.energy = errors.energies();
    if (evidence.base) kept.base_energy = evidence.base->energy;
    for (size_t s = 0; s < sources; ++s) {
      const std::vector<Digest128>* digests = DigestsOf(evidence, s);
      kept.digests.push_back(digests != nullptr ? *digests : std::vector<Digest128>());
      SourceOutcome& outcome = plan_.budget.sources[t][s];
      for (size_t b = 0; b < blocks && s > 0; ++b)
        outcome.energy += errors.Energy(s, b);
      if (MayOmit(plan_, t, s))
        outcome.available_bytes = BytesFetched(plan_, t, s).expert * plan_.tensors[t].passes();
    }
  }

  // Null where they are not known.
  static const std::vector<Digest128>* DigestsOf(const TensorEvidence& evidence, size_t s) {
    if (s == 0) return evidence.base && !evidence.base->digest.empty() ? &evidence.base->digest : nullptr;
    const auto& source = evidence.sources[s];
    return source && source->exact ? &source->knowledge.blocks.digest : nullptr;
  }

  // How many steps are taken.
  Result<size_t> Cut() {
    if (budget_.kind == Budget::Kind::kDeviation) return CutByDeviation();
    if (!plan_.budget.bytes || *plan_.budget.bytes >= plan_.costs.full_expert_bytes) return steps_.size();
    MP_TRY(CheckFits(plan_, *plan_.budget.bytes));
    uint64_t used = plan_.budget.sample_bytes + FixedBytes(plan_);
    size_t taken = 0;
    while (taken < steps_.size() && used + steps_[taken].bytes <= *plan_.budget.bytes)
      used += steps_[taken++].bytes;
    return taken;
  }

  Result<size_t> CutByDeviation() {
    if (const ResolvedTensor* gathered = FirstGathered(merge_))
      return Fail(Code::kUsage,
                  Format("--max-deviation can not be kept: the tokenizer lays the rows of tensor '{}' out "
                         "anew, and nobody has measured them in this order; use --budget",
                         gathered->name));
    if (evidence_.strength() != Strength::kFull || !all_exact_) {
      std::string experts;
      for (size_t m = 0; m < merge_.models.size(); ++m)
        experts += plan_.reference_model[m] ? "" : " " + merge_.models[m].path;
      return Fail(
          Code::kUsage,
          Format("--max-deviation needs experts that are analysed at this block size; run: mergepipe analyze "
                 "{}{} --block-size {}",
                 merge_.models[ReferenceModel()].path, experts, BlockSizeText(plan_.options.block_bytes)));
    }
    if (ScalesReference())
      return Fail(Code::kUsage,
                  "--max-deviation goes with weights that add up to 1: else the result is no sum of the "
                  "reference and an update, and its error can not be told relative to one");
    const double whole = GainFrom(0) + (budget_.of_weights ? weight_energy_ : 0);
    const double allowed = budget_.deviation * budget_.deviation * whole;
    double left = 0;
    size_t taken = steps_.size();
    while (taken > 0 && left + steps_[taken - 1].gain <= allowed)
      left += steps_[--taken].gain;
    uint64_t bytes = FixedBytes(plan_);
    for (size_t i = 0; i < taken; ++i)
      bytes += steps_[i].bytes;
    plan_.budget.bytes = bytes;
    return taken;
  }

  bool AllDeltas() const {
    return std::all_of(merge_.tensors.begin(), merge_.tensors.end(),
                       [](const ResolvedTensor& tensor) { return tensor.facts.domain == Domain::kDeltas; });
  }

  // Methods without a base whose weights do not add up to 1 scale the reference too, and nothing is
  // predicted.
  bool ScalesReference() const {
    constexpr double kRounding = 1e-5;
    return std::any_of(merge_.tensors.begin(), merge_.tensors.end(), [&](const ResolvedTensor& tensor) {
      if (tensor.facts.domain == Domain::kDeltas) return false;
      const auto c = SourceCoefficients(merge_, tensor);
      const double sum = std::accumulate(c.begin(), c.end(), 0.0);
      return tensor.merged && std::fabs(sum - 1) > kRounding;
    });
  }

  // Summed from the end: what the last steps leave is exact where it matters.
  double GainFrom(size_t first) const {
    double gain = 0;
    for (size_t i = steps_.size(); i-- > first;)
      gain += steps_[i].gain;
    return gain;
  }

  size_t ReferenceModel() const {
    for (size_t m = 0; m < merge_.models.size(); ++m) {
      if (plan_.reference_model[m]) return m;
    }
    return 0;
  }

  void Take(const AccessStep& step) {
    TensorMask& mask = plan_.masks[step.tensor];
    for (const size_t s : step.sources)
      mask.Set(s, step.block, HolderOf(step, s));
  }

  // Among the sources of a step, the first with the same stored bytes holds the block for all of them.
  size_t HolderOf(const AccessStep& step, size_t source) const {
    const TensorBlocks& kept = blocks_[step.tensor];
    if (!kept.Knows(source)) return source;
    const auto& sources = merge_.tensors[step.tensor].sources;
    size_t holder = source;
    for (const size_t s : step.sources) {
      const bool same = kept.Knows(s) && kept.digests[s][step.block] == kept.digests[source][step.block] &&
                        EntryOf(merge_, sources[s]).dtype == EntryOf(merge_, sources[source]).dtype;
      if (same) holder = std::min(holder, s);
    }
    return holder;
  }

  void LeaveOut(const AccessStep& step) {
    if (!merge_.tensors[step.tensor].merged) return;
    const size_t blocks = plan_.masks[step.tensor].blocks();
    for (const size_t s : step.sources)
      plan_.budget.sources[step.tensor][s].error += blocks_[step.tensor].energy[s * blocks + step.block];
  }

  Result<void> Predict(size_t taken) {
    BudgetOutcome& out = plan_.budget;
    out.predicted = {};
    out.certificate = {};
    const bool sampled = evidence_.strength() == Strength::kSampled;
    if (out.complete) {
      out.predicted = {0.0, 0.0};
    } else if (!sampled && !ScalesReference() && all_exact_ && evidence_.strength() == Strength::kFull) {
      const Squares squares = MP_TRY(PredictedSquares(taken));
      if (squares.update > 0) out.predicted.of_update = std::sqrt(squares.error / squares.update);
      const double weights = weight_energy_ + squares.update;
      if (weights > 0) out.predicted.of_weights = std::sqrt(squares.error / weights);
    }
    const bool is_base = taken == 0 && !out.complete && AllDeltas();
    if (is_base && (out.predicted.of_update || evidence_.strength() != Strength::kFull))
      out.predicted.of_update = 1.0;  // exactly, however well the update is known
    if (merge_.method->additive && (out.complete || (all_exact_ && evidence_.strength() == Strength::kFull)))
      out.certificate = out.complete ? Certificate{} : Certify();
    return {};
  }

  // Squared norms of the predicted error and of the update.
  struct Squares {
    double error = 0, update = 0;
  };

  Result<Squares> PredictedSquares(size_t taken) {
    if (budget_.policy == Policy::kGram) return Squares{GainFrom(taken), GainFrom(0)};
    // Other policies order by other things; their error has the same form.
    std::vector<std::vector<Squares>> blocks(merge_.tensors.size());
    MP_TRY(ForEachTensor([&](size_t t) { return PredictTensor(t, blocks[t]); }));
    Squares sum;
    for (const auto& tensor : blocks) {
      for (const Squares& block : tensor)
        sum = {sum.error + block.error, sum.update + block.update};
    }
    return sum;
  }

  Result<void> PredictTensor(size_t t, std::vector<Squares>& blocks) {
    if (!HasExperts(t) || !merge_.tensors[t].merged) return {};
    const TensorEvidence evidence = MP_TRY(Load(t));
    const TensorErrors errors(plan_, t, evidence, /*gram=*/true);
    for (size_t b = 0; b < errors.blocks(); ++b) {
      const BlockError block = errors.Block(b);
      std::vector<bool> left_out;
      for (const ReadUnit& unit : block.units)
        left_out.push_back(plan_.masks[t].From(unit.sources[0], b) == TensorMask::kOmitted);
      blocks.push_back({block.Of(left_out), block.OfAll()});
    }
    return {};
  }

  Certificate Certify() const {
    CertificateSum sum(merge_);
    for (size_t t = 0; t < merge_.tensors.size(); ++t) {
      if (!HasExperts(t) || !merge_.tensors[t].merged) continue;
      const std::vector<double> coefficients = SourceCoefficients(merge_, merge_.tensors[t]);
      const TensorMask& mask = plan_.masks[t];
      const TensorBlocks& kept = blocks_[t];
      for (size_t b = 0; b < mask.blocks(); ++b) {
        CertificateBlock block{.tensor = t,
                               .elements = std::min(mask.block_elements(),
                                                    plan_.tensors[t].elements - b * mask.block_elements()),
                               .base_energy = kept.base_energy[b]};
        for (size_t s = 1; s < coefficients.size(); ++s) {
          const double norm = std::sqrt(kept.energy[s * mask.blocks() + b]);
          block.all_norms += norm;
          if (mask.From(s, b) == TensorMask::kOmitted) block.omitted_norms += norm;
        }
        sum.Add(block, coefficients);
      }
    }
    return sum.Value();
  }

  // Masks that read everything are dropped, costs are added up, and what will be read is told beforehand.
  void Settle() {
    plan_.costs.expert_read_bytes = FixedBytes(plan_);
    plan_.expected.assign(merge_.tensors.size(), {});
    for (size_t t = 0; t < merge_.tensors.size(); ++t) {
      TensorMask& mask = plan_.masks[t];
      if (mask.reads_all()) continue;
      bool whole = true;
      for (size_t s = 1; s < mask.sources(); ++s) {
        SourceOutcome& outcome = plan_.budget.sources[t][s];
        for (size_t b = 0; b < mask.blocks(); ++b) {
          const size_t from = mask.From(s, b);
          if (from != TensorMask::kOmitted && from != s)  // read once for both
            outcome.lossless_bytes += SourceBlockBytes(plan_, t, s, b) * plan_.tensors[t].passes();
          whole = whole && mask.Reads(s, b);
          if (mask.Reads(s, b) && MayOmit(plan_, t, s))
            outcome.read_bytes += SourceBlockBytes(plan_, t, s, b) * plan_.tensors[t].passes();
        }
        plan_.costs.expert_read_bytes += outcome.read_bytes;
        plan_.budget.lossless_bytes += outcome.lossless_bytes;
      }
      Expect(t);
      if (whole) mask = {};
    }
    const uint64_t with_check = plan_.costs.expert_read_bytes + plan_.pair_check_bytes;
    const uint64_t in_all = with_check + plan_.budget.sample_bytes;
    plan_.checks_pairs = plan_.budget.complete && in_all <= plan_.budget.bytes.value_or(in_all);
    if (plan_.checks_pairs) plan_.costs.expert_read_bytes = with_check;
  }

  void Expect(size_t t) {
    const TensorBlocks& kept = blocks_[t];
    const TensorMask& mask = plan_.masks[t];
    for (size_t s = 0; s < mask.sources(); ++s) {
      plan_.expected[t].push_back(kept.Knows(s) ? MaskedDigest(kept.digests[s], mask, s) : "");
    }
  }

  Plan& plan_;
  const ResolvedMerge& merge_;
  const Budget& budget_;
  Evidence& evidence_;
  AccessOrder order_;
  std::vector<AccessStep> steps_;
  std::vector<TensorBlocks> blocks_;
  std::map<size_t, TensorEvidence> kept_;  // by tensor, for the prediction
  uint64_t kept_room_ = plan_.options.memory_bytes / 4;
  std::mutex loading_;  // one at a time asks the evidence, and for what is kept of it
  bool all_exact_ = true;
  double weight_energy_ = 0;
};

}  // namespace

Result<void> ChooseReads(Plan& plan, const Budget& budget, Evidence& evidence) {
  if (budget.kind == Budget::Kind::kDeviation && budget.policy != Policy::kGram)
    return Fail(Code::kUsage, "--max-deviation goes with --policy gram alone, whose error it predicts");
  return Chooser(plan, budget, evidence).Run();
}

Result<void> CheckFits(const Plan& draft, uint64_t budget_bytes) {
  if (draft.budget.sample_bytes + FixedBytes(draft) <= budget_bytes) return {};
  return Fail(
      Code::kUsage,
      Format("the budget is {} but {} of the experts can not be left out: no model can stand in for them, "
             "or they are rows of tokens that the base lacks",
             HumanBytes(budget_bytes), HumanBytes(FixedBytes(draft))));
}

uint64_t SampleLimit(const Plan& draft, const Budget& budget) {
  const uint64_t full = draft.costs.full_expert_bytes;
  const uint64_t bytes = budget.Bytes(full).value_or(0);
  const uint64_t fixed = FixedBytes(draft);
  return std::min({full / 100, bytes / 10, bytes > fixed ? bytes - fixed : 0});
}

bool WantsSamples(const Plan& draft, const Budget& budget, const Evidence& evidence) {
  const auto bytes = budget.Bytes(draft.costs.full_expert_bytes);
  const bool looks = budget.policy != Policy::kUniform && budget.policy != Policy::kRandom;
  const bool wants = evidence.strength() != Strength::kFull || FirstGathered(*draft.merge) != nullptr;
  return bytes && *bytes < draft.costs.full_expert_bytes && looks && wants && SampleLimit(draft, budget) > 0;
}

}  // namespace mergepipe
