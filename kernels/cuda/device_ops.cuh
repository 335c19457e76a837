// Every instruction that C++ has no word for, and the way to launch a kernel. The only file with
// PTX in it. Without nvcc each operation is a software twin (tests/cuda_sim), so that kernels run
// from the same source on machines without a GPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#elif !defined(PAGEZIP_CUDA_SIM)
#error "CUDA kernels need nvcc, or the simulator's headers before them"
#endif

#include "kernels/cuda/stream.h"

namespace pagezip::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

struct Grid {
  unsigned x = 1;
  unsigned y = 1;
};

#if defined(__CUDACC__)

// ---- launches ----

/// Kernels take one POD of parameters. RETURNS: why the launch failed, or cudaSuccess.
template <typename Params>
Status launch(void (*kernel)(Params), Grid grid, int threads, size_t shared_bytes, Stream stream,
              const Params& params) {
  // Beyond 48 KiB a kernel has to ask.
  if (const Status status = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
      status != cudaSuccess) {
    return status;
  }
  kernel<<<dim3(grid.x, grid.y), static_cast<unsigned>(threads), shared_bytes, stream>>>(params);
  return cudaGetLastError();
}

template <typename Shared>
__device__ __forceinline__ Shared& dynamic_shared() {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  return *reinterpret_cast<Shared*>(shared_bytes);
}

// ---- 16-bit floats, as bit patterns ----

__host__ __device__ __forceinline__ float f16_to_f32(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
__host__ __device__ __forceinline__ float bf16_to_f32(uint16_t bits) {
  return __bfloat162float(__ushort_as_bfloat16(bits));
}
__device__ __forceinline__ uint16_t f32_to_f16(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
/// `low` in bits 0-15, `high` in 16-31, each rounded to nearest even.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t float_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float bits_float(uint32_t bits) { return __uint_as_float(bits); }

/// 2^x with a relative error of about 2^-22; 2^-inf is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// ---- tensor cores: c += a · b, one warp, m16n8k16 ----

__device__ __forceinline__ void product_f16(float (&c)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void product_bf16(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void product_s8(int32_t (&c)[4], const uint32_t (&a)[2],
                                           const uint32_t (&b)[1]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// ---- 8 x 8 matrices of 16-bit elements from shared memory; lane i names row i % 8 of matrix i / 8

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&out)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(out[0]), "=r"(out[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(out[0]), "=r"(out[1])
               : "r"(shared_address(row))
               : "memory");
}

// ---- asynchronous copies of 16 or 4 bytes into shared memory; zeros where !valid ----

template <int kBytes>
__device__ __forceinline__ void copy_async(void* target, const void* source, bool valid) {
  static_assert(kBytes == 16 || kBytes == 4);
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {  // past the first-level cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
                 "l"(source), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(target)),
                 "l"(source), "r"(bytes)
                 : "memory");
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for this thread's groups but the last kLeft; other threads see them after a barrier.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

#else  // the simulator

template <typename Params>
Status launch(void (*kernel)(Params), Grid grid, int threads, size_t shared_bytes, Stream stream,
              const Params& params) {
  cuda_sim::run_on(stream, [=] {
    cuda_sim::launch(kernel, {grid.x, grid.y, 1}, {static_cast<unsigned>(threads), 1, 1},
                     shared_bytes, params);
  });
  return 0;
}

template <typename Shared>
Shared& dynamic_shared() {
  cuda_sim::check_shared(cuda_sim::shared_memory(), sizeof(Shared), 16, "dynamic_shared");
  return *reinterpret_cast<Shared*>(cuda_sim::shared_memory());
}

inline float f16_to_f32(uint16_t bits) { return f16_to_float(bits); }
inline float bf16_to_f32(uint16_t bits) { return bf16_to_float(bits); }
inline uint16_t f32_to_f16(float value) { return float_to_f16(value); }
inline uint32_t pack_f16(float low, float high) {
  return float_to_f16(low) | uint32_t{float_to_f16(high)} << 16;
}
inline uint32_t pack_bf16(float low, float high) {
  return float_to_bf16(low) | uint32_t{float_to_bf16(high)} << 16;
}
inline uint32_t float_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline float bits_float(uint32_t bits) { return std::bit_cast<float>(bits); }

inline float exp2_approx(float x) { return std::exp2(x); }

inline void product_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  cuda_sim::product(cuda_sim::kProductF16, c, a, b);
}
inline void product_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  cuda_sim::product(cuda_sim::kProductBf16, c, a, b);
}
inline void product_s8(int32_t (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  cuda_sim::product(cuda_sim::kProductS8, c, a, b);
}

template <int kMatrices>
void load_matrices(uint32_t (&out)[kMatrices], const void* row) {
  cuda_sim::load_matrices<kMatrices, false>(out, row);
}
template <int kMatrices>
void load_matrices_transposed(uint32_t (&out)[kMatrices], const void* row) {
  cuda_sim::load_matrices<kMatrices, true>(out, row);
}

template <int kBytes>
void copy_async(void* target, const void* source, bool valid) {
  static_assert(kBytes == 16 || kBytes == 4);
  cuda_sim::copy_async(target, source, kBytes, valid ? kBytes : 0);
}
inline void commit_copies() { cuda_sim::commit_copies(); }
template <int kLeft>
void wait_copies() {
  cuda_sim::wait_copies(kLeft);
}

#endif

}  // namespace pagezip::cuda
