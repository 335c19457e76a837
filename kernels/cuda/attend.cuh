// Attention over paged, ragged and quantised KV on tensor cores: decode, prefill and the row
// log-sum-exp of KVzip scores are one kernel. What it computes and in which order: attend.h.
//
// A block takes one item at a time from a list. Tiles of 64 pairs arrive in stages by cp.async,
// keys and values as groups of their own, so that q · k begins before the values are there. Four
// warps share a tile: with few packed rows (decode) each warp makes the logits of 16 pairs, all
// exchange them, and each then owns a part of the channels; with many (prefill) each warp owns 16
// rows. A logit, a softmax state and an output see the same operations either way.
#pragma once

#include "kernels/cuda/tile.cuh"

namespace pagezip::cuda {

// ---- kernels ----

/// kRowWarps: 1 or 4, see above. Without values only the states are made.
template <typename Traits, int kRowWarps, bool kValues>
struct AttendTraits : Traits {
  static constexpr bool kWithValues = kValues;
  static constexpr bool kSplitChannels = kRowWarps == 1;
  static constexpr int kRows = 16 * kRowWarps;
  static constexpr int kStages = Traits::kHeadDim >= 256 ? 2 : 3;
  static constexpr int kLogitTiles = kTilePairs / 8;
  static constexpr int kWarpBlocks =
      kSplitChannels ? ceil_div(Traits::kBlocks, kAttendWarps) : Traits::kBlocks;
  static constexpr int kOutTiles = kValues ? kWarpBlocks * Traits::kBlockTiles : 1;

  struct Stage {
    alignas(16) std::byte keys[Traits::kKeyBytes];
    alignas(16) std::byte values[kValues ? Traits::kValueBytes : 16];
    alignas(16) uint32_t key_parameters[is_quantised(Traits::kKeyType) ? kTilePairs : 4];
    alignas(16) uint32_t value_parameters[is_quantised(Traits::kValueType) ? kTilePairs : 4];
  };
  struct Shared {
    Stage stages[kStages];
    alignas(16) std::byte queries[kRows * Traits::kQueryChunks * 16];
    alignas(16) float logits[kSplitChannels ? kRows : 1][kTilePairs + 8];
    float query_sums[kRows];
    int begin[kRows];  // the pairs that a packed row sees
    int end[kRows];
    PageTable table;
    uint32_t item;
  };
  // Two blocks where shared memory has room for them on sm_80. Asking for more of the small ones
  // would leave too few registers.
  static constexpr int kSharedBytesPerSm = 164 * 1024;
  static constexpr int kRoom = kSharedBytesPerSm / (static_cast<int>(sizeof(Shared)) + 1024);
  static constexpr int kBlocksPerSm = kRoom < 2 ? kRoom : 2;
  static_assert(kBlocksPerSm > 0);
};

/// What a lane knows of its two packed rows (lane / 4 and 8 behind it): the state and the output of
/// the run in hand, and the state of the runs before.
template <typename T>
struct Accumulator {
  SoftmaxState<float> run[2];
  SoftmaxState<float> total[2];
  float out[T::kOutTiles][4];

  __device__ void clear_run() {
    run[0] = run[1] = {};
    for (auto& tile : out) {
      for (float& value : tile) {
        value = 0;
      }
    }
  }
};

template <typename T>
__device__ __forceinline__ int first_row_of_warp() {
  return T::kSplitChannels ? 0 : warp_id() * 16;
}

/// Queries and visible ranges of an item's packed rows; places without a row see nothing.
template <typename T>
__device__ void load_rows(const AttendParams& p, const AttendItem& item, typename T::Shared& s) {
  const Segment& segment = p.segments[item.segment];
  for (int r = warp_id(); r < T::kRows; r += kAttendWarps) {
    const int local = r / p.group();
    const int in_group = MUTANT(kGroupRowMixUp) ? r % item.rows : r % p.group();
    const float* q = nullptr;
    PairRange range{0, 0};
    if (local < item.rows) {
      const AttendRow row = p.rows[item.first_row + local];
      const int head = item.kv_head * p.group() + in_group;
      q = p.q + row.row * p.q_stride + int64_t{head} * p.page.head_dim;
      range = visible_pairs(p.page, segment, item.layer, item.kv_head, item.window, row.position);
      range.begin = range.begin > item.begin ? range.begin : item.begin;
      range.end = range.end < item.end ? range.end : item.end;
    }
    const float sum = store_query<T>(q, r, s.queries);
    if (lane_id() == 0) {
      s.query_sums[r] = sum;
      s.begin[r] = static_cast<int>(range.begin);
      s.end[r] = static_cast<int>(range.end);
    }
  }
}

/// Asks for a tile as two groups; past the last tile the groups are empty.
template <typename T>
__device__ __forceinline__ void load_tile(const TileSource& source, int64_t tile,
                                          typename T::Stage& stage) {
  if (tile < source.end) {
    load_keys<T>(source, tile, stage.keys, stage.key_parameters);
  }
  commit_copies();
  if (T::kWithValues && tile < source.end) {
    load_values<T>(source, tile, stage.values, stage.value_parameters);
  }
  commit_copies();
}

/// Sets the logits of pairs that a row doesn't see to -inf.
template <typename T>
__device__ __forceinline__ void mask_logits(const typename T::Shared& s, int64_t tile,
                                            float (&logits)[T::kLogitTiles][4]) {
  const int first = static_cast<int>(tile);
  for (int half = 0; half < 2; ++half) {
    const int row = first_row_of_warp<T>() + lane_id() / 4 + half * 8;
    const int begin = s.begin[row];
    const int end = MUTANT(kWrongTailMask) ? (s.end[row] + 7) / 8 * 8 : s.end[row];
    if (first >= begin && first + kTilePairs <= end) {
      continue;
    }
#pragma unroll
    for (int n = 0; n < T::kLogitTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pair = first + 8 * n + lane_id() % 4 * 2 + i;
        if (pair < begin || pair >= end) {
          logits[n][half * 2 + i] = -INFINITY;
        }
      }
    }
  }
}

/// Takes the logits of a tile into the run: they become probabilities relative to the new maximum,
/// and the output so far is scaled to it.
template <typename T>
__device__ __forceinline__ void update_softmax(float (&logits)[T::kLogitTiles][4],
                                               Accumulator<T>& acc) {
  constexpr float kLog2E = 1.4426950408889634f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    SoftmaxState<float>& run = acc.run[half];
    float max = run.max;
#pragma unroll
    for (int n = 0; n < T::kLogitTiles; ++n) {
      max = fmaxf(max, fmaxf(logits[n][half * 2], logits[n][half * 2 + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    const float base = max == -INFINITY ? 0 : max;  // -inf - -inf is NaN
    const float factor = exp2_approx((run.max - base) * kLog2E);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < T::kLogitTiles; ++n) {
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        logits[n][i] = exp2_approx((logits[n][i] - base) * kLog2E);
        sum += logits[n][i];
      }
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    run.sum = fmaf(run.sum, factor, sum);
    run.max = max;
#pragma unroll
    for (int t = 0; t < T::kOutTiles; ++t) {
      acc.out[t][half * 2] *= factor;
      acc.out[t][half * 2 + 1] *= factor;
    }
  }
}

template <typename T>
__device__ __forceinline__ int first_block_of_warp() {
  return T::kSplitChannels ? warp_id() * T::kWarpBlocks : 0;
}

/// out += probabilities · values, in the channels of this warp.
template <typename T>
__device__ __forceinline__ void add_values(const typename T::Stage& stage,
                                           const float (&p)[T::kLogitTiles][4],
                                           Accumulator<T>& acc) {
#pragma unroll
  for (int step = 0; step < kTilePairs / 16; ++step) {
    const uint32_t a[4] = {pack<T::kValueType>(p[2 * step][0], p[2 * step][1]),
                           pack<T::kValueType>(p[2 * step][2], p[2 * step][3]),
                           pack<T::kValueType>(p[2 * step + 1][0], p[2 * step + 1][1]),
                           pack<T::kValueType>(p[2 * step + 1][2], p[2 * step + 1][3])};
#pragma unroll
    for (int block = 0; block < T::kWarpBlocks; ++block) {
      // Four warps may be more than there are blocks.
      if (first_block_of_warp<T>() + block < T::kBlocks) {
        uint32_t b[T::kBlockTiles][2];
        load_value_fragments<T>(stage.values, stage.value_parameters, 16 * step,
                                first_block_of_warp<T>() + block, b);
        for (int tile = 0; tile < T::kBlockTiles; ++tile) {
          product<T::kValueType>(acc.out[block * T::kBlockTiles + tile], a, b[tile]);
        }
      }
    }
  }
}

/// Merges the finished run into the item's partial result, which this lane alone reads and writes.
template <typename T>
__device__ __forceinline__ void finish_run(const AttendParams& p, const AttendItem& item,
                                           Accumulator<T>& acc) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row_of_warp<T>() + lane_id() / 4 + half * 8;
    if (row >= item.rows * p.group() || acc.run[half].empty()) {
      continue;
    }
    const bool first = acc.total[half].empty();
    const MergeFactors<float> factors = merge(acc.total[half], acc.run[half]);
    if constexpr (T::kWithValues) {
      float* out = p.partial_out + (item.first_partial + row) * T::kHeadDim;
#pragma unroll
      for (int t = 0; t < T::kOutTiles; ++t) {
        const int block = first_block_of_warp<T>() + t / T::kBlockTiles;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int channel = output_channel<T>(block, t % T::kBlockTiles, lane_id() % 4 * 2 + i);
          if (channel < T::kHeadDim) {
            const float value = acc.out[t][half * 2 + i];
            out[channel] = first ? value : fmaf(out[channel], factors.into, value * factors.from);
          }
        }
      }
    }
  }
  acc.clear_run();
}

template <typename T>
__device__ __forceinline__ void store_states(const AttendParams& p, const AttendItem& item,
                                             const Accumulator<T>& acc) {
  if (lane_id() % 4 != 0 || (T::kSplitChannels && warp_id() != 0)) {
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const int row = first_row_of_warp<T>() + lane_id() / 4 + half * 8;
    if (row < item.rows * p.group()) {
      p.partial_states[item.first_partial + row] = acc.total[half];
    }
  }
}

/// The logits of a tile for the 16 rows of this warp. Ends behind a barrier after which the tile's
/// values may be read too.
template <typename T>
__device__ __forceinline__ void make_logits(const AttendParams& p, typename T::Shared& s,
                                            const typename T::Stage& stage,
                                            float (&logits)[T::kLogitTiles][4]) {
  if constexpr (T::kSplitChannels) {
    float own[2][4];
    const int pair = warp_id() * 16;
    logits_of<T>(s.queries, s.query_sums, stage.keys, stage.key_parameters, 0, pair, p.scale, own);
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        s.logits[lane_id() / 4 + i / 2 * 8][pair + 8 * n + lane_id() % 4 * 2 + i % 2] = own[n][i];
      }
    }
  } else {
    logits_of<T>(s.queries, s.query_sums, stage.keys, stage.key_parameters, first_row_of_warp<T>(),
                 0, p.scale, logits);
  }
  if (!MUTANT(kWaitLeftOut)) {
    wait_copies<2 * (T::kStages - 1)>();
  }
  if (!MUTANT(kBarrierLeftOut)) {
    __syncthreads();
  }
  if constexpr (T::kSplitChannels) {
    for (int n = 0; n < T::kLogitTiles; ++n) {
      for (int i = 0; i < 4; ++i) {
        logits[n][i] = s.logits[lane_id() / 4 + i / 2 * 8][8 * n + lane_id() % 4 * 2 + i % 2];
      }
    }
  }
}

template <typename T>
__device__ void attend_item(const AttendParams& p, const AttendItem& item, typename T::Shared& s) {
  const Segment& segment = p.segments[item.segment];
  const TileSource source{&s.table, p.page, log2_tokens(p.page.page_tokens), item.begin, item.end};
  const int64_t first = item.begin / kTilePairs * kTilePairs;
  load_rows<T>(p, item, s);
  for (int64_t run = first / kRunPairs; run < first / kRunPairs + 2; ++run) {
    s.table.load_run(p.page, segment, item.layer, item.kv_head, run, item.begin, item.end);
  }
  __syncthreads();
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    load_tile<T>(source, first + stage * kTilePairs, s.stages[stage]);
  }
  Accumulator<T> acc;
  acc.clear_run();
  int stage = 0;
  for (int64_t tile = first; tile < item.end; tile += kTilePairs) {
    wait_copies<2 * T::kStages - 3>();
    __syncthreads();  // the keys are there, and nobody reads the stage before this one any more
    if (tile > first && tile % kRunPairs == 0) {
      s.table.load_run(p.page, segment, item.layer, item.kv_head, tile / kRunPairs + 1, item.begin,
                       item.end);
    }
    load_tile<T>(source, tile + (T::kStages - 1) * kTilePairs,
                 s.stages[(stage + T::kStages - 1) % T::kStages]);
    float logits[T::kLogitTiles][4];
    make_logits<T>(p, s, s.stages[stage], logits);
    mask_logits<T>(s, tile, logits);
    update_softmax<T>(logits, acc);
    if constexpr (T::kWithValues) {
      add_values<T>(s.stages[stage], logits, acc);
    }
    if ((tile + kTilePairs) % kRunPairs == 0 || tile + kTilePairs >= item.end) {
      finish_run<T>(p, item, acc);
    }
    stage = (stage + 1) % T::kStages;
  }
  store_states<T>(p, item, acc);
}

template <typename T>
__global__ void __launch_bounds__(kAttendThreads, T::kBlocksPerSm) attend_kernel(AttendParams p) {
  auto& s = dynamic_shared<typename T::Shared>();
  for (;;) {
    if (threadIdx.x == 0) {
      s.item = atomicAdd(p.next_item, 1u);
    }
    __syncthreads();
    const uint32_t item = s.item;
    if (item >= static_cast<uint32_t>(p.item_count)) {
      return;
    }
    attend_item<T>(p, p.items[item], s);
  }
}

// ---- launchers ----

/// `blocks`: as many as run at once; they share the list of items.
template <typename Traits, bool kWithValues>
Status launch_attend(const AttendParams& params, bool many_rows, int blocks, Stream stream) {
  const Grid grid{static_cast<unsigned>(blocks), 1};
  if (many_rows) {
    using T = AttendTraits<Traits, 4, kWithValues>;
    return launch(attend_kernel<T>, grid, kAttendThreads, sizeof(typename T::Shared), stream,
                  params);
  }
  using T = AttendTraits<Traits, 1, kWithValues>;
  return launch(attend_kernel<T>, grid, kAttendThreads, sizeof(typename T::Shared), stream, params);
}

}  // namespace pagezip::cuda
