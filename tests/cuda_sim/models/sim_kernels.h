// The CUDA kernels behind the table of operations, in the simulator: what they need of the device
// lies in host memory. Dense layers, which CUDA leaves to cuBLASLt, are the reference's.
#pragma once

#include "kernels/kernels.h"

namespace pagezip::test {

const Kernels& sim_kernels();

}  // namespace pagezip::test
