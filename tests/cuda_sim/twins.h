// Software twins of the instructions that kernels/cuda/device_ops.cuh wraps: tensor core products
// and the loads that feed them. Fragment layouts are those of the PTX manual for m16n8k16 and
// ldmatrix.m8n8.b16; sums are exact for integers and in float32, in order of k, for the others (how
// the hardware rounds them isn't documented).
#pragma once

#include <cstdint>

#include "kernels/half.h"
#include "tests/cuda_sim/cuda_sim.h"

namespace pagezip::cuda_sim {

/// D = A · B + C over one warp. `a` has 16 x 16 elements, `b` 16 x 8, `c` and the result 16 x 8.
template <typename Sum>
struct ProductOperand {
  const uint32_t* a;
  const uint32_t* b;
  Sum* c;
};

/// Element (row, k) of A: two 16-bit elements a register, registers in the order (row, k),
/// (row + 8, k), (row, k + 8), (row + 8, k + 8); lane = 4 * row + k / 2 within each quarter.
inline uint16_t a_element_16(void** operands, int row, int k) {
  const int lane = row % 8 * 4 + k % 8 / 2;
  const auto* a = *static_cast<const uint32_t* const*>(operands[lane]);
  return static_cast<uint16_t>(a[row / 8 + k / 8 * 2] >> (k % 2 * 16));
}
/// Element (k, column) of B: lane = 4 * column + k / 2.
inline uint16_t b_element_16(const uint32_t* b, int k) {
  return static_cast<uint16_t>(b[k / 8] >> (k % 2 * 16));
}

template <float (*kWiden)(uint16_t)>
void combine_product(void** operands, uint32_t mask) {
  if (mask != kAllLanes) {
    throw Failure("the whole warp must take part");
  }
  float a[16][16];
  float b[8][16];
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 16; ++row) {
      a[row][k] = kWiden(a_element_16(operands, row, k));
    }
    for (int column = 0; column < 8; ++column) {
      const auto& operand = *static_cast<ProductOperand<float>*>(operands[column * 4 + k % 8 / 2]);
      b[column][k] = kWiden(b_element_16(operand.b, k));
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    float* c = static_cast<ProductOperand<float>*>(operands[lane])->c;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8;
      const int column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        c[i] += a[row][k] * b[column][k];
      }
    }
  }
}

/// The same with 8-bit elements, four a register: A has (row, k) and (row + 8, k) with lane =
/// 4 * row + k / 4, B has (k, column) with lane = 4 * column + k / 4.
inline void combine_product_s8(void** operands, uint32_t mask) {
  if (mask != kAllLanes) {
    throw Failure("the whole warp must take part");
  }
  const auto operand = [&](int lane) -> ProductOperand<int32_t>& {
    return *static_cast<ProductOperand<int32_t>*>(operands[lane]);
  };
  const auto byte = [](uint32_t word, int k) {
    return int32_t{static_cast<int8_t>(word >> (k % 4 * 8))};
  };
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8;
      const int column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        operand(lane).c[i] += byte(operand(row % 8 * 4 + k / 4).a[row / 8], k) *
                              byte(operand(column * 4 + k / 4).b[0], k);
      }
    }
  }
}

inline constexpr Meeting kProductF16{"mma.m16n8k16.f16", combine_product<f16_to_float>};
inline constexpr Meeting kProductBf16{"mma.m16n8k16.bf16", combine_product<bf16_to_float>};
inline constexpr Meeting kProductS8{"mma.m16n8k16.s8", combine_product_s8};

template <typename Sum>
void product(const Meeting& meeting, Sum (&c)[4], const uint32_t* a, const uint32_t* b) {
  ProductOperand<Sum> operand{a, b, c};
  meet_warp(meeting, kAllLanes, &operand);
}

struct LoadOperand {
  const std::byte* row;  // 16 bytes: row (lane % 8) of matrix (lane / 8)
  uint32_t* out;         // one register for each matrix
};

template <int kMatrices, bool kTransposed>
void combine_load(void** operands, uint32_t mask) {
  if (mask != kAllLanes) {
    throw Failure("the whole warp must take part");
  }
  const auto element = [&](int matrix, int row, int column) {
    uint16_t value;
    std::memcpy(&value,
                static_cast<LoadOperand*>(operands[matrix * 8 + row])->row + ptrdiff_t{2} * column,
                2);
    return uint32_t{value};
  };
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int m = 0; m < kMatrices; ++m) {
      const int outer = lane / 4;
      const int inner = lane % 4 * 2;
      static_cast<LoadOperand*>(operands[lane])->out[m] =
          kTransposed ? element(m, inner, outer) | element(m, inner + 1, outer) << 16
                      : element(m, outer, inner) | element(m, outer, inner + 1) << 16;
    }
  }
}

/// ldmatrix: lane i names row i % 8 of matrix i / 8; lanes past the last matrix name nothing.
template <int kMatrices, bool kTransposed>
void load_matrices(uint32_t (&out)[kMatrices], const void* row) {
  static constexpr Meeting kLoad{"ldmatrix", combine_load<kMatrices, kTransposed>};
  if (lane() < 8 * kMatrices) {
    check_shared(row, 16, 16, "ldmatrix");
  }
  LoadOperand operand{static_cast<const std::byte*>(row), out};
  meet_warp(kLoad, kAllLanes, &operand);
}

}  // namespace pagezip::cuda_sim
