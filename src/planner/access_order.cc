#include "planner/access_order.h"

#include <algorithm>
#include <tuple>

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
    return std::tie(b.rank, a.tensor, a.block, a.sequence) < std::tie(a.rank, b.tensor, b.block, b.sequence);
  });
}

void AccessOrder::Add(size_t tensor, size_t block, const TensorErrors& errors, const BlockError& error) {
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
    for (const size_t u : read.units) {
      for (const size_t s : error.units[u].sources)
        step.sources.push_back(static_cast<uint16_t>(s));
    }
    steps_.push_back(std::move(step));
  }
}

void AccessOrder::AddUnit(size_t tensor, size_t block, const TensorErrors& errors, const ReadUnit& unit) {
  AccessStep step{.tensor = static_cast<uint32_t>(tensor),
                  .block = static_cast<uint32_t>(block),
                  .sequence = static_cast<uint32_t>(unit.sources[0]),
                  .bytes = unit.bytes * plan_.tensors[tensor].passes(),
                  .sources = {}};
  double energy = 0;
  for (const size_t s : unit.sources) {
    step.sources.push_back(static_cast<uint16_t>(s));
    energy += errors.Energy(s, block);
  }
  step.gain = energy;
  step.rank = Rank(tensor, block, unit, energy / static_cast<double>(std::max<uint64_t>(1, step.bytes)));
  steps_.push_back(std::move(step));
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
  if (policy_ == Policy::kFair) ShareFairly();
  SortSteps(steps_);
  return std::move(steps_);
}

}  // namespace mergepipe
