#include "api/session.h"
#include "base/text.h"

namespace mergepipe {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

}  // namespace

const char* Version() {
  return MERGEPIPE_VERSION;
}

std::string BuildText() {
  const auto used = KernelsFromEnvironment();
  return Format("kernels: {} of {}\nbuild: {}, {}", used ? (*used)->target : "none",
                Join(kernels::RunnableTargets(), ", "), kCompiler, MERGEPIPE_BUILD_TYPE);
}

}  // namespace mergepipe
