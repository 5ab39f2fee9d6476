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
    TensorFacts facts{.elements = merge.base.size(), .shape = merge.shape, .domain = merge.domain()};
    if (facts.shape.empty()) facts.shape = {facts.elements};
    if (facts.domain == Domain::kValues) facts.base_input = 0;
    for (size_t i = 0; i < merge.inputs.size(); ++i)
      facts.random_streams.push_back(merge.seed * 1000 + i);
    return facts;
  }

  std::vector<float> Merge() {
    Rank();
    TensorStatistics statistics;
    statistics.thresholds.resize(m_.inputs.size());
    if (StatisticsCollector::Rounds(request_, count_) > 0) statistics = Gather();
    const Constants constants = m_.method->prepare(facts_, m_.params, statistics);
    std::vector<uint64_t> equals_left;
    for (const Threshold& cut : statistics.Cuts())
      equals_left.push_back(cut.equal_kept);
    std::vector<float> out(count_);
    for (size_t at = 0; at < count_; at += cuts_.apply_tile)
      Apply(at, std::min(cuts_.apply_tile, count_ - at), constants, statistics, equals_left, out);
    return out;
  }

 private:
  void Rank() {
    ranked_.Begin(RankGroups::Of(facts_), 0, count_, m_.inputs.size());
    for (size_t i = 0; i < request_.keep.size(); ++i) {
      if (request_.keep[i].kind != KeepRule::Kind::kRanked) continue;
      const std::vector<float> values = Load(i, 0, count_);
      ranked_.Take(request_.keep[i], i, values.data(), count_);
    }
  }

  TensorStatistics Gather() {
    StatisticsCollector collector(request_, m_.inputs.size(), count_);
    StatisticsCollector::Scratch scratch;
    const size_t tiles = (count_ + kStatisticsTile - 1) / kStatisticsTile;
    for (size_t round = 0; round < collector.rounds(); ++round) {
      for (size_t i = 0; i < cuts_.items; ++i) {
        const size_t item = collector.InOrder() ? i : cuts_.items - 1 - i;
        GatherItem(collector, scratch, item * tiles / cuts_.items, (item + 1) * tiles / cuts_.items);
      }
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
        collector.AddInput(scratch, i, values.data(), n, at, loops_, &ranked_);
      });
      collector.MergeInput(scratch, i);
    }
    if (collector.WantsTiles()) {
      each_tile([&](size_t at, size_t n) {
        Values values(*this, at, n);
        collector.AddTile(scratch, values.pointers, n, loops_);
      });
      collector.MergeTiles(scratch);
    }
    if (collector.Joint() == nullptr) return;
    each_tile([&](size_t at, size_t n) {
      Values values(*this, at, n);
      std::vector<float> spare(n);
      collector.Joint()->Add(
          scratch.joint,
          StatisticsTile<float>{
              .n = n, .first = at, .inputs = values.pointers, .scratch = spare.data(), .loops = &loops_});
    });
    collector.MergeJoint(scratch);
  }

  // All inputs of a run.
  struct Values {
    Values(const Run& run, size_t at, size_t n) {
      for (size_t i = 0; i < run.m_.inputs.size(); ++i)
        values.push_back(run.Load(i, at, n));
      for (std::vector<float>& v : values)
        pointers.push_back(v.data());
    }
    std::vector<std::vector<float>> values;
    std::vector<float*> pointers;
  };

  // A value, or a delta.
  std::vector<float> Load(size_t input, size_t at, size_t n) const {
    const float* from = m_.inputs[input].data() + at;
    std::vector<float> values(from, from + n);
    if (facts_.domain == Domain::kDeltas) loops_.subtract(from, m_.base.data() + at, values.data(), n);
    return values;
  }

  void Keep(size_t i, float* values, size_t n, size_t at, const TensorStatistics& statistics,
            std::vector<uint64_t>& equals_left) const {
    const KeepRule& rule = request_.keep[i];
    KeepElements(rule, statistics.thresholds[i], &equals_left[i], values, n, at, loops_);
    if (rule.kind == KeepRule::Kind::kRanked) ranked_.Apply(i, values, n, at);
    if (rule.outliers > 0)
      DropOutliers(statistics.outliers[i], &equals_left[m_.inputs.size() + i], values, n, at, loops_);
  }

  void Apply(size_t at, size_t n, const Constants& constants, const TensorStatistics& statistics,
             std::vector<uint64_t>& equals_left, std::vector<float>& out) const {
    Values values(*this, at, n);
    for (size_t i = 0; i < request_.keep.size(); ++i) {
      Keep(i, values.pointers[i], n, at, statistics, equals_left);
      if (!constants.rescale.empty() && constants.rescale[i] != 1)
        loops_.scale(values.pointers[i], static_cast<float>(constants.rescale[i]), n);
    }
    if (statistics.joint.threshold) {
      std::vector<float> score(n);
      m_.method->score32(values.pointers, score.data(), n);
      SelectByScore<float>(*statistics.joint.threshold, &equals_left.back(), score.data(), values.pointers, n,
                           at, loops_);
    }
    std::vector<float> scratch[2] = {std::vector<float>(n), std::vector<float>(n)};
    Tile<float> tile{.n = n,
                     .first = at,
                     .base = m_.base.data() + at,
                     .inputs = values.pointers,
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
  RankedKeep ranked_;
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
    if (rule.kind == KeepRule::Kind::kLargest && rule.outliers == 0 && rule.count >= merge.base.size())
      rule = KeepRule{};
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
