#include "kernels/loops.h"

namespace mergepipe::kernels {

extern const Kernels kScalarKernels;
const Kernels kScalarKernels = {"scalar", MakeLoops<float>(), MakeLoops<double>(), MultiplySketches};

}  // namespace mergepipe::kernels
