#include <algorithm>
#include <array>

#include "base/text.h"
#include "mergepipe/mergepipe.h"

namespace mergepipe {
namespace {

constexpr std::array<const char*, 4> kNames = {"error", "base", "intersection", "union"};

}  // namespace

std::string MissingName(MissingTensors missing) {
  return kNames[static_cast<size_t>(missing)];
}

Result<MissingTensors> ParseMissing(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<MissingTensors>(found - kNames.begin());
  const std::vector<std::string> known(kNames.begin(), kNames.end());
  return Fail(Code::kUsage, Format("'{}' is none of {}{}", name, Join(known, ", "), DidYouMean(name, known)));
}

}  // namespace mergepipe
