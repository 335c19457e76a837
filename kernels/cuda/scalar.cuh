// Attention and scores in float32 without tensor cores, for any type of page and any head_dim up to
// kHeadDimMax: float32 pages, mixed types and rare shapes. The items, the runs and their merge are
// those of attend.cuh.
#pragma once

#include "kernels/cuda/attend.h"
#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/pages.cuh"
#include "kernels/cuda/score.cuh"

namespace pagezip::cuda {

// ---- kernels ----

/// q · k of one pair, one chain in order of channels.
__device__ inline float scalar_product(const PageLayout& page, const std::byte* start, int64_t slot,
                                       const float* q) {
  float sum = 0;
  for (int d = 0; d < page.head_dim; ++d) {
    sum = fmaf(q[d], load_key(page, start, slot, d), sum);
  }
  return sum;
}

/// One run of one packed row; lanes are pairs for the logits and channels for the values.
struct ScalarRun {
  static constexpr int kChannels = kHeadDimMax / kWarpLanes;
  SoftmaxState<float> state;
  float out[kChannels] = {};

  __device__ void add_pairs(const AttendParams& p, const Segment& segment, int layer, int kv_head,
                            const float* q, int64_t first, int64_t begin, int64_t end) {
    const int64_t pair = first + lane_id();
    const bool seen = pair >= begin && pair < end;
    float logit = -INFINITY;
    if (seen) {
      const std::byte* start = segment.page(layer, kv_head, pair / p.page.page_tokens);
      logit = p.scale * scalar_product(p.page, start, pair % p.page.page_tokens, q);
    }
    const float max = fmaxf(state.max, warp_max(logit));
    const float base = max == -INFINITY ? 0 : max;
    const float factor = expf(state.max - base);
    const float weight = expf(logit - base);
    state.sum = fmaf(state.sum, factor, warp_sum(weight));
    state.max = max;
    for (float& value : out) {
      value *= factor;
    }
    for (int i = 0; p.partial_out != nullptr && i < kWarpLanes; ++i) {
      const float w = __shfl_sync(kAllLanes, weight, i);
      const int64_t other = first + i;
      if (other < begin || other >= end) {
        continue;
      }
      const std::byte* start = segment.page(layer, kv_head, other / p.page.page_tokens);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const int d = c * kWarpLanes + lane_id();
        if (d < p.page.head_dim) {
          out[c] = fmaf(w, load_value(p.page, start, other % p.page.page_tokens, d), out[c]);
        }
      }
    }
  }
};

/// All runs of one packed row of an item.
__device__ inline void scalar_row(const AttendParams& p, const AttendItem& item, int packed) {
  const Segment& segment = p.segments[item.segment];
  const AttendRow row = p.rows[item.first_row + packed / p.group()];
  const int head = item.kv_head * p.group() + packed % p.group();
  const float* q = p.q + row.row * p.q_stride + int64_t{head} * p.page.head_dim;
  PairRange range =
      visible_pairs(p.page, segment, item.layer, item.kv_head, item.window, row.position);
  range.begin = range.begin > item.begin ? range.begin : item.begin;
  range.end = range.end < item.end ? range.end : item.end;
  const int64_t partial = item.first_partial + packed;
  SoftmaxState<float> total;
  for (int64_t run = item.begin / kRunPairs * kRunPairs; run < item.end; run += kRunPairs) {
    ScalarRun current;
    const int64_t end = range.end < run + kRunPairs ? range.end : run + kRunPairs;
    for (int64_t first = run; first < end; first += kWarpLanes) {
      if (first + kWarpLanes > range.begin) {
        current.add_pairs(p, segment, item.layer, item.kv_head, q, first, range.begin, end);
      }
    }
    if (current.state.empty()) {
      continue;
    }
    const bool is_first = total.empty();
    const MergeFactors<float> factors = merge(total, current.state);
#pragma unroll
    for (int c = 0; c < ScalarRun::kChannels; ++c) {
      const int d = c * kWarpLanes + lane_id();
      if (p.partial_out != nullptr && d < p.page.head_dim) {
        float& out = p.partial_out[partial * p.page.head_dim + d];
        const float value = current.out[c];
        out = is_first ? value : fmaf(out, factors.into, value * factors.from);
      }
    }
  }
  if (lane_id() == 0) {
    p.partial_states[partial] = total;
  }
}

struct ScalarShared {
  alignas(16) uint32_t item;
};

__global__ void __launch_bounds__(kAttendThreads, 2) attend_scalar_kernel(AttendParams p) {
  auto& s = dynamic_shared<ScalarShared>();
  for (;;) {
    if (threadIdx.x == 0) {
      s.item = atomicAdd(p.next_item, 1u);
    }
    __syncthreads();
    const uint32_t index = s.item;
    __syncthreads();
    if (index >= static_cast<uint32_t>(p.item_count)) {
      return;
    }
    const AttendItem item = p.items[index];
    for (int packed = warp_id(); packed < item.rows * p.group(); packed += kAttendWarps) {
      scalar_row(p, item, packed);
    }
  }
}

/// Without tensor cores, for any page: a warp takes one pair, lanes take packed rows.
__global__ void __launch_bounds__(kAttendThreads, 2) score_scalar_kernel(ScoreParams p) {
  const int64_t pair = p.chunk_begin + int64_t{blockIdx.x} * kAttendWarps + warp_id();
  if (pair >= p.chunk_end) {
    return;
  }
  const int head = static_cast<int>(blockIdx.y);
  const int group = p.heads / p.kv_heads;
  const std::byte* start = p.source.page(p.layer, head, pair / p.page.page_tokens);
  float best = -INFINITY;
  for (int64_t packed = lane_id(); packed < p.rows * group; packed += kWarpLanes) {
    const int64_t row = packed / group;
    const int64_t query_head = int64_t{head} * group + packed % group;
    const float* q = p.q + row * p.q_stride + query_head * p.page.head_dim;
    float sum = 0;
    for (int d = 0; d < p.page.head_dim; ++d) {
      sum = fmaf(q[d], load_key(p.page, start, pair % p.page.page_tokens, d), sum);
    }
    const float lse = p.lse == nullptr ? 0 : p.lse[row * p.lse_stride + query_head];
    best = fmaxf(best, p.scale * sum - lse);
  }
  best = warp_max(best);
  if (lane_id() == 0) {
    float& out = p.best[head * p.best_stride + pair - p.chunk_begin];
    out = fmaxf(out, best);
  }
}

// ---- launchers ----

inline Status launch_attend_scalar(const AttendParams& params, int blocks, Stream stream) {
  return launch(attend_scalar_kernel, {static_cast<unsigned>(blocks), 1}, kAttendThreads,
                sizeof(ScalarShared), stream, params);
}

inline Status launch_score_scalar(const ScoreParams& params, Stream stream) {
  const int64_t blocks = ceil_div(params.chunk_end - params.chunk_begin, kAttendWarps);
  const Grid grid{static_cast<unsigned>(blocks), static_cast<unsigned>(params.kv_heads)};
  return launch(score_scalar_kernel, grid, kAttendThreads, 0, stream, params);
}

}  // namespace pagezip::cuda
