#include "kernels/cpu/self_test.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "kernels/cpu/cpu_kernels.h"
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
        const auto block = static_cast<size_t>(c / 32 * kTokens + t);  // one tile of kTokens rows
        const double product = static_cast<double>(row[static_cast<size_t>(c)]) *
                               activations.q8[32 * block + static_cast<size_t>(c % 32)] *
                               activations.scales[block];
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

// What one layer computes for kRows rows behind each other, all results in one list.
std::vector<float> small_layer(const Kernels& kernels, RopeStyle style, GateFunction function) {
  constexpr int kHeads = 4;
  constexpr int kKvHeads = 2;
  constexpr int kHeadDim = 32;
  constexpr int64_t kWidth = int64_t{kHeads} * kHeadDim;
  constexpr int64_t kKvWidth = int64_t{kKvHeads} * kHeadDim;
  constexpr int64_t kRows = 37;  // three pages, the last partly filled; an odd number of tile rows
  ThreadPool pool(1);
  Prng prng(2);
  const auto random = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = static_cast<float>(2 * prng.uniform() - 1);
    }
    return values;
  };
  std::vector<float> q = random(kRows * kWidth);
  std::vector<float> k = random(kRows * kKvWidth);
  const std::vector<float> v = random(kRows * kKvWidth);
  const std::vector<float> cos = random(kRows * kHeadDim / 2);
  const std::vector<float> sin = random(kRows * kHeadDim / 2);
  const MatrixView<float> q_view(q.data(), kRows, kWidth);
  const MatrixView<float> k_view(k.data(), kRows, kKvWidth);
  kernels.rms_norm(q_view, cos.data(), 1e-5f, q_view, pool);
  kernels.rope(q_view, kHeadDim, style, {cos.data(), kRows, kHeadDim / 2},
               {sin.data(), kRows, kHeadDim / 2}, pool);

  PageLayout page;
  page.k_type = KvType::kF16;
  page.v_type = KvType::kBF16;
  page.head_dim = kHeadDim;
  const AlignedBytes memory(static_cast<size_t>(int64_t{3} * kKvHeads * page.page_bytes()));
  const uint32_t ids[] = {2, 0, 1};
  Segment segment;
  segment.base = memory.data();
  segment.ids = ids;
  segment.uniform_length = kRows;
  segment.scale = static_cast<uint64_t>(kKvHeads * page.page_bytes() / PageLayout::kUnit);
  segment.head_stride = static_cast<uint64_t>(page.page_bytes() / PageLayout::kUnit);
  segment.heads = kKvHeads;
  KvView view;
  view.push(segment);
  const AttentionSpan span{0, kRows, 0, &view, 0, 0};
  kernels.store_kv({page, kKvHeads, k_view, {v.data(), kRows, kKvWidth}, {&span, 1}}, pool);

  std::vector<float> out(q.size());
  std::vector<float> lse(kRows * kHeads);
  std::vector<float> best(kKvHeads * kRows, -100.0f);
  const ScoreRange range{0, 0, kRows, {lse.data(), kRows, kHeads}};
  const MatrixView<float> out_view(out.data(), kRows, kWidth);
  kernels.attend({page, kHeads, kKvHeads, 0.2f, q_view, out_view, {&span, 1}, &range}, pool);
  kernels.score({page,
                 kHeads,
                 kKvHeads,
                 0.2f,
                 q_view,
                 range.lse,
                 &segment,
                 0,
                 0,
                 kRows,
                 {best.data(), kKvHeads, kRows}},
                pool);
  kernels.gate(function, out_view, q_view, pool);
  kernels.add(out_view, q_view, pool);
  out.insert(out.end(), lse.begin(), lse.end());
  out.insert(out.end(), best.begin(), best.end());
  return out;
}

}  // namespace

bool float_self_test() {
  const std::pair<RopeStyle, GateFunction> variants[] = {
      {RopeStyle::kHalfSplit, GateFunction::kSilu},
      {RopeStyle::kInterleaved, GateFunction::kGeluTanh}};
  for (const auto& [style, function] : variants) {
    const std::vector<float> expected = small_layer(reference_kernels(), style, function);
    const std::vector<float> got = small_layer(cpu_table(), style, function);
    for (size_t i = 0; i < expected.size(); ++i) {
      // A last-bit difference before K and V are rounded can move them by one step of bfloat16.
      if (!(std::abs(got[i] - expected[i]) <= 1e-4f * (1 + std::abs(expected[i])))) {
        return false;
      }
    }
  }
  return true;
}

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
