// Float32 building blocks of the CPU backend, compiled once per instruction set by Highway.
//
// All run on the calling thread. Sums and products have a fixed order that does not depend on how
// many rows a call has.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/math.h"

namespace pagezip::cpu {

struct SimdOps {
  const char* isa;
  /// c[rows, cols] = a[rows, k] · b[k, cols], or += with `accumulate`; each output is one chain of
  /// multiply-adds in the order of k. cols is a multiple of 16; row strides lda, ldb, ldc.
  void (*gemm)(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
               int64_t rows, int64_t k, int64_t cols, bool accumulate);
  /// The same products, bit for bit, with b widened as it is read: for few rows. Columns of b lie
  /// in groups of 16 at groups[0..cols / 16), each with row stride ldb (in elements).
  void (*gemm_keys)(KvType type, const float* a, int64_t lda, const std::byte* const* groups,
                    int64_t ldb, float* c, int64_t ldc, int64_t rows, int64_t k, int64_t cols);
  /// And with plain rows of b.
  void (*gemm_values)(KvType type, const float* a, int64_t lda, const std::byte* b, int64_t ldb,
                      float* c, int64_t ldc, int64_t rows, int64_t k, int64_t cols,
                      bool accumulate);
  /// target[i][j] = source[i][j] widened; source rows are dense, cols is a multiple of 16.
  void (*widen)(KvType type, const void* source, float* target, int64_t target_stride, int64_t rows,
                int64_t cols);
  /// target[i] = source[i] rounded to nearest even; count is a multiple of 16.
  void (*narrow)(KvType type, const float* source, void* target, int64_t count);
  /// One row of one attention unit: x[i] = exp(scale * x[i] - max) for i in [low, high), 0 in the
  /// rest of [0, width); returns max of scale * x and the sum. width is a multiple of 16.
  SoftmaxState<float> (*softmax)(float* x, int64_t low, int64_t high, int64_t width, float scale);
  /// The same state for [low, high) without changing x.
  SoftmaxState<float> (*softmax_state)(const float* x, int64_t low, int64_t high, float scale);
  /// out[i] = out[i] * factors.into + from[i] * factors.from.
  void (*merge_outputs)(float* out, const float* from, MergeFactors<float> factors, int64_t count);
  /// best[j] = max(best[j], max over rows of scale * x[row][j] - lse[row * lse_stride]), j < 64.
  /// lse may be null.
  void (*column_max)(const float* x, int64_t ldx, int64_t rows, float scale, const float* lse,
                     int64_t lse_stride, float* best);
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int64_t count);
  void (*rope)(float* x, int64_t head_dim, RopeStyle style, const float* cos, const float* sin);
  void (*gate)(GateFunction function, float* gate, const float* up, int64_t count);
  void (*add)(float* x, const float* y, int64_t count);
  /// 8-bit blocks of 32 as in Activations; count is a multiple of 32. Blocks, scales and sums lie
  /// `stride` blocks, scales and sums apart.
  void (*quantize)(const float* x, int8_t* q8, float* scales, int32_t* sums, int64_t count,
                   int64_t stride);
};

/// The table in use; the best instruction set of this machine unless use_simd_level() was called.
const SimdOps& simd_ops();

enum class SimdLevel { kBaseline, kAvx2, kAvx512 };
SimdLevel best_simd_level();
/// At start-up or in a test, while no kernel runs. REQUIRES: level <= best_simd_level().
void use_simd_level(SimdLevel level);

/// The two files that fill the table.
void set_product_ops(SimdOps& ops);
void set_math_ops(SimdOps& ops);

}  // namespace pagezip::cpu
