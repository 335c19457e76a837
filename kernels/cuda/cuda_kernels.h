// The CUDA backend: the table of operations (kernels/kernels.h) on a GPU.
//
// Rows, weights and pages lie in the GPU's memory; what the host knows (spans, tables of pages,
// lists of pairs) is brought there by each operation, through pinned memory, while earlier
// operations still run. Operations return before the GPU is done; DeviceMemory::to_host waits.
//
// Weights are kept in bfloat16 and met by bfloat16 activations with ActivationType::kQ8, in float32
// with kF32. Sums are float32.
#pragma once

#include "kernels/kernels.h"

namespace pagezip {

/// Throws Error(kRuntime) with the reason if this process has no GPU that the kernels run on. One
/// thread drives it, but DeviceMemory may be used by any. A GPU that fails ends the process.
const Kernels& cuda_kernels();

/// For people: "NVIDIA H200, sm_90, 139.8 GiB". REQUIRES: cuda_kernels() returned.
const char* cuda_device_name();

}  // namespace pagezip
