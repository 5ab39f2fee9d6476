#if defined(__x86_64__)
#include "kernels/loops.h"

namespace mergepipe::kernels {

extern const Kernels kSse4Kernels;
const Kernels kSse4Kernels = {"sse4", MakeLoops<float>(), MakeLoops<double>(), MultiplySketches};

}  // namespace mergepipe::kernels
#endif
