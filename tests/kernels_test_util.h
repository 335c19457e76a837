// What the suites over the kernel backends share: the list of backends and random inputs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/prng.h"
#include "gtest/gtest.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/self_test.h"
#include "kernels/cpu/simd.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

namespace pagezip::test {

/// Every suite runs over each of these. PAGEZIP_TEST_ISA (baseline or avx2) holds the CPU backend
/// back, so that the paths of lesser machines are tested on any.
inline std::vector<const Kernels*> backends() {
  const Kernels* cpu_backend = &cpu_kernels();
  const char* isa = std::getenv("PAGEZIP_TEST_ISA");
  if (isa != nullptr) {
    const bool baseline = std::string(isa) == "baseline";
    cpu::use_simd_level(std::min(cpu::best_simd_level(),
                                 baseline ? cpu::SimdLevel::kBaseline : cpu::SimdLevel::kAvx2));
    cpu::set_dense_isa(std::min(cpu::best_dense_isa(),
                                baseline ? cpu::DenseIsa::kPortable : cpu::DenseIsa::kAvx2));
  }
  return {&reference_kernels(), cpu_backend};
}

inline std::string backend_name(const testing::TestParamInfo<const Kernels*>& backend) {
  return backend.param->name;
}

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Tolerances are for float32 arithmetic: half an ulp of 1 per rounding.
inline constexpr double kRounding = 0x1.0p-24;
/// Roundings granted to exp() and a final division.
inline constexpr double kFunctionRoundings = 32;

/// An owned matrix. `padding` extra values separate rows, so that the stride counts.
struct Matrix {
  int64_t rows;
  int64_t cols;
  int64_t stride;
  std::vector<float> data;

  Matrix(int64_t r, int64_t c, float fill = 0, int64_t padding = 0)
      : rows(r),
        cols(c),
        stride(c + padding),
        data(static_cast<size_t>(std::max<int64_t>(1, r * stride)), fill) {}
  MatrixView<float> view() { return {data.data(), rows, cols, stride}; }
  MatrixView<const float> view() const { return {data.data(), rows, cols, stride}; }
  float* row(int64_t i) { return data.data() + i * stride; }
  const float* row(int64_t i) const { return data.data() + i * stride; }
};

inline float random_float(Prng& prng, double bound) {
  return static_cast<float>((2 * prng.uniform() - 1) * bound);
}

/// Uniform in [-bound, bound]; the padding is NaN.
inline Matrix random_matrix(Prng& prng, int64_t rows, int64_t cols, double bound = 1,
                            int64_t padding = 0) {
  Matrix matrix(rows, cols, kNan, padding);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < cols; ++k) {
      matrix.row(i)[k] = random_float(prng, bound);
    }
  }
  return matrix;
}

inline void copy_rows(const Matrix& source, int64_t source_row, Matrix& target, int64_t target_row,
                      int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(source.row(source_row + i), source.cols, target.row(target_row + i));
  }
}

template <typename T>
T pick(Prng& prng, std::initializer_list<T> choices) {
  return choices.begin()[prng.below(choices.size())];
}

inline std::vector<uint32_t> shuffled(Prng& prng, uint32_t count) {
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) {
    order[i] = i;
    std::swap(order[i], order[prng.below(i + 1)]);
  }
  return order;
}

/// Equality of bits, so that NaN equals itself and -0 differs from 0.
inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                             const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << ", value " << i << ": " << a[i] << " vs " << b[i];
  }
}

/// A weight matrix of random blocks with the bytes that it borrows.
struct TestWeight {
  std::vector<std::byte> bytes;
  Weight weight;
};

inline std::vector<WeightType> all_weight_types() {
  std::vector<WeightType> types;
  for (int i = 0; i < kWeightTypes; ++i) {
    types.push_back(static_cast<WeightType>(i));
  }
  return types;
}

/// Byte offsets of the float16 scales in a block of a quantised type.
inline std::vector<size_t> scale_offsets(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

inline TestWeight random_weight(Prng& prng, WeightType type, int64_t rows, int64_t cols) {
  TestWeight result;
  const auto put_half = [&](size_t at, uint16_t half) {
    std::memcpy(&result.bytes[at], &half, sizeof(half));
  };
  result.bytes.resize(static_cast<size_t>(rows * row_bytes(type, cols)));
  const auto block_bytes = static_cast<size_t>(info(type).block_bytes);
  for (size_t block = 0; block < result.bytes.size(); block += block_bytes) {
    const float value = random_float(prng, 1);
    if (type == WeightType::kF32) {
      std::memcpy(&result.bytes[block], &value, sizeof(value));
    } else if (type == WeightType::kF16 || type == WeightType::kBF16) {
      put_half(block, type == WeightType::kF16 ? float_to_f16(value) : float_to_bf16(value));
    } else {
      for (size_t i = 0; i < block_bytes; ++i) {
        result.bytes[block + i] = static_cast<std::byte>(prng.next());
      }
      for (const size_t offset : scale_offsets(type)) {
        put_half(block + offset, float_to_f16(random_float(prng, 0.1)));
      }
    }
  }
  result.weight.type = type;
  result.weight.rows = rows;
  result.weight.cols = cols;
  result.weight.source = result.bytes.data();
  return result;
}

}  // namespace pagezip::test
