#include "kernels/kernels.h"

#include "base/text.h"

namespace mergepipe::kernels {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kSse4Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

namespace {

struct Target {
  const Kernels* kernels;
  bool runs;
};

// Slowest first.
std::vector<Target> Targets() {
  std::vector<Target> targets = {{&kScalarKernels, true}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  targets.push_back({&kSse4Kernels, __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")});
  targets.push_back({&kAvx2Kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                                        __builtin_cpu_supports("fma")});
  targets.push_back(
      {&kAvx512Kernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512cd")});
#endif
  return targets;
}

}  // namespace

std::vector<std::string> RunnableTargets() {
  std::vector<std::string> names;
  for (const Target& target : Targets()) {
    if (target.runs) names.emplace_back(target.kernels->target);
  }
  return names;
}

Result<const Kernels*> ChooseKernels(const std::string& forced) {
  const Kernels* chosen = nullptr;
  for (const Target& target : Targets()) {
    const bool wanted = forced.empty() || forced == target.kernels->target;
    if (wanted && target.runs) chosen = target.kernels;
  }
  if (chosen != nullptr) return chosen;
  return Fail(Code::kUsage,
              Format("MERGEPIPE_TARGET names '{}', which is not among the targets that run here ({})", forced,
                     Join(RunnableTargets(), ", ")));
}

}  // namespace mergepipe::kernels
