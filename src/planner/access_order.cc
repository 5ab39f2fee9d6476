#include "planner/access_order.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "planner/blocks.h"

namespace mergepipe {
namespace {

constexpr double kUnit = 0x1p-64;
// Multiples of the golden ratio's fraction are spread evenly over [0, 1), however many are taken.
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

}  // namespace

void SortSteps(std::vector<AccessStep>& steps) {
  std::sort(steps.begin(), steps.end(), [](const AccessStep& a, const AccessStep& b) {
    if (a.rank != b.rank) return a.rank > b.rank;
    return std::tie(a.tensor, a.block, a.sequence) < std::tie(b.tensor, b.block, b.sequence);
  });
}

void AccessOrder::Add(size_t tensor, size_t block, const TensorErrors& errors, const BlockError& error) {
  size_t count = 0;
  for (const ReadUnit& unit : error.units)
    count += unit.sources.size();
  sources_.emplace_back().reserve(count);
  if (policy_ != Policy::kGram) {
    for (const ReadUnit& unit : error.units)
      AddUnit(tensor, block, errors, unit);
    return;
  }
  uint32_t sequence = 0;
  for (const ReadStep& read : OrderBlock(error)) {
    AccessStep step{.tensor = static_cast<uint32_t>(tensor),
                    .block = static_cast<uint32_t>(block),
                    .sequence = sequence++,
                    .gain = read.gain,
                    .bytes = read.bytes * plan_.tensors[tensor].passes(),
                    .sources = {}};
    step.rank = step.gain / static_cast<double>(std::max<uint64_t>(1, step.bytes));
    for (const size_t u : read.units)
      AddSources(error.units[u], step);
    steps_.push_back(step);
  }
}

void AccessOrder::AddUnit(size_t tensor, size_t block, const TensorErrors& errors, const ReadUnit& unit) {
  AccessStep step{.tensor = static_cast<uint32_t>(tensor),
                  .block = static_cast<uint32_t>(block),
                  .sequence = static_cast<uint32_t>(unit.sources[0]),
                  .bytes = unit.bytes * plan_.tensors[tensor].passes(),
                  .sources = {}};
  for (const size_t s : unit.sources)
    step.gain += errors.Energy(s, block);
  AddSources(unit, step);
  step.rank = Rank(tensor, block, unit, step.gain / static_cast<double>(std::max<uint64_t>(1, step.bytes)));
  steps_.push_back(step);
}

void AccessOrder::AddSources(const ReadUnit& unit, AccessStep& step) {
  std::vector<uint16_t>& row = sources_.back();
  for (const size_t s : unit.sources)
    row.push_back(static_cast<uint16_t>(s));
  const size_t count = step.sources.size() + unit.sources.size();
  step.sources = std::span(row).last(count);
}

void AccessOrder::Append(std::vector<AccessOrder> others) {
  size_t steps = steps_.size(), rows = sources_.size();
  for (const AccessOrder& other : others) {
    steps += other.steps_.size();
    rows += other.sources_.size();
  }
  steps_.reserve(steps);  // growing by and by would need twice the memory
  sources_.reserve(rows);
  for (AccessOrder& other : others) {
    const std::vector<AccessStep> its_steps = std::exchange(other.steps_, {});
    auto its_rows = std::exchange(other.sources_, {});
    steps_.insert(steps_.end(), its_steps.begin(), its_steps.end());
    sources_.insert(sources_.end(), std::make_move_iterator(its_rows.begin()),
                    std::make_move_iterator(its_rows.end()));
  }
}

double AccessOrder::Rank(size_t tensor, size_t block, const ReadUnit& unit, double rate) const {
  const ResolvedTensor& resolved = plan_.merge->tensors[tensor];
  switch (policy_) {
    case Policy::kUniform: {
      const uint64_t start = Hash64(resolved.name, 0);
      return -static_cast<double>(start + (block + 1) * kGolden) * kUnit;
    }
    case Policy::kRandom: {
      const std::string pair = Format("{}/{}", resolved.sources[unit.sources[0]].model, block);
      return -static_cast<double>(Hash64(pair, Hash64(resolved.name, plan_.merge->seed))) * kUnit;
    }
    default:
      return rate;
  }
}

// Every expert goes through its own order at the same pace of bytes.
void AccessOrder::ShareFairly() {
  SortSteps(steps_);
  std::vector<uint64_t> bytes(plan_.merge->models.size(), 0);
  for (AccessStep& step : steps_) {
    const size_t model = plan_.merge->tensors[step.tensor].sources[step.sources[0]].model;
    step.rank = -static_cast<double>(bytes[model]);
    bytes[model] += step.bytes;
  }
}

std::vector<AccessStep> AccessOrder::Finish() {
  for (AccessStep& step : steps_) {  // weights beyond all measure must not upset the order
    if (!std::isfinite(step.rank) || !std::isfinite(step.gain)) step.rank = step.gain = 0;
  }
  if (policy_ == Policy::kFair) ShareFairly();
  SortSteps(steps_);
  return std::move(steps_);
}

}  // namespace mergepipe
