#include "support/evidence.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/digest.h"
#include "catalog/sketch.h"
#include "planner/blocks.h"
#include "support/checkpoints.h"
#include "support/outcome.h"

namespace mergepipe::tests {
namespace {

// One block of a delta, and the bytes that it is made of.
struct DeltaBlock {
  std::span<const double> delta;
  uint64_t first = 0;
};

Digest128 DigestOfBlock(const Plan& plan, size_t t, size_t s, size_t block, const std::string& bytes) {
  const uint64_t element = DTypeBytes(EntryOf(*plan.merge, plan.merge->tensors[t].sources[s]).dtype);
  const uint64_t leaf = plan.tensors[t].leaf_elements() * element;
  const uint64_t begin = block * BlockElements(plan, t) * element;
  const uint64_t end = begin + ElementsOfBlock(plan, t, block) * element;
  std::vector<Digest128> leaves;
  for (uint64_t at = begin; at < end; at += leaf)
    leaves.push_back(DigestOf(std::as_bytes(std::span(bytes).subspan(at, std::min(leaf, end - at)))));
  return DigestOf(std::span<const Digest128>(leaves));
}

void AddOctaves(const DeltaBlock& block, uint32_t top, uint32_t* octaves) {
  for (const double d : block.delta) {
    if (d == 0) continue;
    const uint32_t below = (top >> 23) - (KeyOf(d) >> 23);
    ++octaves[std::min<uint32_t>(below, kOctaves - 1)];
  }
}

void AddSketch(const DeltaBlock& block, size_t number, BlockColumns& columns) {
  static const kernels::Kernels* scalar = Must(kernels::ChooseKernels("scalar"));
  std::vector<double> sums(kSketchBuckets, 0);
  scalar->f64.add_sketch(block.delta.data(), block.delta.size(), block.first / kSketchBuckets, sums.data());
  const QuantisedSketch sketch = Quantise(sums);
  columns.sketch_scale[number] = sketch.scale;
  std::copy_n(sketch.values, kSketchBuckets,
              columns.sketch.begin() + static_cast<std::ptrdiff_t>(number * kSketchBuckets));
}

BlockColumns ColumnsOf(const Plan& plan, size_t t, size_t s, const std::vector<double>& delta) {
  const size_t blocks = BlockCount(plan, t);
  BlockColumns columns;
  columns.block_elements = BlockElements(plan, t);
  columns.elements = plan.tensors[t].elements;
  for (auto* column : {&columns.max_key, &columns.nonzeros})
    column->resize(blocks);
  columns.energy.resize(blocks);
  columns.octaves.resize(blocks * kOctaves);
  columns.sketch_scale.resize(blocks);
  columns.sketch.resize(blocks * kSketchBuckets);
  const std::string bytes = BytesOf(plan, t, s);
  for (size_t b = 0; b < blocks; ++b) {
    const uint64_t first = b * columns.block_elements;
    const uint64_t count = std::min(columns.block_elements, columns.elements - first);
    const DeltaBlock block{std::span(delta).subspan(first, count), first};
    for (const double d : block.delta) {
      columns.energy[b] += d * d;
      columns.nonzeros[b] += d != 0;
      columns.max_key[b] = std::max({columns.max_key[b], KeyOf(d), d != 0 ? 1u : 0u});
    }
    AddOctaves(block, columns.max_key[b], &columns.octaves[b * kOctaves]);
    AddSketch(block, b, columns);
    columns.digest.push_back(DigestOfBlock(plan, t, s, b, bytes));
  }
  return columns;
}

std::vector<std::pair<uint32_t, uint64_t>> HistogramOf(const std::vector<double>& delta) {
  std::map<uint32_t, uint64_t> counts;
  for (const double d : delta)
    ++counts[KeyOf(d) >> kernels::kLowBits];
  return {counts.begin(), counts.end()};
}

ExactThreshold ThresholdOf(const std::vector<double>& delta, uint64_t kept) {
  std::vector<uint32_t> keys;
  for (const double d : delta)
    keys.push_back(KeyOf(d));
  std::vector<uint32_t> sorted = keys;
  std::sort(sorted.rbegin(), sorted.rend());
  ExactThreshold exact{.kept = kept, .threshold = {}};
  Threshold& threshold = exact.threshold;
  threshold.key = kept == 0 ? UINT32_MAX : sorted[kept - 1];
  uint64_t above = 0;
  for (const uint32_t key : keys) {
    above += key > threshold.key;
    threshold.equal_total += key == threshold.key;
  }
  threshold.equal_kept = kept - above;
  uint64_t seen = 0;
  for (size_t k = 0; k < keys.size(); ++k) {
    const bool keeps = keys[k] > threshold.key || (keys[k] == threshold.key && seen < threshold.equal_kept);
    seen += keys[k] == threshold.key;
    if (keys[k] == threshold.key && seen == threshold.equal_kept && !threshold.cut_index)
      threshold.cut_index = k + 1;
    exact.l1_whole += std::fabs(delta[k]);
    if (keeps) exact.l1_kept += std::fabs(delta[k]);
  }
  return exact;
}

void AddThresholds(const ResolvedTensor& tensor, size_t s, const std::vector<double>& delta,
                   TensorKnowledge& knowledge) {
  for (size_t i = 0; i < tensor.request.keep.size(); ++i) {
    const KeepRule& rule = tensor.request.keep[i];
    if (tensor.inputs[i] == s && rule.kind == KeepRule::Kind::kLargest && rule.count < tensor.elements)
      knowledge.thresholds.push_back(ThresholdOf(delta, rule.count));
  }
}

TensorEvidence ReckonTensor(const Plan& plan, size_t t, bool thresholds) {
  const ResolvedTensor& tensor = plan.merge->tensors[t];
  TensorEvidence evidence{.sources = {}, .base = std::nullopt, .sampled_gram = {}};
  evidence.sources.resize(tensor.sources.size());
  if (!tensor.merged || tensor.elements == 0) return evidence;
  const std::vector<double> base = ValuesOf(plan, t, 0);
  evidence.base.emplace();
  for (size_t b = 0; b < BlockCount(plan, t); ++b) {
    const uint64_t first = b * BlockElements(plan, t);
    double energy = 0;
    for (uint64_t k = first; k < std::min<uint64_t>(first + BlockElements(plan, t), base.size()); ++k)
      energy += base[k] * base[k];
    evidence.base->energy.push_back(energy);
    evidence.base->digest.push_back(DigestOfBlock(plan, t, 0, b, BytesOf(plan, t, 0)));
  }
  for (size_t s = 1; s < tensor.sources.size(); ++s) {
    const std::vector<double> delta = DeltaOf(plan, t, s);
    TensorKnowledge knowledge;
    knowledge.blocks = ColumnsOf(plan, t, s, delta);
    for (const double d : delta)
      knowledge.l1 += std::fabs(d);
    knowledge.histogram = HistogramOf(delta);
    if (thresholds) AddThresholds(tensor, s, delta, knowledge);
    evidence.sources[s] = SourceEvidence{std::move(knowledge), true};
  }
  return evidence;
}

}  // namespace

uint32_t KeyOf(double value) {
  return std::bit_cast<uint32_t>(std::fabs(static_cast<float>(value)));
}

uint64_t ElementsOfBlock(const Plan& plan, size_t tensor, size_t block) {
  const uint64_t elements = BlockElements(plan, tensor);
  return std::min(elements, plan.tensors[tensor].elements - block * elements);
}

std::string BytesOf(const Plan& plan, size_t tensor, size_t source) {
  const TensorSource& place = plan.merge->tensors[tensor].sources[source];
  return ReadCheckpoint(plan.merge->models[place.model].path).at(EntryOf(*plan.merge, place).name).bytes;
}

std::vector<double> ValuesOf(const Plan& plan, size_t tensor, size_t source) {
  const TensorEntry& entry = EntryOf(*plan.merge, plan.merge->tensors[tensor].sources[source]);
  return ValuesOf(StoredTensor{entry.name, entry.dtype, entry.shape, BytesOf(plan, tensor, source)});
}

std::vector<double> DeltaOf(const Plan& plan, size_t tensor, size_t source) {
  const auto dtype = [&](size_t s) {
    return EntryOf(*plan.merge, plan.merge->tensors[tensor].sources[s]).dtype;
  };
  const bool wide = dtype(0) == DType::kF64 || dtype(source) == DType::kF64;
  std::vector<double> delta = ValuesOf(plan, tensor, source);
  const std::vector<double> base = ValuesOf(plan, tensor, 0);
  for (size_t k = 0; k < delta.size(); ++k) {
    delta[k] -= base[k];
    if (!wide) delta[k] = static_cast<float>(delta[k]);
  }
  return delta;
}

Plan DraftWith(const Plan& plan, Evidence& evidence) {
  return Must(DraftPlan(plan.merge, plan.options, Must(FindConstants(*plan.merge, evidence))));
}

FakeEvidence ReckonEvidence(const Plan& plan, bool thresholds) {
  FakeEvidence evidence;
  for (size_t t = 0; t < plan.merge->tensors.size(); ++t)
    evidence.tensors.push_back(ReckonTensor(plan, t, thresholds));
  return evidence;
}

}  // namespace mergepipe::tests
