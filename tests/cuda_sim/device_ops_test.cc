// The software twins against products and layouts written down from the PTX manual.
#include "kernels/cuda/device_ops.cuh"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"
#include "kernels/half.h"

namespace pagezip::cuda_sim {
namespace {

constexpr int kM = 16, kN = 8, kK = 16;

/// Runs `body` on one warp and 4 KiB of shared memory.
template <typename Body>
void one_warp(const Body& body) {
  options().seed = 1;
  run_grid({1, 1, 1}, {32, 1, 1}, 4096, false, body);
  options() = {};
}

/// Figures "mma.m16n8k16 with floating point type": register r of A at lane l holds row groupID (+8
/// for r odd) and columns 2 * threadID_in_group (+8 for r >= 2) and the next.
TEST(DeviceOpsTest, HalfProducts) {
  for (const bool bf16 : {false, true}) {
    Prng prng(7);
    std::vector<uint16_t> a(kM * kK), b(kK * kN);
    const auto widen = bf16 ? bf16_to_float : f16_to_float;
    for (auto* matrix : {&a, &b}) {
      for (auto& value : *matrix) {
        const auto random = static_cast<float>(2 * prng.uniform() - 1);
        value = bf16 ? float_to_bf16(random) : float_to_f16(random);
      }
    }
    std::vector<float> d(kM * kN);
    one_warp([&] {
      const int group = lane() / 4, in_group = lane() % 4;
      uint32_t ra[4], rb[2];
      for (int r = 0; r < 4; ++r) {
        const int at = (group + r % 2 * 8) * kK + in_group * 2 + r / 2 * 8;
        ra[r] = a[at] | uint32_t{a[at + 1]} << 16;
      }
      for (int r = 0; r < 2; ++r) {
        const int k = in_group * 2 + r * 8;
        rb[r] = b[k * kN + group] | uint32_t{b[(k + 1) * kN + group]} << 16;
      }
      float c[4];
      for (int i = 0; i < 4; ++i) c[i] = static_cast<float>(100 * lane() + i);
      bf16 ? cuda::product_bf16(c, ra, rb) : cuda::product_f16(c, ra, rb);
      for (int i = 0; i < 4; ++i) {
        d[(group + i / 2 * 8) * kN + in_group * 2 + i % 2] =
            c[i] - static_cast<float>(100 * lane() + i);
      }
    });
    for (int row = 0; row < kM; ++row) {
      for (int column = 0; column < kN; ++column) {
        double expected = 0;
        for (int k = 0; k < kK; ++k) {
          expected += double{widen(a[row * kK + k])} * widen(b[k * kN + column]);
        }
        EXPECT_NEAR(d[row * kN + column], expected, 1e-2) << row << ' ' << column;
      }
    }
  }
}

TEST(DeviceOpsTest, IntegerProductsAreExact) {
  Prng prng(8);
  std::vector<int8_t> a(kM * kK), b(kK * kN);
  for (auto* matrix : {&a, &b}) {
    for (auto& value : *matrix) value = static_cast<int8_t>(prng.range(-128, 127));
  }
  a[0] = b[0] = -128;
  std::vector<int32_t> d(kM * kN);
  one_warp([&] {
    const int group = lane() / 4, in_group = lane() % 4;
    uint32_t ra[2] = {}, rb[1] = {};
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < 2; ++r) {
        ra[r] |= uint32_t{static_cast<uint8_t>(a[(group + 8 * r) * kK + in_group * 4 + i])}
                 << (8 * i);
      }
      rb[0] |= uint32_t{static_cast<uint8_t>(b[(in_group * 4 + i) * kN + group])} << (8 * i);
    }
    int32_t c[4] = {1, 2, 3, 4};
    cuda::product_s8(c, ra, rb);
    for (int i = 0; i < 4; ++i) {
      d[(group + i / 2 * 8) * kN + in_group * 2 + i % 2] = c[i] - (i + 1);
    }
  });
  for (int row = 0; row < kM; ++row) {
    for (int column = 0; column < kN; ++column) {
      int32_t expected = 0;
      for (int k = 0; k < kK; ++k) expected += a[row * kK + k] * b[k * kN + column];
      EXPECT_EQ(d[row * kN + column], expected);
    }
  }
}

TEST(DeviceOpsTest, LoadMatrices) {
  // Element (row, column) of matrix m is 1000 m + 10 row + column; rows lie 32 bytes apart.
  one_warp([] {
    auto* elements = reinterpret_cast<uint16_t*>(shared_memory());
    const int m = lane() / 8, r = lane() % 8;
    for (int column = 0; column < 8; ++column) {
      elements[lane() * 16 + column] = static_cast<uint16_t>(1000 * m + 10 * r + column);
    }
    __syncwarp();
    uint32_t x4[4], x4t[4], x2[2], x2t[2];
    cuda::load_matrices(x4, elements + lane() * 16);
    cuda::load_matrices_transposed(x4t, elements + lane() * 16);
    const std::byte* row = lane() < 16 ? shared_memory() + lane() * 32 : nullptr;
    cuda::load_matrices(x2, row);
    cuda::load_matrices_transposed(x2t, row);
    const int outer = lane() / 4, inner = lane() % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const auto base = static_cast<uint32_t>(1000 * i);
      const auto plain = base + static_cast<uint32_t>(10 * outer + inner);
      const auto transposed = base + static_cast<uint32_t>(10 * inner + outer);
      EXPECT_EQ(x4[i], plain | (plain + 1) << 16);
      EXPECT_EQ(x4t[i], transposed | (transposed + 10) << 16);
      if (i < 2) {
        EXPECT_EQ(x2[i], x4[i]);
        EXPECT_EQ(x2t[i], x4t[i]);
      }
    }
  });
}

TEST(DeviceOpsTest, Conversions) {
  for (const float value : {0.0f, -0.0f, 1.0f, -2.5f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f,
                            65504.0f, 65520.0f, 1e-7f, 3e38f}) {
    EXPECT_EQ(cuda::pack_f16(value, 2), float_to_f16(value) | 0x4000u << 16);
    EXPECT_EQ(cuda::pack_bf16(2, value), 0x4000u | uint32_t{float_to_bf16(value)} << 16);
    EXPECT_EQ(cuda::f16_to_f32(cuda::f32_to_f16(value)), f16_to_float(float_to_f16(value)));
    EXPECT_EQ(cuda::bits_float(cuda::float_bits(value)), value);
  }
}

}  // namespace
}  // namespace pagezip::cuda_sim
