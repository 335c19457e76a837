// Dense layers: cuBLASLt on the device (dense.cc), a loop in the simulator (tests/cuda_sim).
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace pagezip::cuda {

/// out[r][o] = sum over k of x[r][k] * weight[o][k], + bias[o]; float32 sums.
struct DenseParams {
  bool bf16;      // of x and weight; else float32
  const void* x;  // [rows, cols], x_stride elements apart
  int64_t x_stride;
  const void* weight;  // [outputs, cols]
  const float* bias;   // [outputs], or null
  float* out;          // [rows, outputs], out_stride apart
  int64_t out_stride;
  int64_t rows;
  int64_t cols;
  int64_t outputs;
};

/// One algorithm for each (outputs, cols) and power of two of rows, chosen once and without
/// split-K: within such a bucket the result of a row doesn't depend on the other rows.
void dense(const DenseParams& params, Stream stream);

}  // namespace pagezip::cuda
