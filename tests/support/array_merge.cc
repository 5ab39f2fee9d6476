#include "support/array_merge.h"

#include <algorithm>
#include <random>

#include "methods/statistics.h"
#include "support/outcome.h"

namespace mergepipe::tests {
namespace {

// Sums are taken over tiles of this size wherever items begin and end.
constexpr size_t kStatisticsTile = 1024;

class Run {
 public:
  Run(const ArrayMerge& merge, const kernels::Kernels& kernels, const Cuts& cuts)
      : m_(merge), cuts_(cuts), loops_(kernels.f32), count_(merge.base.size()) {
    request_ = RequestOf(merge);
    facts_ = FactsOf(merge);
  }

  static TensorFacts FactsOf(const ArrayMerge& merge) {
    TensorFacts facts{.elements = merge.base.size()};
    if (merge.method->domain == Domain::kValues) facts.base_input = 0;
    for (size_t i = 0; i < merge.inputs.size(); ++i)
      facts.random_streams.push_back(merge.seed * 1000 + i);
    return facts;
  }

  std::vector<float> Merge() {
    TensorStatistics statistics;
    statistics.thresholds.resize(m_.inputs.size());
    if (StatisticsCollector::Rounds(request_, count_) > 0) statistics = Gather();
    const Constants constants = m_.method->prepare(facts_, m_.params, statistics);
    std::vector<uint64_t> equals_left;
    for (const Threshold& threshold : statistics.thresholds)
      equals_left.push_back(threshold.equal_kept);
    std::vector<float> out(count_);
    for (size_t at = 0; at < count_; at += cuts_.apply_tile)
      Apply(at, std::min(cuts_.apply_tile, count_ - at), constants, statistics, equals_left, out);
    return out;
  }

 private:
  TensorStatistics Gather() {
    StatisticsCollector collector(request_, m_.inputs.size(), count_);
    StatisticsCollector::Scratch scratch;
    const size_t tiles = (count_ + kStatisticsTile - 1) / kStatisticsTile;
    for (size_t round = 0; round < collector.rounds(); ++round) {
      for (size_t item = cuts_.items; item-- > 0;)
        GatherItem(collector, scratch, item * tiles / cuts_.items, (item + 1) * tiles / cuts_.items);
      collector.FinishRound();
    }
    return collector.Statistics();
  }

  void GatherItem(StatisticsCollector& collector, StatisticsCollector::Scratch& scratch, size_t first,
                  size_t end) {
    if (first == end) return;
    const auto each_tile = [&](auto body) {
      for (size_t tile = first; tile < end; ++tile)
        body(tile * kStatisticsTile, std::min(kStatisticsTile, count_ - tile * kStatisticsTile));
    };
    for (size_t i = 0; i < m_.inputs.size(); ++i) {
      if (!collector.WantsInput(i)) continue;
      each_tile([&](size_t at, size_t n) {
        std::vector<float> values = Load(i, at, n);
        collector.AddInput(scratch, i, values.data(), n, at, loops_);
      });
      collector.MergeInput(scratch, i);
    }
    if (!collector.WantsTiles()) return;
    each_tile([&](size_t at, size_t n) {
      std::vector<std::vector<float>> values;
      std::vector<float*> pointers;
      for (size_t i = 0; i < m_.inputs.size(); ++i)
        values.push_back(Load(i, at, n));
      for (std::vector<float>& v : values)
        pointers.push_back(v.data());
      collector.AddTile(scratch, pointers, n, loops_);
    });
    collector.MergeTiles(scratch);
  }

  // A value, or a delta.
  std::vector<float> Load(size_t input, size_t at, size_t n) const {
    const float* from = m_.inputs[input].data() + at;
    std::vector<float> values(from, from + n);
    if (m_.method->domain == Domain::kDeltas) loops_.subtract(from, m_.base.data() + at, values.data(), n);
    return values;
  }

  void Apply(size_t at, size_t n, const Constants& constants, const TensorStatistics& statistics,
             std::vector<uint64_t>& equals_left, std::vector<float>& out) const {
    std::vector<std::vector<float>> values;
    std::vector<float*> pointers;
    for (size_t i = 0; i < m_.inputs.size(); ++i) {
      values.push_back(Load(i, at, n));
      if (request_.keep.empty()) continue;
      KeepElements(request_.keep[i], statistics.thresholds[i], &equals_left[i], values[i].data(), n, at,
                   loops_);
      if (!constants.rescale.empty() && constants.rescale[i] != 1)
        loops_.scale(values[i].data(), static_cast<float>(constants.rescale[i]), n);
    }
    for (std::vector<float>& v : values)
      pointers.push_back(v.data());
    std::vector<float> scratch[2] = {std::vector<float>(n), std::vector<float>(n)};
    Tile<float> tile{.n = n,
                     .base = m_.base.data() + at,
                     .inputs = pointers,
                     .out = out.data() + at,
                     .scratch = {scratch[0].data(), scratch[1].data()},
                     .loops = &loops_};
    m_.method->apply32(constants, tile);
  }

  const ArrayMerge& m_;
  const Cuts& cuts_;
  const kernels::Loops<float>& loops_;
  size_t count_;
  StatisticsRequest request_;
  TensorFacts facts_;
};

}  // namespace

std::vector<float> MergeArrays(const ArrayMerge& merge, const kernels::Kernels& kernels, const Cuts& cuts) {
  return Run(merge, kernels, cuts).Merge();
}

std::vector<float> MergeArrays(const ArrayMerge& merge) {
  return MergeArrays(merge, *Must(kernels::ChooseKernels("")));
}

StatisticsRequest RequestOf(const ArrayMerge& merge) {
  if (merge.method->request == nullptr) return {};
  StatisticsRequest request = Must(merge.method->request(Run::FactsOf(merge), merge.params));
  // As the collector sees them: what keeps everything trims nothing.
  for (KeepRule& rule : request.keep) {
    if (rule.kind == KeepRule::Kind::kLargest && rule.count >= merge.base.size()) rule = KeepRule{};
  }
  return request;
}

ArrayMerge WithDefaults(const std::string& method, std::vector<float> base,
                        std::vector<std::vector<float>> inputs) {
  ArrayMerge merge{.method = FindMethod(method), .base = std::move(base), .inputs = std::move(inputs)};
  if (merge.method == nullptr) throw std::runtime_error("no method " + method);
  merge.params.inputs.resize(merge.inputs.size());
  for (const ParamSpec& spec : merge.method->params) {
    if (spec.default_value || spec.required) Set(merge, spec.name, spec.default_value.value_or(0.4));
  }
  return merge;
}

void Set(ArrayMerge& merge, const std::string& name, double value) {
  for (const ParamSpec& spec : merge.method->params) {
    if (spec.name != name) continue;
    if (!spec.per_model) merge.params.global[name] = value;
    for (size_t i = 0; spec.per_model && i < merge.params.inputs.size(); ++i)
      merge.params.inputs[i][name] = value;
  }
}

std::vector<float> RandomFloats(size_t count, uint32_t seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random);
  return values;
}

std::vector<float> Moved(std::vector<float> from, uint32_t seed, double scale) {
  const std::vector<float> deltas = RandomFloats(from.size(), seed, scale);
  for (size_t i = 0; i < from.size(); ++i)
    from[i] += deltas[i];
  return from;
}

}  // namespace mergepipe::tests
