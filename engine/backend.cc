#include "engine/backend.h"

#include "base/error.h"
#if defined(PAGEZIP_HAS_CUDA)
#include "kernels/cuda/cuda_kernels.h"
#endif

namespace pagezip {

const Kernels& kernels_of(Backend backend) {
  switch (backend) {
    case Backend::kCpu:
      break;
    case Backend::kReference:
      return reference_kernels();
    case Backend::kCuda:
#if defined(PAGEZIP_HAS_CUDA)
      return cuda_kernels();
#else
      throw Error(ErrorKind::kUsage,
                  "--backend cuda: this build has no CUDA kernels (cmake -DPAGEZIP_CUDA=ON)");
#endif
  }
  return cpu_kernels();
}

}  // namespace pagezip
