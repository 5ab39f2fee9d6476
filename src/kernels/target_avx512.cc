#if defined(__x86_64__)
#include "kernels/loops.h"

namespace mergepipe::kernels {

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {"avx512", MakeLoops<float>(), MakeLoops<double>(), MultiplySketches};

}  // namespace mergepipe::kernels
#endif
