#include "planner/block_error.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/blocks.h"

namespace mergepipe {
namespace {

double RateOf(double gain, uint64_t bytes) {
  return gain / static_cast<double>(std::max<uint64_t>(1, bytes));
}

// The energy of one element in each octave of a block, relative to the first.
constexpr std::array<double, kOctaves> kOctaveEnergy = [] {
  std::array<double, kOctaves> energy{1};
  for (size_t j = 1; j < kOctaves; ++j)
    energy[j] = energy[j - 1] / 4;
  return energy;
}();

// Magnitude key that the k-th largest element has at least, from the histogram of upper bits.
uint32_t KeyFromHistogram(const TensorKnowledge& knowledge, uint64_t count) {
  uint64_t above = 0;
  for (auto bucket = knowledge.histogram.rbegin(); bucket != knowledge.histogram.rend(); ++bucket) {
    above += bucket->second;
    if (above >= count) return bucket->first << kernels::kLowBits;
  }
  return 0;
}

// Share of the energy of a block that lies at or above a magnitude, from its octaves.
double ShareAbove(const BlockColumns& columns, size_t block, uint32_t key) {
  constexpr unsigned kMantissaBits = 23;
  const uint32_t top = columns.max_key[block] >> kMantissaBits;
  const uint32_t cut = key >> kMantissaBits;
  const double fraction = static_cast<double>(key & ((1u << kMantissaBits) - 1)) / (1u << kMantissaBits);
  double whole = 0, kept = 0;
  for (size_t j = 0; j < kOctaves; ++j) {
    const double energy = columns.octaves[block * kOctaves + j] * kOctaveEnergy[j];
    const auto exponent = static_cast<int64_t>(top) - static_cast<int64_t>(j);
    whole += energy;
    if (exponent > static_cast<int64_t>(cut)) kept += energy;
    if (exponent == static_cast<int64_t>(cut)) kept += energy * (1 - fraction);
  }
  return whole > 0 ? kept / whole : 0;
}

}  // namespace

double BlockError::Of(const std::vector<bool>& left_out) const {
  double sum = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t v = 0; v < units.size() && left_out[u]; ++v)
      sum += left_out[v] ? form[u * units.size() + v] : 0;
  }
  return std::max(sum, 0.0);
}

double BlockError::OfAll() const {
  return Of(std::vector<bool>(units.size(), true));
}

namespace {

// What is left out of a block while its units are taken one by one.
class GreedyOrder {
 public:
  explicit GreedyOrder(const BlockError& block) : block_(block), row_(block.units.size()) {
    const size_t n = row_.size();
    for (size_t v = 0; v < n; ++v) {
      left_out_.push_back(v);
      for (size_t u = 0; u < n; ++u)
        row_[u] += block.form[v * n + u];
    }
    for (const double sum : row_)
      sum_ += sum;
    error_ = std::max(sum_, 0.0);
  }

  bool done() const { return left_out_.empty(); }

  ReadStep TakeBest() {
    const size_t at = Best();
    const size_t unit = left_out_[at];
    left_out_.erase(left_out_.begin() + static_cast<ptrdiff_t>(at));
    sum_ -= Gain(unit);
    const double* const form = block_.form.data() + unit * row_.size();
    for (size_t u = 0; u < row_.size(); ++u)
      row_[u] -= form[u];
    const double before = error_;
    error_ = done() ? 0.0 : std::max(sum_, 0.0);
    return {{unit}, before - error_, block_.units[unit].bytes};
  }

 private:
  double Gain(size_t unit) const { return 2 * row_[unit] - block_.form[unit * row_.size() + unit]; }

  // The position in left_out_ of the unit with the best rate, the first of equals.
  size_t Best() const {
    size_t best = 0;
    double best_rate = 0;
    for (size_t i = 0; i < left_out_.size(); ++i) {
      const double rate = RateOf(Gain(left_out_[i]), block_.units[left_out_[i]].bytes);
      if (i > 0 && !(rate > best_rate)) continue;
      best = i;
      best_rate = rate;
    }
    return best;
  }

  const BlockError& block_;
  std::vector<double> row_;       // of the form, summed over what is left out
  std::vector<size_t> left_out_;  // ascending
  double sum_ = 0, error_ = 0;
};

// Steps whose rate is above that of the one before become one with it.
void Pool(std::vector<ReadStep>& steps) {
  while (steps.size() > 1) {
    ReadStep& last = steps.back();
    ReadStep& before = steps[steps.size() - 2];
    if (!(RateOf(last.gain, last.bytes) > RateOf(before.gain, before.bytes))) return;
    before.units.insert(before.units.end(), last.units.begin(), last.units.end());
    before.gain += last.gain;
    before.bytes += last.bytes;
    steps.pop_back();
  }
}

}  // namespace

std::vector<ReadStep> OrderBlock(const BlockError& block) {
  std::vector<ReadStep> steps;
  steps.reserve(block.units.size());
  for (GreedyOrder order(block); !order.done(); Pool(steps))
    steps.push_back(order.TakeBest());
  for (ReadStep& step : steps)
    step.gain = std::max(step.gain, 0.0);
  return steps;
}

std::vector<double> SourceCoefficients(const ResolvedMerge& merge, const ResolvedTensor& tensor) {
  std::vector<double> coefficients(tensor.sources.size(), 0);
  if (!tensor.merged || tensor.inputs.empty()) return coefficients;
  const auto by_input = merge.method->coefficients(tensor.facts, merge.params[tensor.params]);
  for (size_t i = 0; i < tensor.inputs.size(); ++i)
    coefficients[tensor.inputs[i]] += by_input[i];
  return coefficients;
}

TensorErrors::TensorErrors(const Plan& plan, size_t tensor, const TensorEvidence& evidence, bool gram)
    : plan_(plan),
      tensor_(plan.merge->tensors[tensor]),
      evidence_(evidence),
      number_(tensor),
      blocks_(BlockCount(plan, tensor)),
      crosses_(gram && !plan.merge->method->elects_signs),
      sources_(tensor_.sources.size()) {
  NoteSources();
  NoteRules();
  FindEnergies();
  if (!crosses_) return;
  std::vector<const BlockColumns*> sketched;
  for (const Source& source : sources_)
    sketched.push_back(source.exact ? source.columns : nullptr);
  cosines_ = SketchCosines(sketched, blocks_);
}

void TensorErrors::NoteSources() {
  const auto coefficients = SourceCoefficients(*plan_.merge, tensor_);
  for (size_t s = 0; s < sources_.size(); ++s) {
    Source& source = sources_[s];
    const auto& evidence = evidence_.sources[s];
    source.columns = evidence ? &evidence->knowledge.blocks : nullptr;
    source.exact = evidence && evidence->exact;
    source.may_omit = MayOmit(plan_, number_, s);
    source.dtype = EntryOf(*plan_.merge, tensor_.sources[s]).dtype;
    source.coefficient = coefficients[s];
  }
}

void TensorErrors::NoteRules() {
  const auto& constants = plan_.constants[number_];
  for (size_t i = 0; i < tensor_.request.keep.size(); ++i) {
    const KeepRule& rule = tensor_.request.keep[i];
    Source& source = sources_[tensor_.inputs[i]];
    if (rule.kind == KeepRule::Kind::kNone) source.spread = 0;
    if (rule.kind == KeepRule::Kind::kRandom && rule.probability > 0)
      source.spread = tensor_.request.l1 ? 1 / static_cast<double>(rule.probability) : rule.probability;
    if (rule.kind == KeepRule::Kind::kRanked)  // the chance in the middle
      source.spread = tensor_.request.l1 ? 1 / static_cast<double>(rule.probability + rule.span)
                                         : rule.probability + rule.span;
    if (rule.kind != KeepRule::Kind::kLargest || !source.exact) continue;
    source.trim_exact = constants.has_value();
    source.trim_key =
        constants ? constants->thresholds[i].key
                  : KeyFromHistogram(evidence_.sources[tensor_.inputs[i]]->knowledge, rule.from_top());
  }
}

void TensorErrors::FindEnergies() {
  energy_.reserve(sources_.size() * blocks_);
  for (const Source& source : sources_) {
    for (size_t b = 0; b < blocks_; ++b)
      energy_.push_back(source.coefficient * source.coefficient * KeptEnergy(source, b));
  }
}

uint64_t TensorErrors::BlockBytes(size_t source, size_t block) const {
  return SourceBlockBytes(plan_, number_, source, block);
}

double TensorErrors::RawEnergy(size_t source, size_t block) const {
  const BlockColumns* columns = sources_[source].columns;
  return columns != nullptr ? columns->energy[block] : 0;
}

double TensorErrors::KeptEnergy(const Source& source, size_t block) const {
  if (source.columns == nullptr) return 0;
  const double share = source.trim_key == 0 ? 1.0 : ShareAbove(*source.columns, block, source.trim_key);
  return source.columns->energy[block] * share * source.spread;
}

// Exact: the same output whether or not the block is read.
bool TensorErrors::IsLossless(size_t s, size_t block) const {
  const Source& source = sources_[s];
  if (!source.exact) return false;
  if (source.dtype == sources_[0].dtype && evidence_.base && !evidence_.base->digest.empty() &&
      source.columns->digest[block] == evidence_.base->digest[block])
    return true;
  if (tensor_.facts.domain != Domain::kDeltas) return false;
  const uint32_t largest = source.columns->max_key[block];
  return largest == 0 || (source.trim_exact && largest < source.trim_key);
}

bool TensorErrors::SameBytes(size_t a, size_t b, size_t block) const {
  const Source& x = sources_[a];
  const Source& y = sources_[b];
  return x.exact && y.exact && x.dtype == y.dtype && x.columns->digest[block] == y.columns->digest[block];
}

std::vector<ReadUnit> TensorErrors::Units(size_t block, std::vector<size_t>& lossless) const {
  std::vector<ReadUnit> units;
  units.reserve(sources_.size());
  std::vector<uint64_t> hashes;  // by unit: most comparisons need no more
  hashes.reserve(sources_.size());
  for (size_t s = 1; s < sources_.size(); ++s) {
    if (!sources_[s].may_omit) continue;
    if (IsLossless(s, block)) {
      lossless.push_back(s);
      continue;
    }
    const uint64_t hash = sources_[s].exact ? sources_[s].columns->digest[block].low : 0;
    size_t u = 0;
    while (u < units.size() && !(hashes[u] == hash && SameBytes(units[u].sources[0], s, block)))
      ++u;
    if (u < units.size()) {
      units[u].sources.push_back(s);
    } else {
      units.push_back({{s}, BlockBytes(s, block)});
      hashes.push_back(hash);
    }
  }
  return units;
}

// [sources, sources], b < a: λ_a λ_b <Δ_a, Δ_b>.
std::vector<double> TensorErrors::CrossTerms(size_t block) const {
  const size_t n = sources_.size();
  std::vector<double> terms(n * n), energy(n);
  for (size_t s = 1; s < n; ++s)
    energy[s] = RawEnergy(s, block);
  for (size_t a = 1; a < n; ++a) {
    const double coefficient = sources_[a].coefficient;
    for (size_t b = 1; b < a; ++b)
      terms[a * n + b] = coefficient * sources_[b].coefficient *
                         (std::sqrt(energy[a] * energy[b]) * cosines_.Of(a, b, block));
  }
  for (size_t a = 1; a < n && !evidence_.sampled_gram.empty(); ++a) {
    for (size_t b = 1; b < a; ++b) {
      if (sources_[a].exact && sources_[b].exact) continue;
      const auto sampled = static_cast<double>(evidence_.sampled_gram[(block * n + a) * n + b]);
      terms[a * n + b] = sources_[a].coefficient * sources_[b].coefficient * sampled;
    }
  }
  return terms;
}

// The same bytes twice agree with themselves.
double TensorErrors::OwnTerm(const ReadUnit& unit, size_t block) const {
  double sum = 0;
  for (const size_t a : unit.sources) {
    for (const size_t b : unit.sources) {
      if (a == b) sum += Energy(a, block);
      if (a != b && crosses_) sum += sources_[a].coefficient * sources_[b].coefficient * RawEnergy(a, block);
    }
  }
  return sum;
}

BlockError TensorErrors::Block(size_t block) const {
  BlockError result;
  result.units = Units(block, result.lossless);
  const size_t n = result.units.size();
  result.form.resize(n * n);
  for (size_t u = 0; u < n; ++u)
    result.form[u * n + u] = OwnTerm(result.units[u], block);
  if (!crosses_) return result;
  const std::vector<double> terms = CrossTerms(block);
  const auto term = [&](size_t a, size_t b) {
    return terms[std::max(a, b) * sources_.size() + std::min(a, b)];
  };
  for (size_t u = 0; u < n; ++u) {
    for (size_t v = 0; v < u; ++v) {
      double sum = 0;
      for (const size_t a : result.units[v].sources) {
        for (const size_t b : result.units[u].sources)
          sum += term(a, b);
      }
      result.form[u * n + v] = result.form[v * n + u] = sum;
    }
  }
  return result;
}

}  // namespace mergepipe
