// Tiles of 64 pairs in shared memory, and their products with queries on tensor cores.
//
// Keys and values come in 16-byte chunks by cp.async, swizzled so that ldmatrix meets no bank
// conflict. Codes of quantised types stay codes in shared memory and become float16 in registers:
// keys as plain integers (the scale and zero of a pair are applied to the finished product), values
// with their scale and zero. ldmatrix moves 16-bit units, which hold 2 or 4 codes; so the channels
// of a fragment are not neighbours there, and queries and outputs are permuted to match.
#pragma once

#include "base/mutant.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/pages.cuh"

namespace pagezip::cuda {

/// One instantiation. Transposed keys are [head_dim, 64] in shared memory, others [64, head_dim].
template <KvType kKey, KvType kValue, int kDim, bool kTransposedKeys>
struct TileTraits {
  static constexpr KvType kKeyType = kKey;
  static constexpr KvType kValueType = kValue;
  static constexpr int kHeadDim = kDim;
  static constexpr bool kTransposed = kTransposedKeys;
  static constexpr int kSteps = kDim / 16;  // of k in q · k
  static constexpr int kQueryChunks = kDim * 2 / 16;
  static constexpr int kKeyRows = kTransposed ? kDim : kTilePairs;
  static constexpr int kKeyChunks = (kTransposed ? kTilePairs : kDim) * bits_of(kKey) / 128;
  static constexpr int kKeyBytes = kKeyRows * kKeyChunks * 16;
  static constexpr int kValueChunks = kDim * bits_of(kValue) / 128;
  static constexpr int kValueBytes = kTilePairs * kValueChunks * 16;
  // A block of channels is what one load of values covers; it makes so many 8-wide output tiles.
  static constexpr int kBlockTiles = kValue == KvType::kI4 ? 4 : 2;
  static constexpr int kBlocks = kDim / (8 * kBlockTiles);
  static_assert(kDim % 64 == 0 && kKey != KvType::kF32 && kValue != KvType::kF32);
  static_assert(!kTransposed || !is_quantised(kKey));
};

/// Where chunk `chunk` of a row lies in a matrix with kChunks chunks a row.
template <int kChunks>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  constexpr int kMask = (kChunks < 8 ? kChunks : 8) - 1;
  const int turn = kChunks < 8 ? row * kChunks / 8 : row;
  return (row * kChunks + (chunk ^ (turn & kMask))) * 16;
}

template <KvType kType>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  return kType == KvType::kBF16 ? pack_bf16(low, high) : pack_f16(low, high);
}

template <KvType kType>
__device__ __forceinline__ void product(float (&c)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  if constexpr (kType == KvType::kBF16) {
    product_bf16(c, a, b);
  } else {
    product_f16(c, a, b);
  }
}

// ---- loading ----

/// The pages of two runs at a time; the one that comes is loaded while the other is read.
struct PageTable {
  const std::byte* pages[2][kRunPairs / 16];

  __device__ void load_run(const PageLayout& page, const Segment& segment, int layer, int head,
                           int64_t run, int64_t begin, int64_t end) {
    const int64_t pages_in_run = kRunPairs / page.page_tokens;
    for (int64_t i = threadIdx.x; i < pages_in_run; i += kAttendThreads) {
      const int64_t p = run * pages_in_run + i;
      if ((p + 1) * page.page_tokens > begin && p * page.page_tokens < end) {
        pages[run % 2][i] = segment.page(layer, head, MUTANT(kOffByOnePage) ? p + 1 : p);
      }
    }
  }
  __device__ const std::byte* page_of(int64_t pair, int page_shift) const {
    return pages[pair / kRunPairs % 2][pair % kRunPairs >> page_shift];
  }
};

/// What a tile is cut from.
struct TileSource {
  const PageTable* table;
  PageLayout page;
  int page_shift;  // log2 of page_tokens
  int64_t begin;   // pairs outside [begin, end) become zero
  int64_t end;
};

__device__ __forceinline__ int log2_tokens(int page_tokens) {
  return page_tokens == 16 ? 4 : page_tokens == 32 ? 5 : 6;
}

/// [64, kChunks] chunks of rows that lie one after the other, `offset` bytes into a page.
template <int kChunks>
__device__ __forceinline__ void load_plain(const TileSource& source, int64_t tile, int64_t offset,
                                           std::byte* target) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTilePairs * kChunks; i += kAttendThreads) {
    const int64_t pair = tile + i / kChunks;
    const bool valid = pair >= source.begin && pair < source.end;
    const std::byte* from = nullptr;
    if (valid) {
      const int64_t slot = pair & (source.page.page_tokens - 1);
      from = source.table->page_of(pair, source.page_shift) + offset +
             (slot * kChunks + i % kChunks) * 16;
    }
    copy_async<16>(target + swizzled<kChunks>(i / kChunks, i % kChunks), from, valid);
  }
}

/// Scales and zeros, 4 bytes for each pair.
__device__ __forceinline__ void load_parameters(const TileSource& source, int64_t tile,
                                                int64_t offset, uint32_t* target) {
  for (int i = static_cast<int>(threadIdx.x); i < kTilePairs; i += kAttendThreads) {
    const int64_t pair = tile + i;
    const bool valid = pair >= source.begin && pair < source.end;
    const std::byte* from = nullptr;
    if (valid) {
      from = source.table->page_of(pair, source.page_shift) + offset +
             4 * (pair & (source.page.page_tokens - 1));
    }
    copy_async<4>(target + i, from, valid);
  }
}

template <typename T>
__device__ __forceinline__ void load_keys(const TileSource& source, int64_t tile, std::byte* target,
                                          uint32_t* parameters) {
  if constexpr (T::kTransposed) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < T::kHeadDim * 8; i += kAttendThreads) {
      // Eight pairs of one channel. Those outside the range may be anything: they are masked.
      const int64_t pair = tile + i % 8 * 8;
      const bool valid = pair + 8 > source.begin && pair < source.end;
      const std::byte* from = nullptr;
      if (valid) {
        const int64_t slot = pair & (source.page.page_tokens - 1);
        from = source.table->page_of(pair, source.page_shift) +
               (int64_t{i / 8} * source.page.page_tokens + slot) * 2;
      }
      copy_async<16>(target + swizzled<8>(i / 8, i % 8), from, valid);
    }
  } else {
    load_plain<T::kKeyChunks>(source, tile, 0, target);
    if constexpr (is_quantised(T::kKeyType)) {
      load_parameters(source, tile, source.page.k_elements_bytes(), parameters);
    }
  }
}

template <typename T>
__device__ __forceinline__ void load_values(const TileSource& source, int64_t tile,
                                            std::byte* target, uint32_t* parameters) {
  load_plain<T::kValueChunks>(source, tile, source.page.k_bytes(), target);
  if constexpr (is_quantised(T::kValueType)) {
    load_parameters(source, tile, source.page.k_bytes() + source.page.v_elements_bytes(),
                    parameters);
  }
}

// ---- queries ----

/// The channel at place `at` of a row of queries, by which it meets the keys' fragments. Even
/// places and the ones behind them are neighbours.
template <KvType kKey>
__device__ __forceinline__ int query_channel(int at) {
  const int step = at / 16;
  const int in_lane = at % 8 / 2;
  const int high = at % 16 / 8;
  if constexpr (kKey == KvType::kI8) {
    return step * 16 + in_lane * 4 + high * 2;
  } else if constexpr (kKey == KvType::kI4) {
    return step / 2 * 32 + in_lane * 8 + step % 2 * 4 + high * 2;
  } else {
    return at;
  }
}

/// Writes one packed row (null: zeros) into a swizzled matrix, and returns the sum of what it
/// wrote, which the zeros of quantised keys are multiplied with. Called by a whole warp.
template <typename T>
__device__ __forceinline__ float store_query(const float* source, int row, std::byte* target) {
  float sum = 0;
  for (int at = lane_id() * 2; at < T::kHeadDim; at += 2 * kWarpLanes) {
    const int channel = query_channel<T::kKeyType>(at);
    const uint32_t packed =
        source == nullptr ? 0 : pack<T::kKeyType>(source[channel], source[channel + 1]);
    *reinterpret_cast<uint32_t*>(target + swizzled<T::kQueryChunks>(row, at / 8) + at % 8 * 2) =
        packed;
    if constexpr (is_quantised(T::kKeyType)) {
      sum += f16_to_f32(static_cast<uint16_t>(packed)) +
             f16_to_f32(static_cast<uint16_t>(packed >> 16));
    }
  }
  return is_quantised(T::kKeyType) ? warp_sum(sum) : 0;
}

// ---- products ----

/// Two codes, in bits 0-15 and 16-31, as float16.
__device__ __forceinline__ uint32_t codes_to_f16(uint32_t codes) {
  return pack_f16(static_cast<float>(codes & 0xffffu), static_cast<float>(codes >> 16));
}

/// Step `step` of k for the pairs [pair, pair + 16) of a tile: two fragments.
template <typename T>
__device__ __forceinline__ void load_key_fragments(const std::byte* keys, int pair, int step,
                                                   uint32_t (&b)[2][2]) {
  const int matrix = lane_id() / 8;
  const int row = lane_id() % 8;
  if constexpr (is_quantised(T::kKeyType)) {
    constexpr int kSteps = 16 / bits_of(T::kKeyType) / 2;  // that a chunk holds
    uint32_t codes[2];
    load_matrices(codes,
                  keys + swizzled<T::kKeyChunks>(pair + matrix % 2 * 8 + row, step / kSteps));
    for (int tile = 0; tile < 2; ++tile) {
      if constexpr (T::kKeyType == KvType::kI8) {
        b[tile][0] = codes_to_f16((codes[tile] & 0xffu) | (codes[tile] & 0xff00u) << 8);
        b[tile][1] = codes_to_f16((codes[tile] >> 16 & 0xffu) | (codes[tile] >> 8 & 0xff0000u));
      } else {
        const uint32_t half = codes[tile] >> (step % 2 * 16);
        b[tile][0] = codes_to_f16((half & 0xfu) | (half & 0xf0u) << 12);
        b[tile][1] = codes_to_f16((half >> 8 & 0xfu) | (half & 0xf000u) << 4);
      }
    }
  } else {
    uint32_t out[4];
    if constexpr (T::kTransposed) {
      load_matrices_transposed(
          out, keys + swizzled<8>(step * 16 + matrix % 2 * 8 + row, pair / 8 + matrix / 2));
    } else {
      load_matrices(
          out, keys + swizzled<T::kKeyChunks>(pair + matrix / 2 * 8 + row, step * 2 + matrix % 2));
    }
    for (int i = 0; i < 4; ++i) {
      b[i / 2][i % 2] = out[i];
    }
  }
}

/// logits[n][i]: scale * q · k of packed row row + lane / 4 (+ 8 for i >= 2) and pair
/// pair + 8 n + lane % 4 * 2 (+ 1 for odd i).
template <typename T, int kTiles>
__device__ __forceinline__ void logits_of(const std::byte* queries, const float* query_sums,
                                          const std::byte* keys, const uint32_t* parameters,
                                          int row, int pair, float scale,
                                          float (&logits)[kTiles][4]) {
  for (int n = 0; n < kTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      logits[n][i] = 0;
    }
  }
#pragma unroll
  for (int step = 0; step < T::kSteps; ++step) {
    uint32_t a[4];
    load_matrices(
        a, queries + swizzled<T::kQueryChunks>(row + lane_id() % 16, step * 2 + lane_id() / 16));
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[2][2];
      load_key_fragments<T>(keys, pair + 8 * n, step, b);
      product<T::kKeyType>(logits[n], a, b[0]);
      product<T::kKeyType>(logits[n + 1], a, b[1]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (is_quantised(T::kKeyType)) {
        const int column = pair + 8 * n + lane_id() % 4 * 2 + i % 2;
        const Parameters p =
            unpack_parameters(parameters[MUTANT(kWrongScaleRow) ? column ^ 1 : column]);
        logits[n][i] =
            fmaf(p.scale, logits[n][i], p.zero * query_sums[row + lane_id() / 4 + i / 2 * 8]);
      }
      logits[n][i] *= scale;
    }
  }
}

/// Values of the 16 pairs from `pair` on in the channels of `block`: one fragment for each of its
/// output tiles.
template <typename T>
__device__ __forceinline__ void load_value_fragments(const std::byte* values,
                                                     const uint32_t* parameters, int pair,
                                                     int block, uint32_t (&b)[T::kBlockTiles][2]) {
  const int matrix = lane_id() / 8;
  const int row = lane_id() % 8;
  if constexpr (is_quantised(T::kValueType)) {
    constexpr int kBits = bits_of(T::kValueType);
    uint32_t codes[2];
    load_matrices_transposed(
        codes, values + swizzled<T::kValueChunks>(pair + matrix % 2 * 8 + row, block));
    for (int half = 0; half < 2; ++half) {
      const int first = pair + half * 8 + lane_id() % 4 * 2;
      const Parameters p0 = unpack_parameters(parameters[first]);
      const Parameters p1 = unpack_parameters(parameters[first + 1]);
      for (int tile = 0; tile < T::kBlockTiles; ++tile) {
        constexpr uint32_t kMask = (1u << kBits) - 1;
        const auto low = static_cast<float>(codes[half] >> (tile * kBits) & kMask);
        const auto high = static_cast<float>(codes[half] >> (16 + tile * kBits) & kMask);
        b[tile][half] = pack_f16(fmaf(p0.scale, low, p0.zero), fmaf(p1.scale, high, p1.zero));
      }
    }
  } else {
    uint32_t out[4];
    load_matrices_transposed(out, values + swizzled<T::kValueChunks>(pair + matrix % 2 * 8 + row,
                                                                     block * 2 + matrix / 2));
    for (int i = 0; i < 4; ++i) {
      b[i / 2][i % 2] = out[i];
    }
  }
}

/// The channel of column `column` of output tile `tile` of a block.
template <typename T>
__device__ __forceinline__ int output_channel(int block, int tile, int column) {
  if constexpr (is_quantised(T::kValueType)) {
    return (block * 8 + column) * T::kBlockTiles + tile;
  } else {
    return (block * T::kBlockTiles + tile) * 8 + column;
  }
}

}  // namespace pagezip::cuda
