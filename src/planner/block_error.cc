#include "planner/block_error.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "catalog/sketch.h"
#include "planner/blocks.h"

namespace mergepipe {
namespace {

// Cosines below this many standard errors of the sketch count as nothing.
constexpr double kNoise = 3.5;

double SketchCosine(const BlockColumns& a, const BlockColumns& b, size_t block) {
  const double norms = SketchDot(a, a, block) * SketchDot(b, b, block);
  return norms > 0 ? std::clamp(SketchDot(a, b, block) / std::sqrt(norms), -1.0, 1.0) : 0;
}

double RateOf(const ReadStep& step) {
  return step.gain / static_cast<double>(std::max<uint64_t>(1, step.bytes));
}

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
    const double energy = columns.octaves[block * kOctaves + j] * std::ldexp(1.0, -2 * static_cast<int>(j));
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

std::vector<ReadStep> OrderBlock(const BlockError& block) {
  const size_t n = block.units.size();
  std::vector<double> row(n, 0);  // of the form, summed over what is left out
  double sum = 0;
  for (size_t u = 0; u < n; ++u) {
    for (size_t v = 0; v < n; ++v)
      row[u] += block.form[u * n + v];
    sum += row[u];
  }
  double error = std::max(sum, 0.0);
  std::vector<bool> left_out(n, true);
  std::vector<ReadStep> steps;
  for (size_t k = 0; k < n; ++k) {
    size_t best = n;
    double best_rate = 0;
    for (size_t u = 0; u < n; ++u) {
      if (!left_out[u]) continue;
      const double gain = 2 * row[u] - block.form[u * n + u];
      const double rate = gain / static_cast<double>(std::max<uint64_t>(1, block.units[u].bytes));
      if (best == n || rate > best_rate) {
        best = u;
        best_rate = rate;
      }
    }
    left_out[best] = false;
    sum -= 2 * row[best] - block.form[best * n + best];
    for (size_t u = 0; u < n; ++u)
      row[u] -= block.form[best * n + u];
    const double next = k + 1 == n ? 0.0 : std::max(sum, 0.0);
    steps.push_back({{best}, error - next, block.units[best].bytes});
    error = next;
    while (steps.size() > 1 && RateOf(steps.back()) > RateOf(steps[steps.size() - 2])) {
      ReadStep& before = steps[steps.size() - 2];
      before.units.insert(before.units.end(), steps.back().units.begin(), steps.back().units.end());
      before.gain += steps.back().gain;
      before.bytes += steps.back().bytes;
      steps.pop_back();
    }
  }
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
      coefficients_(SourceCoefficients(*plan.merge, tensor_)),
      spread_(tensor_.sources.size(), 1.0),
      trim_key_(tensor_.sources.size(), 0),
      trim_exact_(tensor_.sources.size(), false) {
  for (size_t i = 0; i < tensor_.request.keep.size(); ++i) {
    const KeepRule& rule = tensor_.request.keep[i];
    const size_t source = tensor_.inputs[i];
    if (rule.kind == KeepRule::Kind::kNone) spread_[source] = 0;
    if (rule.kind == KeepRule::Kind::kRandom && rule.probability > 0)
      spread_[source] = tensor_.request.l1 ? 1 / static_cast<double>(rule.probability) : rule.probability;
    if (rule.kind != KeepRule::Kind::kLargest || !evidence.sources[source] ||
        !evidence.sources[source]->exact)
      continue;
    trim_exact_[source] = plan.constants[tensor].has_value();
    trim_key_[source] = trim_exact_[source]
                            ? plan.constants[tensor]->thresholds[i].key
                            : KeyFromHistogram(evidence.sources[source]->knowledge, rule.count);
  }
  if (crosses_) FindCosines();
}

uint64_t TensorErrors::BlockBytes(size_t source, size_t block) const {
  return SourceBlockBytes(plan_, number_, source, block);
}

double TensorErrors::RawEnergy(size_t source, size_t block) const {
  const auto& evidence = evidence_.sources[source];
  return evidence ? evidence->knowledge.blocks.energy[block] : 0;
}

double TensorErrors::KeptEnergy(size_t source, size_t block) const {
  const auto& evidence = evidence_.sources[source];
  if (!evidence) return 0;
  const BlockColumns& columns = evidence->knowledge.blocks;
  const double share = trim_key_[source] == 0 ? 1.0 : ShareAbove(columns, block, trim_key_[source]);
  return columns.energy[block] * share * spread_[source];
}

double TensorErrors::Energy(size_t source, size_t block) const {
  return coefficients_[source] * coefficients_[source] * KeptEnergy(source, block);
}

// Exact: the same output whether or not the block is read.
bool TensorErrors::IsLossless(size_t source, size_t block) const {
  const auto& evidence = evidence_.sources[source];
  if (!evidence || !evidence->exact) return false;
  const BlockColumns& columns = evidence->knowledge.blocks;
  const bool same_type =
      EntryOf(*plan_.merge, tensor_.sources[source]).dtype == EntryOf(*plan_.merge, tensor_.sources[0]).dtype;
  if (same_type && evidence_.base && !evidence_.base->digest.empty() &&
      columns.digest[block] == evidence_.base->digest[block])
    return true;
  if (plan_.merge->method->domain != Domain::kDeltas) return false;
  return columns.max_key[block] == 0 || (trim_exact_[source] && columns.max_key[block] < trim_key_[source]);
}

bool TensorErrors::SameBytes(size_t a, size_t b, size_t block) const {
  const auto& x = evidence_.sources[a];
  const auto& y = evidence_.sources[b];
  return x && y && x->exact && y->exact &&
         EntryOf(*plan_.merge, tensor_.sources[a]).dtype == EntryOf(*plan_.merge, tensor_.sources[b]).dtype &&
         x->knowledge.blocks.digest[block] == y->knowledge.blocks.digest[block];
}

std::vector<ReadUnit> TensorErrors::Units(size_t block, std::vector<size_t>& lossless) const {
  std::vector<ReadUnit> units;
  for (size_t s = 1; s < tensor_.sources.size(); ++s) {
    if (!MayOmit(plan_, number_, s)) continue;
    if (IsLossless(s, block)) {
      lossless.push_back(s);
      continue;
    }
    const auto same = std::find_if(units.begin(), units.end(),
                                   [&](const ReadUnit& u) { return SameBytes(u.sources[0], s, block); });
    if (same != units.end()) {
      same->sources.push_back(s);
    } else {
      units.push_back({{s}, BlockBytes(s, block)});
    }
  }
  return units;
}

BlockError TensorErrors::Block(size_t block) const {
  BlockError result;
  result.units = Units(block, result.lossless);
  const size_t n = result.units.size();
  result.form.resize(n * n);
  for (size_t u = 0; u < n; ++u) {
    for (size_t v = u; v < n; ++v) {
      double sum = 0;
      for (const size_t a : result.units[u].sources) {
        for (const size_t b : result.units[v].sources) {
          if (a == b) sum += Energy(a, block);
          if (a == b || !crosses_) continue;
          // The same bytes twice agree with themselves.
          sum += coefficients_[a] * coefficients_[b] *
                 (u == v ? RawEnergy(a, block) : InnerProduct(a, b, block));
        }
      }
      result.form[u * n + v] = result.form[v * n + u] = sum;
    }
  }
  return result;
}

size_t TensorErrors::PairOf(size_t a, size_t b) const {
  return std::max(a, b) * (std::max(a, b) - 1) / 2 + std::min(a, b);
}

double TensorErrors::InnerProduct(size_t a, size_t b, size_t block) const {
  const size_t n = tensor_.sources.size();
  const auto& x = evidence_.sources[a];
  const auto& y = evidence_.sources[b];
  if (!x || !y) return 0;
  if (!x->exact || !y->exact)
    return evidence_.sampled_gram.empty()
               ? 0.0
               : static_cast<double>(evidence_.sampled_gram[(block * n + a) * n + b]);
  const double norms = std::sqrt(x->knowledge.blocks.energy[block] * y->knowledge.blocks.energy[block]);
  const double cosine = cosine_[PairOf(a, b) * blocks_ + block];
  const double noise = kNoise / std::sqrt(static_cast<double>(kSketchBuckets));
  return norms * (std::fabs(cosine) >= noise ? cosine : tensor_cosine_[PairOf(a, b)]);
}

// A block's sketch is noisy; over all blocks of the tensor the noise averages out, so that experts which
// agree a little everywhere are seen to.
void TensorErrors::FindCosines() {
  const size_t n = tensor_.sources.size();
  tensor_cosine_.assign(n * (n - 1) / 2, 0);
  cosine_.assign(tensor_cosine_.size() * blocks_, 0);
  for (size_t a = 1; a < n; ++a) {
    for (size_t b = 1; b < a; ++b) {
      const auto& x = evidence_.sources[a];
      const auto& y = evidence_.sources[b];
      if (!x || !y || !x->exact || !y->exact) continue;
      double dot = 0, norms = 0, squares = 0;
      for (size_t k = 0; k < blocks_; ++k) {
        const double norm = std::sqrt(x->knowledge.blocks.energy[k] * y->knowledge.blocks.energy[k]);
        const double cosine = SketchCosine(x->knowledge.blocks, y->knowledge.blocks, k);
        cosine_[PairOf(a, b) * blocks_ + k] = static_cast<float>(cosine);
        dot += cosine * norm;
        norms += norm;
        squares += norm * norm;
      }
      const double noise = kNoise * std::sqrt(squares / static_cast<double>(kSketchBuckets));
      if (std::fabs(dot) >= noise && norms > 0) tensor_cosine_[PairOf(a, b)] = dot / norms;
    }
  }
}

}  // namespace mergepipe
