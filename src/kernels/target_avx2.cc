#if defined(__x86_64__)
#include "kernels/loops.h"

namespace mergepipe::kernels {

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {"avx2", MakeLoops<float>(), MakeLoops<double>(), MultiplySketches};

}  // namespace mergepipe::kernels
#endif
