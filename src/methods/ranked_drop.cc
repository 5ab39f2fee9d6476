#include "methods/ranked_drop.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/text.h"
#include "kernels/uniform.h"

namespace mergepipe {
namespace {

constexpr unsigned kDigitBits = 8;
constexpr size_t kDigits = size_t{1} << kDigitBits;

Result<KeepRule> Keep(const TensorFacts& facts, size_t input, double density, double epsilon) {
  if (density >= 1) return KeepRule{.kind = KeepRule::Kind::kAll};
  if (density <= 0) return KeepRule{.kind = KeepRule::Kind::kNone};
  if (density + epsilon >= 1 || density - epsilon <= 0) {
    return Fail(Code::kUsage,
                Format("density {} and epsilon {} give chances from {} to {}; they must lie between 0 and 1",
                       density, epsilon, density - epsilon, density + epsilon));
  }
  return KeepRule{.kind = KeepRule::Kind::kRanked,
                  .probability = static_cast<float>(density - epsilon),
                  .span = static_cast<float>(epsilon),
                  .stream = facts.random_streams[input]};
}

// The chance of the element with this rank, counted from 0 for the smallest; that of a lone element is the
// middle.
float Chance(const KeepRule& rule, uint64_t rank, uint64_t row) {
  const float share = row > 1 ? static_cast<float>(rank) / static_cast<float>(row - 1) : 0.5F;
  return share * 2 * rule.span + rule.probability;
}

}  // namespace

std::vector<ParamSpec> RankedDropParams(bool normalize) {
  std::vector<ParamSpec> params = TaskVectorParams(normalize, /*rescale=*/true);
  params.push_back(
      {.name = "epsilon",
       .per_model = true,
       .default_value = 0.15,
       .doc = "how far the chance of the smallest and of the largest element lies from density"});
  return params;
}

Result<StatisticsRequest> RequestRankedDrop(const TensorFacts& facts, const TensorParams& params) {
  return RequestDropped(
      params, [&](size_t i) { return Keep(facts, i, params.Get(i, "density"), params.Get(i, "epsilon")); });
}

RankGroups RankGroups::Of(const TensorFacts& facts) {
  if (facts.shape.size() < 2) return {.row = std::max<uint64_t>(1, facts.elements)};
  RankGroups groups{.row = std::max<uint64_t>(1, facts.shape[1])};
  for (size_t axis = 2; axis < facts.shape.size(); ++axis)
    groups.stride *= std::max<uint64_t>(1, facts.shape[axis]);
  return groups;
}

uint64_t RankedKeep::MemoryBytes(const RankGroups& groups, uint64_t item, size_t inputs) {
  return inputs * (item / 64 + 1) * sizeof(uint64_t) + groups.elements() * sizeof(uint32_t) +
         2 * groups.row * sizeof(std::pair<uint32_t, uint32_t>);
}

void RankedKeep::Begin(const RankGroups& groups, uint64_t first, uint64_t count, size_t inputs) {
  groups_ = groups;
  first_ = first;
  count_ = count;
  taken_ = 0;
  keys_.resize(groups.elements());
  row_.resize(groups.row);
  other_.resize(groups.row);
  bits_.resize(inputs);
  for (auto& bits : bits_)
    bits.assign(count / 64 + 1, 0);
}

template <typename T>
void RankedKeep::Take(const KeepRule& rule, size_t input, const T* delta, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    const uint64_t at = taken_ % groups_.elements();
    keys_[at] = std::bit_cast<uint32_t>(static_cast<float>(delta[k])) & 0x7fffffffu;
    if (at + 1 == groups_.elements()) DecideGroup(rule, input, taken_ - at);
    ++taken_;
  }
  if (taken_ == count_) taken_ = 0;  // the next input begins
}

void RankedKeep::DecideGroup(const KeepRule& rule, size_t input, uint64_t group_start) {
  for (uint64_t offset = 0; offset < groups_.stride; ++offset) {
    SortRow(offset);
    for (uint64_t rank = 0; rank < groups_.row; ++rank) {
      const uint64_t at = group_start + row_[rank].second * groups_.stride + offset;
      const float uniform = kernels::UniformAt(rule.stream, first_ + at);
      const bool stays = uniform < Chance(rule, rank, groups_.row);
      bits_[input][at / 64] |= uint64_t{stays} << (at % 64);  // no branch: nobody foresees chance
    }
  }
}

// By magnitude, equal ones by position: a stable radix sort, digit by digit from the lowest, where a row has
// more elements than a digit has values.
void RankedKeep::SortRow(uint64_t offset) {
  for (uint64_t k = 0; k < groups_.row; ++k)
    row_[k] = {keys_[k * groups_.stride + offset], static_cast<uint32_t>(k)};
  if (groups_.row <= kDigits) return std::sort(row_.begin(), row_.end());
  for (unsigned shift = 0; shift < 32; shift += kDigitBits) {
    std::array<uint32_t, kDigits> starts{};
    for (const auto& [key, position] : row_)
      ++starts[key >> shift & (kDigits - 1)];
    uint32_t sum = 0;
    for (uint32_t& start : starts)
      sum += std::exchange(start, sum);
    for (const auto& element : row_)
      other_[starts[element.first >> shift & (kDigits - 1)]++] = element;
    std::swap(row_, other_);
  }
}

template <typename T>
void RankedKeep::Apply(size_t input, T* delta, size_t n, uint64_t first) const {
  for (size_t k = 0; k < n; ++k) {
    const uint64_t at = first + k - first_;
    const bool stays = (bits_[input][at / 64] >> (at % 64) & 1) != 0;
    delta[k] = stays ? delta[k] : T{0};
  }
}

template void RankedKeep::Take(const KeepRule&, size_t, const float*, size_t);
template void RankedKeep::Take(const KeepRule&, size_t, const double*, size_t);
template void RankedKeep::Apply(size_t, float*, size_t, uint64_t) const;
template void RankedKeep::Apply(size_t, double*, size_t, uint64_t) const;

}  // namespace mergepipe
