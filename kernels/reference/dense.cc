// Dense operations of the reference backend: plain loops in float64, rounded once at the end.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/math.h"
#include "kernels/reference/operations.h"

namespace pagezip::reference {
namespace {

constexpr int kActivationBlock = 32;

bool is_quantised(WeightType type) { return info(type).block_values > 1; }

/// One block of a row in the 8-bit form of Activations.
void quantise_block(const float* values, int64_t count, int8_t* q8, float& scale, int32_t* sums) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
  }
  const bool zero = largest < kQ8Smallest;
  scale = zero ? 0.0f : largest / 127.0f;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  sums[0] = sums[1] = 0;
  for (int64_t i = 0; i < kActivationBlock; ++i) {
    q8[i] = static_cast<int8_t>(i < count ? std::nearbyint(values[i] * inverse) : 0.0f);
    sums[i / 16] += q8[i];
  }
}

double dot(const float* w, const float* x, int64_t cols) {
  double sum = 0;
  for (int64_t k = 0; k < cols; ++k) {
    sum += static_cast<double>(w[k]) * static_cast<double>(x[k]);
  }
  return sum;
}

/// A row of quantised weights times a row of 8-bit activations.
double dot_q8(const std::vector<UnpackedBlock>& weights, const Activations& x, int64_t row) {
  const int8_t* q8 = x.q8.data() + row * x.blocks * kActivationBlock;
  const float* scales = x.scales.data() + row * x.blocks;
  const int32_t* sums = x.sums.data() + row * x.blocks * 2;
  double result = 0;
  int64_t k = 0;  // column
  for (const UnpackedBlock& block : weights) {
    for (int begin = 0; begin < block.values; begin += block.sub, k += block.sub) {
      int32_t products = 0;
      for (int i = 0; i < block.sub; ++i) {
        products += (block.quant[begin + i] - block.offset) * q8[k + i];
      }
      const int32_t sum = block.sub == 16 ? sums[k / 16] : sums[k / 16] + sums[k / 16 + 1];
      const int j = begin / block.sub;
      double value = static_cast<double>(block.d) * block.scale_int[j] * products;
      if (block.has_minimum) {
        value -= static_cast<double>(block.dmin) * block.minimum_int[j] * sum;
      }
      result += static_cast<double>(scales[k / kActivationBlock]) * value;
    }
  }
  return result;
}

/// One output column of matmul.
void matmul_column(const Activations& x, ActivationType activations, const MatmulTarget& target,
                   int64_t column) {
  const Weight& weight = *target.weight;
  const std::byte* source = weight.source + column * row_bytes(weight.type, weight.cols);
  const bool q8 = activations == ActivationType::kQ8 && is_quantised(weight.type);
  std::vector<UnpackedBlock> blocks;
  std::vector<float> values;
  if (q8) {
    const WeightTypeInfo& format = info(weight.type);
    blocks.resize(static_cast<size_t>(weight.cols / format.block_values));
    for (UnpackedBlock& block : blocks) {
      unpack_block(weight.type, source, block);
      source += format.block_bytes;
    }
  } else {
    values.resize(static_cast<size_t>(weight.cols));
    dequantize(weight.type, source, values.data(), weight.cols);
  }
  const double bias = target.bias == nullptr ? 0.0 : static_cast<double>(target.bias[column]);
  for (int64_t i = 0; i < x.values.rows; ++i) {
    const double product =
        q8 ? dot_q8(blocks, x, i) : dot(values.data(), x.values.row(i), weight.cols);
    target.out.row(i)[column] = static_cast<float>(product + bias);
  }
}

double gate_value(GateFunction function, double x) {
  if (function == GateFunction::kSilu) {
    return x / (1.0 + std::exp(-x));
  }
  const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

}  // namespace

// matmul reads the file's bytes, so there is nothing to make.
void pack(Weight& weight, ActivationType /*activations*/, ThreadPool& /*pool*/) {
  weight.packed = AlignedBytes();
}

void embed(const Weight& table, std::span<const int32_t> tokens, float scale,
           MatrixView<float> out) {
  const int64_t row_size = row_bytes(table.type, table.cols);
  for (size_t i = 0; i < tokens.size(); ++i) {
    float* row = out.row(static_cast<int64_t>(i));
    dequantize(table.type, table.source + tokens[i] * row_size, row, table.cols);
    for (int64_t d = 0; d < table.cols; ++d) {
      row[d] *= scale;
    }
  }
}

void prepare(MatrixView<const float> x, ActivationType activations, Activations& out,
             ThreadPool& pool) {
  out.values = x;
  out.blocks = 0;
  if (activations == ActivationType::kQ8) {
    out.blocks = ceil_div(x.cols, kActivationBlock);
  }
  const auto blocks = static_cast<size_t>(x.rows * out.blocks);
  out.q8.resize(blocks * kActivationBlock);
  out.scales.resize(blocks);
  out.sums.resize(blocks * 2);
  pool.parallel_for(x.rows, [&](int64_t i, int) {
    for (int64_t b = 0; b < out.blocks; ++b) {
      const int64_t first = b * kActivationBlock;
      const int64_t count = std::min<int64_t>(kActivationBlock, x.cols - first);
      const int64_t at = i * out.blocks + b;
      quantise_block(x.row(i) + first, count, out.q8.data() + at * kActivationBlock,
                     out.scales[static_cast<size_t>(at)], out.sums.data() + at * 2);
    }
  });
}

void matmul(const Activations& x, ActivationType activations, std::span<const MatmulTarget> targets,
            ThreadPool& pool) {
  for (const MatmulTarget& target : targets) {
    CHECK_EQ(target.weight->cols, x.values.cols);
    pool.parallel_for(target.weight->rows,
                      [&](int64_t column, int) { matmul_column(x, activations, target, column); });
  }
}

void rms_norm(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> out,
              ThreadPool& pool) {
  pool.parallel_for(x.rows, [&](int64_t i, int) {
    const float* source = x.row(i);
    const double mean = dot(source, source, x.cols) / static_cast<double>(x.cols);
    const double factor = 1.0 / std::sqrt(mean + static_cast<double>(eps));
    for (int64_t k = 0; k < x.cols; ++k) {
      out.row(i)[k] = static_cast<float>(source[k] * factor * weight[k]);
    }
  });
}

void rope(MatrixView<float> x, int head_dim, RopeStyle style, MatrixView<const float> cos,
          MatrixView<const float> sin, ThreadPool& pool) {
  const int half = head_dim / 2;
  const bool interleaved = style == RopeStyle::kInterleaved;
  pool.parallel_for(x.rows, [&](int64_t row, int) {
    for (float* head = x.row(row); head < x.row(row) + x.cols; head += head_dim) {
      for (int i = 0; i < half; ++i) {
        float& a = head[interleaved ? 2 * i : i];
        float& b = head[interleaved ? 2 * i + 1 : i + half];
        const double c = cos.row(row)[i];
        const double s = sin.row(row)[i];
        const double rotated_a = a * c - b * s;
        const double rotated_b = a * s + b * c;
        a = static_cast<float>(rotated_a);
        b = static_cast<float>(rotated_b);
      }
    }
  });
}

void gate(GateFunction function, MatrixView<float> gate, MatrixView<const float> up,
          ThreadPool& pool) {
  pool.parallel_for(gate.rows, [&](int64_t i, int) {
    for (int64_t k = 0; k < gate.cols; ++k) {
      float& value = gate.row(i)[k];
      value = static_cast<float>(gate_value(function, value) * up.row(i)[k]);
    }
  });
}

void add(MatrixView<float> x, MatrixView<const float> y, ThreadPool& pool) {
  pool.parallel_for(x.rows, [&](int64_t i, int) {
    for (int64_t k = 0; k < x.cols; ++k) {
      x.row(i)[k] += y.row(i)[k];
    }
  });
}

}  // namespace pagezip::reference
