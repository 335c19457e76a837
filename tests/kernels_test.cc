// Dense operations, for every backend, against naive float64 loops. The operations on pages are in
// kernels_attention_test.cc, the promises about equal bits in kernels_invariance_test.cc.
#include <numbers>

#include "tests/kernels_test_util.h"

namespace pagezip::test {
namespace {

class DenseKernelsTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
  ThreadPool pool_{2};
};

INSTANTIATE_TEST_SUITE_P(Backends, DenseKernelsTest, testing::ValuesIn(backends()), backend_name);

bool is_quantised(WeightType type) { return info(type).block_values > 1; }

/// The exact value of each weight, and a bound on what a sum of its parts may hold in between.
struct ExactWeights {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

ExactWeights exact_weights(const TestWeight& weight) {
  ExactWeights exact;
  const WeightTypeInfo& format = info(weight.weight.type);
  if (!is_quantised(weight.weight.type)) {
    std::vector<float> values(static_cast<size_t>(weight.weight.rows * weight.weight.cols));
    dequantize(weight.weight.type, weight.bytes.data(), values.data(),
               static_cast<int64_t>(values.size()));
    for (const float value : values) {
      exact.values.push_back(static_cast<double>(value));
      exact.magnitudes.push_back(std::fabs(static_cast<double>(value)));
    }
    return exact;
  }
  for (size_t at = 0; at < weight.bytes.size(); at += static_cast<size_t>(format.block_bytes)) {
    UnpackedBlock block;
    unpack_block(weight.weight.type, &weight.bytes[at], block);
    for (int i = 0; i < block.values; ++i) {
      const int j = i / block.sub;
      const double scale = static_cast<double>(block.d) * block.scale_int[j];
      const double minimum =
          block.has_minimum ? static_cast<double>(block.dmin) * block.minimum_int[j] : 0.0;
      exact.values.push_back(scale * (block.quant[i] - block.offset) - minimum);
      exact.magnitudes.push_back(std::fabs(scale) * (block.quant[i] + block.offset) +
                                 std::fabs(minimum));
    }
  }
  return exact;
}

/// x as quantised weights meet it under kQ8, by the formula in kernels.h.
Matrix rounded_to_q8(const Matrix& x) {
  Matrix rounded = x;
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t begin = 0; begin < x.cols; begin += 32) {
      float largest = 0;
      for (int64_t k = begin; k < begin + 32; ++k) {
        largest = std::max(largest, std::fabs(x.row(i)[k]));
      }
      const float scale = largest / 127.0f;
      for (int64_t k = begin; k < begin + 32; ++k) {
        rounded.row(i)[k] =
            largest > 0 ? scale * std::nearbyint(x.row(i)[k] * (127.0f / largest)) : 0.0f;
      }
    }
  }
  return rounded;
}

void expect_product(const TestWeight& weight, const Matrix& x, ActivationType activations,
                    const float* bias, const Matrix& out) {
  const ExactWeights exact = exact_weights(weight);
  const bool q8 = activations == ActivationType::kQ8 && is_quantised(weight.weight.type);
  const Matrix input = q8 ? rounded_to_q8(x) : x;
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t r = 0; r < weight.weight.rows; ++r) {
      double sum = bias == nullptr ? 0.0 : static_cast<double>(bias[r]);
      double magnitude = std::fabs(sum);
      for (int64_t k = 0; k < x.cols; ++k) {
        const auto at = static_cast<size_t>(r * x.cols + k);
        sum += exact.values[at] * static_cast<double>(input.row(i)[k]);
        magnitude += exact.magnitudes[at] * std::fabs(static_cast<double>(input.row(i)[k]));
      }
      // Integer products are exact, so only the sum over blocks rounds; the input of the expected
      // value was itself rounded once.
      const auto terms = static_cast<double>(q8 ? x.cols / 16 : x.cols);
      ASSERT_NEAR(out.row(i)[r], sum, magnitude * kRounding * (terms + 8))
          << info(weight.weight.type).name << (q8 ? " q8" : "") << ", [" << weight.weight.rows
          << ", " << x.cols << "], row " << i << " of " << x.rows << ", output " << r;
    }
  }
}

void test_matmul(const Kernels& kernels, ThreadPool& pool, Prng& prng, WeightType type,
                 int64_t rows, int64_t inputs, ActivationType activations) {
  const int64_t cols = info(type).block_values == 256 ? pick<int64_t>(prng, {256, 512, 768})
                                                      : pick<int64_t>(prng, {32, 64, 96, 256, 576});
  TestWeight weight = random_weight(prng, type, rows, cols);
  kernels.pack(weight.weight, activations, pool);
  Matrix x = random_matrix(prng, inputs, cols, 1, pick<int64_t>(prng, {0, 7}));
  if (inputs > 1) {
    std::fill_n(x.row(1), 32, 0.0f);  // a block whose scale is 0
  }
  Activations prepared;
  kernels.prepare(x.view(), activations, prepared, pool);
  const Matrix bias = random_matrix(prng, 1, rows);
  const float* bias_or_null = prng.chance(0.5) ? bias.row(0) : nullptr;
  Matrix out(inputs, rows, kNan, 2);
  const MatmulTarget target{&weight.weight, bias_or_null, out.view()};
  kernels.matmul(prepared, activations, std::span(&target, 1), pool);
  expect_product(weight, x, activations, bias_or_null, out);
  for (int64_t i = 0; i < inputs; ++i) {
    ASSERT_TRUE(std::isnan(out.row(i)[rows])) << "wrote between the rows";
  }
}

TEST_P(DenseKernelsTest, MatmulOfEveryWeightType) {
  Prng prng(1);
  for (const WeightType type : all_weight_types()) {
    for (const int64_t rows : {1, 15, 16, 17, 100}) {
      for (const int64_t inputs : {0, 1, 2, 5, 12, 13, 33}) {
        for (const ActivationType activations : {ActivationType::kQ8, ActivationType::kF32}) {
          test_matmul(kernels(), pool_, prng, type, rows, inputs, activations);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_P(DenseKernelsTest, MatmulOfSeveralTargets) {
  Prng prng(2);
  for (const ActivationType activations : {ActivationType::kQ8, ActivationType::kF32}) {
    for (const int64_t inputs : {1, 3, 14}) {
      const Matrix x = random_matrix(prng, inputs, 512);
      const Matrix bias = random_matrix(prng, 1, 64);
      Activations prepared;
      kernels().prepare(x.view(), activations, prepared, pool_);
      std::vector<TestWeight> weights;
      std::vector<Matrix> outs;
      for (const WeightType type : {WeightType::kQ4_K, WeightType::kF16, WeightType::kQ6_K,
                                    WeightType::kQ8_0, WeightType::kF32}) {
        const int64_t rows = prng.range(1, 64);
        weights.push_back(random_weight(prng, type, rows, 512));
        kernels().pack(weights.back().weight, activations, pool_);
        outs.emplace_back(inputs, rows, kNan);
      }
      std::vector<MatmulTarget> targets;
      for (size_t t = 0; t < weights.size(); ++t) {
        targets.push_back({&weights[t].weight, t % 2 == 0 ? bias.row(0) : nullptr, outs[t].view()});
      }
      kernels().matmul(prepared, activations, targets, pool_);
      for (size_t t = 0; t < weights.size(); ++t) {
        expect_product(weights[t], x, activations, targets[t].bias, outs[t]);
      }
    }
  }
}

// Activations with one large value per block, as residual streams have, and of any magnitude.
TEST_P(DenseKernelsTest, MatmulOfOutliers) {
  Prng prng(3);
  for (const double size : {1e-20, 1e-3, 1e4}) {
    TestWeight weight = random_weight(prng, WeightType::kQ5_K, 40, 256);
    kernels().pack(weight.weight, ActivationType::kQ8, pool_);
    Matrix x = random_matrix(prng, 3, 256, size);
    for (int64_t k = 5; k < 256; k += 32) {
      x.row(0)[k] = static_cast<float>(100 * size);
      x.row(1)[k] = static_cast<float>(-100 * size);
    }
    Activations prepared;
    kernels().prepare(x.view(), ActivationType::kQ8, prepared, pool_);
    Matrix out(3, 40);
    const MatmulTarget target{&weight.weight, nullptr, out.view()};
    kernels().matmul(prepared, ActivationType::kQ8, std::span(&target, 1), pool_);
    expect_product(weight, x, ActivationType::kQ8, nullptr, out);
  }
}

TEST_P(DenseKernelsTest, RmsNorm) {
  Prng prng(4);
  for (const int64_t cols : {16, 64, 80, 576, 1001}) {
    for (const int64_t rows : {0, 1, 2, 33}) {
      for (const float eps : {1e-6f, 1e-2f}) {
        Matrix x = random_matrix(prng, rows, cols, 0.1, 3);
        const Matrix before = x;
        const Matrix weight = random_matrix(prng, 1, cols, 2);
        Matrix out(rows, cols, kNan, 1);
        kernels().rms_norm(x.view(), weight.row(0), eps, out.view(), pool_);
        kernels().rms_norm(x.view(), weight.row(0), eps, x.view(), pool_);
        for (int64_t i = 0; i < rows; ++i) {
          double squares = 0;
          for (int64_t k = 0; k < cols; ++k) {
            squares += std::pow(static_cast<double>(before.row(i)[k]), 2);
          }
          const double root =
              std::sqrt(squares / static_cast<double>(cols) + static_cast<double>(eps));
          for (int64_t k = 0; k < cols; ++k) {
            const double expected = static_cast<double>(before.row(i)[k]) / root *
                                    static_cast<double>(weight.row(0)[k]);
            const double error =
                std::fabs(expected) * kRounding * (static_cast<double>(cols) / 2 + 8);
            ASSERT_NEAR(out.row(i)[k], expected, error) << "[" << rows << ", " << cols << "]";
            ASSERT_EQ(x.row(i)[k], out.row(i)[k]) << "in place";
          }
        }
      }
    }
  }
}

TEST_P(DenseKernelsTest, Rope) {
  Prng prng(5);
  for (const int head_dim : {16, 64, 80, 128, 256}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      const int64_t rows = prng.range(0, 5);
      const int heads = static_cast<int>(prng.range(1, 5));
      Matrix x = random_matrix(prng, rows, heads * head_dim, 1, 3);
      const Matrix before = x;
      const Matrix angles = random_matrix(prng, rows, head_dim / 2, 100);
      Matrix cos = angles;
      Matrix sin = angles;
      for (size_t i = 0; i < angles.data.size(); ++i) {
        cos.data[i] = std::cos(angles.data[i]);
        sin.data[i] = std::sin(angles.data[i]);
      }
      kernels().rope(x.view(), head_dim, style, cos.view(), sin.view(), pool_);
      for (int64_t item = 0; item < rows * heads * head_dim; ++item) {
        const int64_t row = item / (heads * head_dim);
        const int64_t column = item % (heads * head_dim);
        const int64_t d = column % head_dim;
        const bool interleaved = style == RopeStyle::kInterleaved;
        const bool is_first = interleaved ? d % 2 == 0 : d < head_dim / 2;
        const int64_t step = interleaved ? 1 : head_dim / 2;
        const int64_t angle = interleaved ? d / 2 : d % (head_dim / 2);
        const double own = static_cast<double>(before.row(row)[column]);
        const double other =
            static_cast<double>(before.row(row)[is_first ? column + step : column - step]);
        const double expected =
            own * static_cast<double>(cos.row(row)[angle]) +
            (is_first ? -1 : 1) * other * static_cast<double>(sin.row(row)[angle]);
        ASSERT_NEAR(x.row(row)[column], expected, 4 * kRounding) << "head_dim " << head_dim;
      }
    }
  }
}

double expected_gate(GateFunction function, double x) {
  if (function == GateFunction::kSilu) {
    return x / (1 + std::exp(-x));
  }
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * std::pow(x, 3))));
}

TEST_P(DenseKernelsTest, Gate) {
  Prng prng(6);
  for (const GateFunction function : {GateFunction::kSilu, GateFunction::kGeluTanh}) {
    for (const int64_t cols : {1, 15, 16, 17, 576}) {
      for (const double bound : {1.0, 10.0, 1e4}) {
        Matrix gate = random_matrix(prng, 3, cols, bound, 2);
        gate.row(1)[cols / 2] = 0;
        const Matrix before = gate;
        const Matrix up = random_matrix(prng, 3, cols, 2);
        kernels().gate(function, gate.view(), up.view(), pool_);
        for (int64_t i = 0; i < 3 * cols; ++i) {
          const double x = static_cast<double>(before.row(i / cols)[i % cols]);
          const double factor = static_cast<double>(up.row(i / cols)[i % cols]);
          // 1 + tanh() cancels for negative x, and exp() of a float rounds its argument. Where
          // either function has vanished, what is left is below the smallest normal float.
          const double error = std::fabs(x * factor) * kRounding * kFunctionRoundings + 1e-30;
          ASSERT_NEAR(gate.row(i / cols)[i % cols], expected_gate(function, x) * factor, error)
              << "x = " << x;
        }
      }
    }
  }
}

TEST_P(DenseKernelsTest, Add) {
  Prng prng(7);
  for (const int64_t cols : {1, 15, 16, 17, 576}) {
    Matrix x = random_matrix(prng, 3, cols, 1, 2);
    const Matrix before = x;
    const Matrix y = random_matrix(prng, 3, cols, 1e-3, 1);
    kernels().add(x.view(), y.view(), pool_);
    for (int64_t i = 0; i < 3 * cols; ++i) {
      ASSERT_EQ(x.row(i / cols)[i % cols],
                before.row(i / cols)[i % cols] + y.row(i / cols)[i % cols]);
    }
  }
}

// The 8-bit form that the reference fills is the documented one.
TEST(ReferenceKernelsTest, PrepareFillsTheDocumentedForm) {
  Prng prng(8);
  ThreadPool pool(1);
  Matrix x(2, 80);
  for (int64_t k = 0; k < 80; ++k) {
    x.row(1)[k] = random_float(prng, 1);
  }
  // scale 1: halves round to even.
  for (int64_t k = 0; k < 32; ++k) {
    x.row(1)[k] = static_cast<float>(k) - 15.5f;
  }
  x.row(1)[0] = -127.0f;
  Activations prepared;
  reference_kernels().prepare(x.view(), ActivationType::kQ8, prepared, pool);
  ASSERT_EQ(prepared.blocks, 3);
  ASSERT_EQ(prepared.q8.size(), 2u * 96);
  EXPECT_EQ(prepared.scales[0], 0.0f);
  EXPECT_EQ(prepared.scales[3], 1.0f);
  EXPECT_EQ(prepared.q8[96], -127);
  EXPECT_EQ(prepared.q8[96 + 1], -14);
  EXPECT_EQ(prepared.q8[96 + 2], -14);
  EXPECT_EQ(prepared.q8[96 + 16], 0);
  EXPECT_EQ(prepared.q8[96 + 17], 2);
  EXPECT_EQ(prepared.q8[96 + 80], 0) << "padding";
  for (size_t half = 0; half < 12; ++half) {
    int32_t sum = 0;
    for (size_t i = 0; i < 16; ++i) {
      sum += prepared.q8[half * 16 + i];
    }
    EXPECT_EQ(prepared.sums[half], sum);
  }
}

// Their codes would be taken for floats.
TEST(KernelsDeath, QuantisedPages) {
  for (const Kernels* kernels : {&cpu_kernels(), &reference_kernels()}) {
    CopyPairsArgs args;
    args.source_page = {KvType::kI8, KvType::kI8, 16, 64, KeyOrder::kPlain};
    args.target_page = args.source_page;
    ThreadPool pool(1);
    EXPECT_DEATH(kernels->copy_pairs(args, pool), "is_quantised");
  }
}

}  // namespace
}  // namespace pagezip::test
