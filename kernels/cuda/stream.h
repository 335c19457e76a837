// A queue of work on the device, and how an operation on it went: CUDA's own types, or those of
// the simulator.
#pragma once

#if defined(PAGEZIP_CUDA_SIM)

namespace pagezip::cuda {
using Stream = cuda_sim::Stream*;
using Status = int;  // 0: it went well
}  // namespace pagezip::cuda

#else

#include <cuda_runtime_api.h>

namespace pagezip::cuda {
using Stream = cudaStream_t;
using Status = cudaError_t;
}  // namespace pagezip::cuda

#endif
