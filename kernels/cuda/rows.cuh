// Operations on rows of activations: RMSNorm, RoPE, gates, addition, embedding, rounding, and the
// best token of each row of logits. float32 inside; contracts as in kernels/kernels.h.
#pragma once

#include "base/math.h"
#include "kernels/cuda/collectives.cuh"

namespace pagezip::cuda {

struct RmsNormParams {
  const float* x;  // [rows, cols]
  int64_t x_stride;
  const float* weight;  // [cols]
  float eps;
  float* out;  // may be x
  int64_t out_stride;
  int64_t rows;
  int64_t cols;
};

struct RopeParams {
  float* x;  // [rows, heads * head_dim], rotated in place
  int64_t x_stride;
  const float* cos;  // [rows, head_dim / 2]
  const float* sin;
  int64_t angle_stride;
  int64_t rows;
  int heads;
  int head_dim;
  bool interleaved;  // (2i, 2i + 1) turn together; else (i, i + head_dim / 2)
};

/// target = f(target) * other, or target + other.
enum class RowOperation : uint8_t { kSiluGate, kGeluTanhGate, kAdd };
struct RowOperationParams {
  RowOperation operation;
  float* target;  // [rows, cols]
  int64_t target_stride;
  const float* other;
  int64_t other_stride;
  int64_t rows;
  int64_t cols;
};

struct EmbeddingParams {
  const void* table;      // [vocabulary, cols]
  bool bf16;              // else float32
  const int32_t* tokens;  // [rows]
  float scale;
  float* out;  // [rows, cols]
  int64_t out_stride;
  int64_t rows;
  int64_t cols;
};

struct RoundRowsParams {
  const float* x;  // [rows, cols]
  int64_t x_stride;
  uint16_t* out;  // [rows, cols] bfloat16, without gaps
  int64_t rows;
  int64_t cols;
};

struct BestTokenParams {
  const float* logits;  // [rows, vocabulary]
  int64_t stride;
  int64_t rows;
  int64_t vocabulary;
  int32_t* tokens;  // [rows]; of equal logits the lowest id; -1 if a logit is NaN
};

// ---- kernels ----

inline constexpr int kRowThreads = 256;

struct RowShared {
  alignas(16) float sums[kRowThreads / kWarpLanes];
};

/// The sum over the block, the same bits in every thread.
__device__ __forceinline__ float block_sum(float value, RowShared& s) {
  const float own = warp_sum(value);
  if (lane_id() == 0) {
    s.sums[warp_id()] = own;
  }
  __syncthreads();
  float sum = 0;
  for (const float warp : s.sums) {
    sum += warp;
  }
  return sum;
}

/// A block takes a row.
__global__ void __launch_bounds__(kRowThreads) rms_norm_kernel(RmsNormParams p) {
  auto& s = dynamic_shared<RowShared>();
  const float* x = p.x + int64_t{blockIdx.x} * p.x_stride;
  float* out = p.out + int64_t{blockIdx.x} * p.out_stride;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < p.cols; i += kRowThreads) {
    squares = fmaf(x[i], x[i], squares);
  }
  const float mean = block_sum(squares, s) / static_cast<float>(p.cols);
  const float factor = 1 / sqrtf(mean + p.eps);
  for (int64_t i = threadIdx.x; i < p.cols; i += kRowThreads) {
    out[i] = x[i] * factor * p.weight[i];
  }
}

/// A thread turns one pair of elements.
__global__ void __launch_bounds__(kRowThreads) rope_kernel(RopeParams p) {
  const int half = p.head_dim / 2;
  const int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i >= p.rows * p.heads * half) {
    return;
  }
  const int64_t row = i / half / p.heads;
  const int64_t angle = i % half;
  float* head = p.x + row * p.x_stride + i / half % p.heads * p.head_dim;
  float& a = head[p.interleaved ? 2 * angle : angle];
  float& b = head[p.interleaved ? 2 * angle + 1 : angle + half];
  const float cos = p.cos[row * p.angle_stride + angle];
  const float sin = p.sin[row * p.angle_stride + angle];
  const float turned = a * cos - b * sin;
  b = a * sin + b * cos;
  a = turned;
}

__device__ __forceinline__ float apply(RowOperation operation, float x, float y) {
  switch (operation) {
    case RowOperation::kSiluGate:
      return x / (1 + expf(-x)) * y;
    case RowOperation::kGeluTanhGate: {
      constexpr float kRootTwoOverPi = 0.7978845608028654f;
      return 0.5f * x * (1 + tanhf(kRootTwoOverPi * (x + 0.044715f * x * x * x))) * y;
    }
    case RowOperation::kAdd:
      break;
  }
  return x + y;
}

__global__ void __launch_bounds__(kRowThreads) row_operation_kernel(RowOperationParams p) {
  const int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i < p.rows * p.cols) {
    float& target = p.target[i / p.cols * p.target_stride + i % p.cols];
    target = apply(p.operation, target, p.other[i / p.cols * p.other_stride + i % p.cols]);
  }
}

__global__ void __launch_bounds__(kRowThreads) embedding_kernel(EmbeddingParams p) {
  const int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i < p.rows * p.cols) {
    const int64_t at = p.tokens[i / p.cols] * p.cols + i % p.cols;
    const float value = p.bf16 ? bf16_to_f32(static_cast<const uint16_t*>(p.table)[at])
                               : static_cast<const float*>(p.table)[at];
    p.out[i / p.cols * p.out_stride + i % p.cols] = p.scale * value;
  }
}

__global__ void __launch_bounds__(kRowThreads) round_rows_kernel(RoundRowsParams p) {
  const int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i < p.rows * p.cols) {
    p.out[i] = static_cast<uint16_t>(pack_bf16(p.x[i / p.cols * p.x_stride + i % p.cols], 0));
  }
}

/// A candidate; better() is an order, so that the result doesn't depend on who compares with whom.
struct BestToken {
  float logit;
  int32_t token;  // -1: a NaN, which beats everything

  __device__ bool better(const BestToken& other) const {
    if (token < 0 || other.token < 0) {
      return token < 0;
    }
    return logit > other.logit || (logit == other.logit && token < other.token);
  }
};

__device__ __forceinline__ BestToken warp_best(BestToken best) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    const BestToken other{__shfl_xor_sync(kAllLanes, best.logit, step),
                          __shfl_xor_sync(kAllLanes, best.token, step)};
    best = other.better(best) ? other : best;
  }
  return best;
}

struct BestTokenShared {
  alignas(16) BestToken warps[kRowThreads / kWarpLanes];
};

/// A block takes a row.
__global__ void __launch_bounds__(kRowThreads) best_token_kernel(BestTokenParams p) {
  auto& s = dynamic_shared<BestTokenShared>();
  const float* logits = p.logits + int64_t{blockIdx.x} * p.stride;
  BestToken best{-INFINITY, INT32_MAX};
  for (int64_t i = threadIdx.x; i < p.vocabulary; i += kRowThreads) {
    const BestToken own{logits[i], logits[i] != logits[i] ? -1 : static_cast<int32_t>(i)};
    best = own.better(best) ? own : best;
  }
  best = warp_best(best);
  if (lane_id() == 0) {
    s.warps[warp_id()] = best;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (const BestToken& other : s.warps) {
      best = other.better(best) ? other : best;
    }
    p.tokens[blockIdx.x] = best.token;
  }
}

// ---- launchers ----

inline Grid one_thread_each(int64_t elements) {
  return {static_cast<unsigned>(ceil_div(elements, kRowThreads)), 1};
}
inline Grid one_block_each(int64_t rows) { return {static_cast<unsigned>(rows), 1}; }

inline Status rms_norm(const RmsNormParams& p, Stream stream) {
  return p.rows == 0 ? Status{}
                     : launch(rms_norm_kernel, one_block_each(p.rows), kRowThreads,
                              sizeof(RowShared), stream, p);
}
inline Status rope(const RopeParams& p, Stream stream) {
  const int64_t turns = p.rows * p.heads * (p.head_dim / 2);
  return turns == 0 ? Status{}
                    : launch(rope_kernel, one_thread_each(turns), kRowThreads, 0, stream, p);
}
inline Status row_operation(const RowOperationParams& p, Stream stream) {
  return p.rows * p.cols == 0 ? Status{}
                              : launch(row_operation_kernel, one_thread_each(p.rows * p.cols),
                                       kRowThreads, 0, stream, p);
}
inline Status embedding(const EmbeddingParams& p, Stream stream) {
  return p.rows * p.cols == 0 ? Status{}
                              : launch(embedding_kernel, one_thread_each(p.rows * p.cols),
                                       kRowThreads, 0, stream, p);
}
inline Status round_rows(const RoundRowsParams& p, Stream stream) {
  return p.rows * p.cols == 0 ? Status{}
                              : launch(round_rows_kernel, one_thread_each(p.rows * p.cols),
                                       kRowThreads, 0, stream, p);
}
inline Status best_token(const BestTokenParams& p, Stream stream) {
  return p.rows == 0 ? Status{}
                     : launch(best_token_kernel, one_block_each(p.rows), kRowThreads,
                              sizeof(BestTokenShared), stream, p);
}

}  // namespace pagezip::cuda
