// Operations on rows in the simulator, against float64.
#include "kernels/cuda/rows.cuh"

#include "tests/kernels_test_util.h"

namespace pagezip::test {
namespace {

class CudaRowsTest : public testing::Test {
 protected:
  ~CudaRowsTest() override { cuda_sim::options() = {}; }
};

TEST_F(CudaRowsTest, RmsNorm) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Prng prng(seed);
    cuda_sim::options().seed = seed % 4;
    const int64_t rows = pick<int64_t>(prng, {0, 1, 3});
    const int64_t cols = pick<int64_t>(prng, {1, 64, 255, 256, 257, 1000});
    Matrix x = random_matrix(prng, rows, cols, 3, 2);
    const Matrix weight = random_matrix(prng, 1, cols);
    const Matrix before = x;
    Matrix other(rows, cols, kNan, 1);
    Matrix& out = seed % 2 == 0 ? x : other;
    constexpr float kEps = 1e-5f;
    cuda::rms_norm(
        {x.data.data(), x.stride, weight.row(0), kEps, out.data.data(), out.stride, rows, cols},
        {});
    for (int64_t i = 0; i < rows; ++i) {
      double squares = 0;
      for (int64_t k = 0; k < cols; ++k) {
        squares += double{before.row(i)[k]} * before.row(i)[k];
      }
      const double root = std::sqrt(squares / static_cast<double>(cols) + kEps);
      for (int64_t k = 0; k < cols; ++k) {
        const double expected = before.row(i)[k] / root * weight.row(0)[k];
        ASSERT_NEAR(out.row(i)[k], expected, std::fabs(expected) * 40 * kRounding);
      }
    }
  }
}

TEST_F(CudaRowsTest, RopeTurnsBothStyles) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Prng prng(seed);
    cuda_sim::options().seed = seed % 4;
    const bool interleaved = seed % 2 == 0;
    const int heads = pick(prng, {1, 3});
    const int head_dim = pick(prng, {2, 64, 80});
    const int half = head_dim / 2;
    const int64_t rows = prng.range(0, 4);
    Matrix x = random_matrix(prng, rows, heads * head_dim, 1, 3);
    const Matrix before = x;
    Matrix cos(rows, half, kNan, 1), sin(rows, half, kNan, 1);
    for (int64_t i = 0; i < rows * half; ++i) {
      const double angle = prng.uniform() * 7;
      cos.row(i / half)[i % half] = static_cast<float>(std::cos(angle));
      sin.row(i / half)[i % half] = static_cast<float>(std::sin(angle));
    }
    cuda::rope({x.data.data(), x.stride, cos.data.data(), sin.data.data(), cos.stride, rows, heads,
                head_dim, interleaved},
               {});
    for (int64_t i = 0; i < rows * heads * half; ++i) {
      const int64_t row = i / half / heads;
      const int64_t k = i % half;
      const int64_t first = i / half % heads * head_dim + (interleaved ? 2 * k : k);
      const int64_t second = first + (interleaved ? 1 : half);
      const double a = before.row(row)[first], b = before.row(row)[second];
      const double c = cos.row(row)[k], s = sin.row(row)[k];
      ASSERT_NEAR(x.row(row)[first], a * c - b * s, 3 * kRounding);
      ASSERT_NEAR(x.row(row)[second], a * s + b * c, 3 * kRounding);
    }
  }
}

double expected_operation(cuda::RowOperation operation, double x, double y) {
  switch (operation) {
    case cuda::RowOperation::kSiluGate:
      return x / (1 + std::exp(-x)) * y;
    case cuda::RowOperation::kGeluTanhGate:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) * y;
    case cuda::RowOperation::kAdd:
      break;
  }
  return x + y;
}

TEST_F(CudaRowsTest, GatesAndAddition) {
  Prng prng(3);
  for (const auto operation : {cuda::RowOperation::kSiluGate, cuda::RowOperation::kGeluTanhGate,
                               cuda::RowOperation::kAdd}) {
    Matrix target = random_matrix(prng, 3, 301, 10, 2);
    const Matrix other = random_matrix(prng, 3, 301, 2, 1);
    target.row(0)[0] = -200;  // exp overflows
    const Matrix before = target;
    cuda::row_operation({operation, target.data.data(), target.stride, other.data.data(),
                         other.stride, target.rows, target.cols},
                        {});
    for (int64_t i = 0; i < 3 * 301; ++i) {
      const double x = before.row(i / 301)[i % 301], y = other.row(i / 301)[i % 301];
      ASSERT_NEAR(target.row(i / 301)[i % 301], expected_operation(operation, x, y),
                  (std::fabs(x * y) + 1) * 40 * kRounding);
    }
  }
}

TEST_F(CudaRowsTest, Embedding) {
  Prng prng(4);
  const Matrix floats = random_matrix(prng, 50, 33, 3);
  std::vector<uint16_t> rounded;
  std::transform(floats.data.begin(), floats.data.end(), std::back_inserter(rounded),
                 float_to_bf16);
  const std::vector<int32_t> tokens{49, 0, 7, 7};
  for (const bool bf16 : {false, true}) {
    const void* table = bf16 ? static_cast<const void*>(rounded.data()) : floats.data.data();
    Matrix out(4, 33, kNan, 2);
    cuda::embedding(
        {table, bf16, tokens.data(), 5.5f, out.data.data(), out.stride, out.rows, out.cols}, {});
    for (int64_t i = 0; i < 4 * 33; ++i) {
      const auto at = static_cast<size_t>(tokens[static_cast<size_t>(i / 33)] * 33 + i % 33);
      const float expected = bf16 ? bf16_to_float(rounded[at]) : floats.data[at];
      EXPECT_EQ(out.row(i / 33)[i % 33], 5.5f * expected);
    }
    EXPECT_TRUE(std::isnan(out.row(0)[33]));
  }
}

TEST_F(CudaRowsTest, RoundRows) {
  Prng prng(5);
  const Matrix x = random_matrix(prng, 3, 301, 1e3, 7);
  std::vector<uint16_t> out(3 * 301 + 1, 77);
  cuda::round_rows({x.data.data(), x.stride, out.data(), 3, 301}, {});
  for (int64_t i = 0; i < 3 * 301; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], float_to_bf16(x.row(i / 301)[i % 301]));
  }
  EXPECT_EQ(out.back(), 77);
}

TEST_F(CudaRowsTest, BestToken) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Prng prng(seed);
    cuda_sim::options().seed = seed % 4;
    const int64_t vocabulary = pick<int64_t>(prng, {1, 31, 256, 1000});
    Matrix logits = random_matrix(prng, 4, vocabulary, 1, 2);
    for (int64_t i = 0; i < vocabulary; ++i) {
      logits.row(1)[i] = static_cast<float>(prng.below(2));  // ties
      logits.row(2)[i] = -std::numeric_limits<float>::infinity();
    }
    logits.row(3)[prng.below(static_cast<uint64_t>(vocabulary))] = kNan;
    std::vector<int32_t> tokens(4, -7);
    cuda::best_token({logits.data.data(), logits.stride, 4, vocabulary, tokens.data()}, {});
    for (int row = 0; row < 2; ++row) {
      const float* values = logits.row(row);
      EXPECT_EQ(tokens[row], std::max_element(values, values + vocabulary) - values);
    }
    EXPECT_EQ(tokens[2], 0);
    EXPECT_EQ(tokens[3], -1);
  }
}

}  // namespace
}  // namespace pagezip::test
