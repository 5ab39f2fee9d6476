#include "methods/ranked_drop.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "kernels/uniform.h"

namespace mergepipe {
namespace {

constexpr unsigned kDigitBits = 11;  // three digits hold the 31 bits of a key
constexpr size_t kDigits = size_t{1} << kDigitBits;
constexpr size_t kPasses = 3;
// Up to so many equal magnitudes are told apart by looking through the row where that is needed.
constexpr size_t kFewEquals = 16;

// A radix sort, digit by digit from the lowest, where there are more keys than a digit has values. `spare` has the size of `keys`.
void SortKeys(std::vector<uint32_t>& keys, std::vector<uint32_t>& spare) {
  if (keys.size() < kDigits) return std::sort(keys.begin(), keys.end());
  std::array<std::array<uint32_t, kDigits>, kPasses> starts{};
  const auto digit = [](uint32_t key, size_t pass) { return key >> (pass * kDigitBits) & (kDigits - 1); };
  for (const uint32_t key : keys) {
    for (size_t pass = 0; pass < kPasses; ++pass)
      ++starts[pass][digit(key, pass)];
  }
  for (size_t pass = 0; pass < kPasses; ++pass) {
    uint32_t sum = 0;
    for (uint32_t& start : starts[pass])
      sum += std::exchange(start, sum);
    for (const uint32_t key : keys)
      spare[starts[pass][digit(key, pass)]++] = key;
    std::swap(keys, spare);
  }
}

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
  StatisticsRequest request;
  bool drops = false;
  for (size_t i = 0; i < params.inputs.size(); ++i) {
    request.keep.push_back(MP_TRY(Keep(facts, i, params.Get(i, "density"), params.Get(i, "epsilon"))));
    drops = drops || request.keep.back().kind == KeepRule::Kind::kRanked;
  }
  request.l1 = drops && params.Get("rescale") != 0;
  return request;
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
         4 * groups.row * sizeof(uint32_t) + 4 * groups.row * sizeof(Run);
}

void RankedKeep::Begin(const RankGroups& groups, uint64_t first, uint64_t count, size_t inputs) {
  groups_ = groups;
  first_ = first;
  count_ = count;
  taken_ = 0;
  keys_.resize(groups.elements());
  for (auto* keys : {&row_, &sorted_, &spare_})
    keys->resize(groups.row);
  bits_.resize(inputs);
  for (auto& bits : bits_)
    bits.assign(count / 64 + 1, 0);
}

template <typename T>
void RankedKeep::Take(const KeepRule& rule, size_t input, const T* delta, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    const uint64_t at = taken_ % groups_.elements();
    if (taken_ == 0) FindChances(rule);
    keys_[at] = std::bit_cast<uint32_t>(static_cast<float>(delta[k])) & 0x7fffffffu;
    if (at + 1 == groups_.elements()) DecideGroup(rule, input, taken_ - at);
    ++taken_;
  }
  if (taken_ == count_) taken_ = 0;  // the next input begins
}

void RankedKeep::FindChances(const KeepRule& rule) {
  chances_.resize(groups_.row);
  for (uint64_t rank = 0; rank < groups_.row; ++rank)
    chances_[rank] = Chance(rule, rank, groups_.row);
}

void RankedKeep::DecideGroup(const KeepRule& rule, size_t input, uint64_t group_start) {
  for (uint64_t offset = 0; offset < groups_.stride; ++offset) {
    TakeRow(offset);
    // Chances that fall with the rank are looked up by the rank itself.
    FindRuns(rule.span < 0 ? 0 : kFewEquals);
    DecideRow(rule, input, group_start + offset);
  }
}

void RankedKeep::TakeRow(uint64_t offset) {
  for (uint64_t k = 0; k < groups_.row; ++k)
    row_[k] = keys_[k * groups_.stride + offset];
  sorted_ = row_;
  SortKeys(sorted_, spare_);
}

// Notes the runs of more than `few` equal magnitudes. Zeros do not count: it changes nothing whether they
// stay.
void RankedKeep::FindRuns(size_t few) {
  const size_t slots = std::bit_ceil(2 * (sorted_.size() / (few + 1) + 1));
  if (has_runs_ || runs_.size() != slots) runs_.assign(slots, {});
  has_runs_ = false;
  for (size_t begin = 0, end = 0; begin < sorted_.size(); begin = end) {
    if (sorted_[begin] != 0 && begin + few < sorted_.size() && sorted_[begin + few] == sorted_[begin]) {
      *RunOf(sorted_[begin]) = {sorted_[begin], static_cast<uint32_t>(begin)};
      has_runs_ = true;
    }
    end = begin + 1;
    while (end < sorted_.size() && sorted_[end] == sorted_[begin])
      ++end;
  }
}

// The slot that holds a magnitude, or a free one.
RankedKeep::Run* RankedKeep::RunOf(uint32_t key) {
  constexpr uint32_t kGolden = 0x9e3779b9u;
  size_t slot = (key * kGolden >> 7) & (runs_.size() - 1);
  while (runs_[slot].key != 0 && runs_[slot].key != key)
    slot = (slot + 1) & (runs_.size() - 1);
  return &runs_[slot];
}

// The lowest rank whose chance is above `uniform`; chances grow with the rank. The row's length: there is
// none.
uint64_t RankedKeep::LeastRank(float uniform) const {
  const auto row = static_cast<float>(chances_.size());
  const float grows = chances_.back() - chances_.front();
  const float guess = grows > 0 ? (uniform - chances_.front()) / grows * row : 0.0F;
  auto rank = static_cast<uint64_t>(std::clamp(guess, 0.0F, row));
  rank = std::min<uint64_t>(rank, chances_.size());
  while (rank > 0 && uniform < chances_[rank - 1])
    --rank;
  while (rank < chances_.size() && uniform >= chances_[rank])
    ++rank;
  return rank;
}

void RankedKeep::DecideRow(const KeepRule& rule, size_t input, uint64_t first) {
  for (uint64_t k = 0; k < groups_.row; ++k) {
    if (row_[k] == 0) continue;
    const uint64_t at = first + k * groups_.stride;
    const float uniform = kernels::UniformAt(rule.stream, first_ + at);
    Run* run = has_runs_ ? RunOf(row_[k]) : nullptr;
    const bool stays =
        run != nullptr && run->key != 0 ? uniform < chances_[run->next_rank++] : StaysBySize(k, uniform);
    if (stays) bits_[input][at / 64] |= uint64_t{1} << (at % 64);
  }
}

// An element stays when its rank is at least the lowest that its random number lets stay: when its magnitude
// is above the one of that rank. Its own rank is looked for only where the two are equal.
bool RankedKeep::StaysBySize(uint64_t position, float uniform) const {
  const uint64_t least = LeastRank(uniform);
  const uint32_t key = row_[position];
  if (least == groups_.row || key < sorted_[least]) return false;
  if (key > sorted_[least]) return true;
  const auto below = std::lower_bound(sorted_.begin(), sorted_.end(), key) - sorted_.begin();
  const auto before = std::count(row_.begin(), row_.begin() + static_cast<std::ptrdiff_t>(position), key);
  return static_cast<uint64_t>(below + before) >= least;
}

template <typename T>
void RankedKeep::Apply(size_t input, T* delta, size_t n, uint64_t first) const {
  for (size_t k = 0; k < n; ++k) {
    const uint64_t at = first + k - first_;
    if ((bits_[input][at / 64] >> (at % 64) & 1) == 0) delta[k] = T{0};
  }
}

template void RankedKeep::Take(const KeepRule&, size_t, const float*, size_t);
template void RankedKeep::Take(const KeepRule&, size_t, const double*, size_t);
template void RankedKeep::Apply(size_t, float*, size_t, uint64_t) const;
template void RankedKeep::Apply(size_t, double*, size_t, uint64_t) const;

}  // namespace mergepipe
