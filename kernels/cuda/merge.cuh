// Merges the partial results of attention into rows, in the order of the plan.
#pragma once

#include "base/mutant.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/collectives.cuh"

namespace pagezip::cuda {

// ---- kernels ----

inline constexpr int kMergeThreads = 128;
inline constexpr int kHeadDimMax = 256;

/// A warp takes one (row, query head).
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(MergeParams p) {
  constexpr int kChannels = kHeadDimMax / kWarpLanes;
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.next_item != nullptr) {
    *p.next_item = 0;
  }
  const int64_t item = int64_t{blockIdx.x} * (kMergeThreads / kWarpLanes) + warp_id();
  if (item >= p.row_count * p.heads) {
    return;
  }
  const int group = p.heads / p.kv_heads;
  const int head = static_cast<int>(item % p.heads);
  const int64_t list = item / p.heads * p.kv_heads + head / group;
  SoftmaxState<float> total;
  float out[kChannels] = {};
  for (int64_t e = p.first[list]; e < p.first[list + 1]; ++e) {
    const int64_t partial = p.entries[e] + head % group;
    const SoftmaxState<float> state = p.partial_states[partial];
    if (state.empty()) {
      continue;
    }
    const bool first = total.empty();
    MergeFactors<float> factors = merge(total, state);
    if (MUTANT(kMergeWithoutRescale)) {
      factors.into = 1;
    }
    for (int c = 0; p.out != nullptr && c < kChannels; ++c) {
      const int channel = c * kWarpLanes + lane_id();
      if (channel < p.head_dim) {
        const float value = p.partial_out[partial * p.head_dim + channel];
        out[c] = first ? value : fmaf(out[c], factors.into, value * factors.from);
      }
    }
  }
  const int64_t row = p.rows[item / p.heads].row;
  for (int c = 0; p.out != nullptr && c < kChannels; ++c) {
    const int channel = c * kWarpLanes + lane_id();
    if (channel < p.head_dim) {
      p.out[row * p.out_stride + int64_t{head} * p.head_dim + channel] =
          total.empty() ? 0 : out[c] / total.sum;
    }
  }
  if (p.lse != nullptr && lane_id() == 0) {
    p.lse[row * p.lse_stride + head] = total.log_sum_exp();
  }
}

// ---- launchers ----

inline Status merge_partials(const MergeParams& params, Stream stream) {
  const int64_t warps = params.row_count * params.heads;
  if (warps == 0) {
    return {};
  }
  const auto blocks = static_cast<unsigned>(ceil_div(warps, kMergeThreads / kWarpLanes));
  return launch(merge_kernel, {blocks, 1}, kMergeThreads, 0, stream, params);
}

}  // namespace pagezip::cuda
