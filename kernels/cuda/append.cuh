// Writes new keys and values into pages, rounded or quantised to the types of the page.
#pragma once

#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/pages.cuh"

namespace pagezip::cuda {

/// Where a row of the batch goes.
struct AppendRow {
  int64_t pair;
  int32_t segment;  // index into AppendParams::segments
};

struct AppendParams {
  PageLayout page;
  int kv_heads;
  int layer;
  const float* k;  // [rows, kv_heads * head_dim], rows k_stride apart
  const float* v;
  int64_t k_stride;
  int64_t v_stride;
  int64_t rows;
  const AppendRow* targets;  // [rows]
  const Segment* segments;
};

// ---- kernels ----

inline constexpr int kAppendThreads = 128;

__device__ inline void store_floats(KvType type, const float* source, std::byte* elements,
                                    int64_t first, int64_t stride, int head_dim) {
  for (int d = lane_id(); d < head_dim; d += kWarpLanes) {
    const int64_t at = first + d * stride;
    if (type == KvType::kF32) {
      reinterpret_cast<float*>(elements)[at] = source[d];
    } else {
      const uint32_t packed =
          type == KvType::kF16 ? pack_f16(source[d], 0) : pack_bf16(source[d], 0);
      reinterpret_cast<uint16_t*>(elements)[at] = static_cast<uint16_t>(packed);
    }
  }
}

/// The scale and zero that span the values of one pair, as they are kept.
__device__ inline uint32_t fit_parameters(const float* source, int head_dim, float levels) {
  constexpr float kLargestF16 = 65504;
  float low = source[lane_id() % head_dim];
  float high = low;
  for (int d = lane_id(); d < head_dim; d += kWarpLanes) {
    low = fminf(low, source[d]);
    high = fmaxf(high, source[d]);
  }
  low = fmaxf(-kLargestF16, warp_min(low)) + 0.0f;  // which zero is lowest doesn't matter
  high = fminf(kLargestF16, warp_max(high)) + 0.0f;
  const uint16_t zero = f32_to_f16(low);
  return f32_to_f16((high - f16_to_f32(zero)) / levels) | uint32_t{zero} << 16;
}

template <int kBits>
__device__ inline void store_codes(const float* source, std::byte* elements, std::byte* parameters,
                                   int64_t slot, int head_dim) {
  constexpr int kPerWord = 32 / kBits;
  constexpr float kLevels = (1 << kBits) - 1;
  const uint32_t packed = fit_parameters(source, head_dim, kLevels);
  const Parameters p = unpack_parameters(packed);
  auto* words = reinterpret_cast<uint32_t*>(elements) + slot * head_dim / kPerWord;
  for (int w = lane_id(); w < head_dim / kPerWord; w += kWarpLanes) {
    uint32_t word = 0;
    for (int i = 0; i < kPerWord; ++i) {
      // A scale of zero: all values are the same.
      const float code = p.scale == 0 ? 0 : rintf((source[w * kPerWord + i] - p.zero) / p.scale);
      word |= static_cast<uint32_t>(fminf(fmaxf(code, 0), kLevels)) << (i * kBits);
    }
    words[w] = word;
  }
  if (lane_id() == 0) {
    reinterpret_cast<uint32_t*>(parameters)[slot] = packed;
  }
}

__device__ inline void store_row(KvType type, const float* source, std::byte* elements,
                                 std::byte* parameters, int64_t slot, int64_t slot_stride,
                                 int64_t channel_stride, int head_dim) {
  if (type == KvType::kI8) {
    store_codes<8>(source, elements, parameters, slot, head_dim);
  } else if (type == KvType::kI4) {
    store_codes<4>(source, elements, parameters, slot, head_dim);
  } else {
    store_floats(type, source, elements, slot * slot_stride, channel_stride, head_dim);
  }
}

/// A warp takes one (row, head): K, then V.
__global__ void __launch_bounds__(kAppendThreads) append_kernel(AppendParams p) {
  const int64_t item = int64_t{blockIdx.x} * (kAppendThreads / kWarpLanes) + warp_id();
  if (item >= p.rows * p.kv_heads) {
    return;
  }
  const int64_t row = item / p.kv_heads;
  const int head = static_cast<int>(item % p.kv_heads);
  const PageLayout& page = p.page;
  const AppendRow target = p.targets[row];
  const int64_t slot = target.pair % page.page_tokens;
  std::byte* start = p.segments[target.segment].page(p.layer, head, target.pair / page.page_tokens);
  store_row(page.k_type, p.k + row * p.k_stride + int64_t{head} * page.head_dim, start,
            start + page.k_elements_bytes(), slot, page.key_stride(), page.key_channel_stride(),
            page.head_dim);
  std::byte* values = start + page.k_bytes();
  store_row(page.v_type, p.v + row * p.v_stride + int64_t{head} * page.head_dim, values,
            values + page.v_elements_bytes(), slot, page.head_dim, 1, page.head_dim);
}

// ---- launchers ----

inline Status append(const AppendParams& params, Stream stream) {
  const int64_t warps = params.rows * params.kv_heads;
  if (warps == 0) {
    return {};
  }
  const auto blocks = static_cast<unsigned>(ceil_div(warps, kAppendThreads / kWarpLanes));
  return launch(append_kernel, {blocks, 1}, kAppendThreads, 0, stream, params);
}

}  // namespace pagezip::cuda
