// KVzip's importance of pairs (Kim et al. 2025, §3) in the log domain: for each pair of a chunk the
// largest log-probability that any packed row gives it. The rows' log-sum-exp comes from attend.cuh
// without values. Nothing of size rows x pairs is written anywhere.
//
// A block owns 64 pairs of one KV head and walks all rows, 64 packed ones at a time, so the maximum
// of a pair has one owner and needs no atomics.
#pragma once

#include "kernels/cuda/tile.cuh"

namespace pagezip::cuda {

struct ScoreParams {
  PageLayout page;
  int heads;
  int kv_heads;
  float scale;
  const float* q;  // [rows, heads * head_dim]
  int64_t q_stride;
  int64_t rows;
  const float* lse;  // [rows, heads]; null: the softmax-free variant
  int64_t lse_stride;
  Segment source;
  int layer;
  int64_t chunk_begin;
  int64_t chunk_end;
  float* best;  // [kv_heads, chunk_end - chunk_begin], in and out
  int64_t best_stride;
};

// ---- kernels ----

template <typename T>
struct ScoreShared {
  alignas(16) std::byte keys[T::kKeyBytes];
  alignas(16) uint32_t key_parameters[is_quantised(T::kKeyType) ? kTilePairs : 4];
  alignas(16) std::byte queries[kPackedRowsMany * T::kQueryChunks * 16];
  float query_sums[kPackedRowsMany];
  float lse[kPackedRowsMany];  // +inf where there is no row
  float best[kAttendWarps][kTilePairs];
  PageTable table;
};

/// Packed rows [first, first + 64): row i is query head i % group of the batch's row i / group.
template <typename T>
__device__ void load_score_rows(const ScoreParams& p, int64_t first, ScoreShared<T>& s) {
  const int group = p.heads / p.kv_heads;
  for (int r = warp_id(); r < kPackedRowsMany; r += kAttendWarps) {
    const int64_t row = (first + r) / group;
    const int64_t head = int64_t{blockIdx.y} * group + (first + r) % group;
    const bool valid = row < p.rows;
    const float sum = store_query<T>(
        valid ? p.q + row * p.q_stride + head * p.page.head_dim : nullptr, r, s.queries);
    if (lane_id() == 0) {
      s.query_sums[r] = sum;
      s.lse[r] = !valid ? INFINITY : p.lse == nullptr ? 0 : p.lse[row * p.lse_stride + head];
    }
  }
}

/// The maximum over a warp's 16 rows of 64 columns: best[n][i] of pair 8 n + lane % 4 * 2 + i.
template <typename T>
__device__ __forceinline__ void update_best(const ScoreParams& p, const ScoreShared<T>& s,
                                            float (&best)[kTilePairs / 8][2]) {
  float logits[kTilePairs / 8][4];
  const int row = warp_id() * 16;
  logits_of<T>(s.queries, s.query_sums, s.keys, s.key_parameters, row, 0, p.scale, logits);
#pragma unroll
  for (int n = 0; n < kTilePairs / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      best[n][i % 2] = fmaxf(best[n][i % 2], logits[n][i] - s.lse[row + lane_id() / 4 + i / 2 * 8]);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kAttendThreads) score_kernel(ScoreParams p) {
  auto& s = dynamic_shared<ScoreShared<T>>();
  const int head = static_cast<int>(blockIdx.y);
  const int64_t tile =
      (p.chunk_begin / kTilePairs + int64_t{blockIdx.x}) * kTilePairs;  // its first pair
  const TileSource source{&s.table, p.page, log2_tokens(p.page.page_tokens), p.chunk_begin,
                          p.chunk_end};
  s.table.load_run(p.page, p.source, p.layer, head, tile / kRunPairs, p.chunk_begin, p.chunk_end);
  __syncthreads();
  load_keys<T>(source, tile, s.keys, s.key_parameters);
  commit_copies();
  wait_copies<0>();
  float best[kTilePairs / 8][2];
  for (auto& pair : best) {
    pair[0] = pair[1] = -INFINITY;
  }
  const int64_t packed_rows = p.rows * (p.heads / p.kv_heads);
  for (int64_t first = 0; first < packed_rows; first += kPackedRowsMany) {
    __syncthreads();  // nobody reads the rows before any more
    load_score_rows<T>(p, first, s);
    __syncthreads();
    update_best<T>(p, s, best);
  }
#pragma unroll
  for (int n = 0; n < kTilePairs / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int step = 4; step < kWarpLanes; step *= 2) {
        best[n][i] = fmaxf(best[n][i], __shfl_xor_sync(kAllLanes, best[n][i], step));
      }
      if (lane_id() < 4) {
        s.best[warp_id()][8 * n + lane_id() * 2 + i] = best[n][i];
      }
    }
  }
  if (!MUTANT(kScoreBarrierLeftOut)) {
    __syncthreads();
  }
  const int64_t pair = tile + threadIdx.x;
  if (threadIdx.x < kTilePairs && pair >= p.chunk_begin && pair < p.chunk_end) {
    float& out = p.best[head * p.best_stride + pair - p.chunk_begin];
    for (int w = 0; w < kAttendWarps; ++w) {
      out = fmaxf(out, s.best[w][threadIdx.x]);
    }
  }
}

// ---- launchers ----

template <typename T>
Status launch_score(const ScoreParams& params, Stream stream) {
  const int64_t tiles = ceil_div(params.chunk_end, kTilePairs) - params.chunk_begin / kTilePairs;
  const Grid grid{static_cast<unsigned>(tiles), static_cast<unsigned>(params.kv_heads)};
  return launch(score_kernel<T>, grid, kAttendThreads, sizeof(ScoreShared<T>), stream, params);
}

}  // namespace pagezip::cuda
