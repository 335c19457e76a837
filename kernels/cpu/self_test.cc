#include "kernels/cpu/self_test.h"

#include <cmath>
#include <vector>

#include "base/prng.h"
#include "kernels/cpu/dense.h"

namespace pagezip::cpu {
namespace {

// Random bytes are valid blocks of every quantised type once the float16 scales are tame.
std::vector<std::byte> random_rows(WeightType type, int64_t rows, int64_t cols, Prng& prng) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes(type, cols)));
  for (std::byte& b : bytes) {
    // 0x2c2c as float16 is 0.065; a high byte never makes Inf or NaN below 0x7c.
    b = static_cast<std::byte>(prng.below(0x78));
  }
  return bytes;
}

bool agrees(WeightType type, Prng& prng, ThreadPool& pool) {
  constexpr int64_t kRows = 17;
  constexpr int64_t kCols = 256;
  constexpr int64_t kTokens = 5;
  const std::vector<std::byte> source = random_rows(type, kRows, kCols, prng);
  Weight weight;
  weight.type = type;
  weight.rows = kRows;
  weight.cols = kCols;
  weight.source = source.data();
  pack(weight, ActivationType::kQ8, pool);
  std::vector<float> x(kTokens * kCols);
  for (float& value : x) {
    value = static_cast<float>(prng.uniform() - 0.5);
  }
  Activations activations;
  prepare({x.data(), kTokens, kCols}, ActivationType::kQ8, activations, pool);
  std::vector<float> out(kTokens * kRows);
  const MatmulTarget target{&weight, nullptr, {out.data(), kTokens, kRows}};
  matmul(activations, ActivationType::kQ8, {&target, 1}, pool);

  std::vector<float> row(kCols);
  for (int64_t r = 0; r < kRows; ++r) {
    dequantize(type, source.data() + r * row_bytes(type, kCols), row.data(), kCols);
    for (int64_t t = 0; t < kTokens; ++t) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t c = 0; c < kCols; ++c) {
        const auto i = static_cast<size_t>(t * kCols + c);
        const double product = static_cast<double>(row[static_cast<size_t>(c)]) *
                               activations.q8[i] * activations.scales[i / 32];
        sum += product;
        magnitude += std::abs(product);
      }
      if (!(std::abs(sum - out[static_cast<size_t>(t * kRows + r)]) <= 1e-4 * magnitude + 1e-6)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

bool dense_self_test() {
  Prng prng(1);
  ThreadPool pool(1);
  for (int type = 0; type < kWeightTypes; ++type) {
    if (panel_format(static_cast<WeightType>(type)) &&
        !agrees(static_cast<WeightType>(type), prng, pool)) {
      return false;
    }
  }
  return true;
}

}  // namespace pagezip::cpu
