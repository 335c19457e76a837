// Sums, maxima and scans over a warp or a block, in a fixed order. CUB's can't run in the
// simulator.
#pragma once

#include "kernels/cuda/device_ops.cuh"

namespace pagezip::cuda {

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % kWarpLanes; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / kWarpLanes; }

/// The same bits in every lane.
__device__ __forceinline__ float warp_sum(float value) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}
__device__ __forceinline__ float warp_min(float value) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    value = fminf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

/// The sum over the lanes before this one.
template <typename T>
__device__ __forceinline__ T warp_exclusive_sum(T value) {
  T sum = value;
  for (unsigned step = 1; step < kWarpLanes; step *= 2) {
    const T before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane_id() >= static_cast<int>(step)) {
      sum += before;
    }
  }
  return sum - value;
}

/// The sum over the threads before this one, and over all. `scratch`: one T for each warp of the
/// block, shared; free again after the call's callers meet at a barrier.
template <typename T>
struct BlockSum {
  T before;
  T all;
};
template <int kThreads, typename T>
__device__ __forceinline__ BlockSum<T> block_exclusive_sum(T value, T* scratch) {
  constexpr int kWarps = kThreads / kWarpLanes;
  const T in_warp = warp_exclusive_sum(value);
  if (lane_id() == kWarpLanes - 1) {
    scratch[warp_id()] = in_warp + value;
  }
  __syncthreads();
  BlockSum<T> sum{in_warp, 0};
  for (int w = 0; w < kWarps; ++w) {
    sum.before += w < warp_id() ? scratch[w] : 0;
    sum.all += scratch[w];
  }
  return sum;
}

}  // namespace pagezip::cuda
