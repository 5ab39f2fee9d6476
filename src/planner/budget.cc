#include "planner/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {

std::vector<std::string> PolicyNames() {
  return {"gram", "norm", "uniform", "fair", "random"};
}

std::string PolicyName(Policy policy) {
  return PolicyNames()[static_cast<size_t>(policy)];
}

Result<Policy> ParsePolicy(const std::string& name) {
  const auto names = PolicyNames();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Policy>(i);
  }
  return Fail(Code::kUsage,
              Format("--policy {} is none of {}{}", name, Join(names, ", "), DidYouMean(name, names)));
}

std::optional<uint64_t> Budget::Bytes(uint64_t full_bytes) const {
  if (kind == Kind::kBytes) return bytes;
  if (kind != Kind::kShare) return std::nullopt;
  const long double share = static_cast<long double>(full_bytes) * static_cast<long double>(percent) / 100.0L;
  if (share >= 0x1p64L) return std::numeric_limits<uint64_t>::max();
  // 0.7 is a little less as a double; 0.7% of 1000 is 7 all the same.
  const long double nearest = std::round(share);
  const bool is_whole = std::fabs(share - nearest) <= std::min(share * 0x1p-53L, 0x1p-10L);
  return static_cast<uint64_t>(is_whole ? nearest : std::floor(share));
}

Result<Budget> ParseBudget(const std::string& text) {
  if (!EndsWith(text, "%")) {
    auto bytes = ParseBytes(text);
    if (!bytes) return Fail(Code::kUsage, Format("budget '{}': {}", text, bytes.error().message));
    return Budget{.kind = Budget::Kind::kBytes, .bytes = *bytes};
  }
  const auto percent = ParseDouble(std::string_view(text).substr(0, text.size() - 1));
  if (!percent || *percent < 0)
    return Fail(Code::kUsage, Format("budget '{}' is no share; write 10%, or a size such as 8GiB", text));
  return Budget{.kind = Budget::Kind::kShare, .percent = *percent};
}

}  // namespace mergepipe
