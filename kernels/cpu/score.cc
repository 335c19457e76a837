// Scores of pairs: the largest of all rows' logits, less the rows' log-sum-exp.
//
// A thread takes kStep pairs of one KV head, widened once for all rows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/math.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/kv_pages.h"
#include "kernels/cpu/simd.h"

namespace pagezip::cpu {
namespace {

constexpr int64_t kStep = kWidenedPairs;
constexpr int64_t kTileRows = 96;

size_t bytes_per_thread(const ScoreArgs& args) {
  const int64_t floats = (args.page.head_dim + kTileRows + 1) * kStep;
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace

size_t score_scratch(const ScoreArgs& args, int threads) {
  return static_cast<size_t>(threads) * bytes_per_thread(args);
}

void score(const ScoreArgs& args, ThreadPool& pool) {
  const int64_t d = args.page.head_dim;
  const int64_t group = args.heads / args.kv_heads;
  const int64_t first = args.chunk_begin / kStep;
  const int64_t steps =
      args.chunk_end > args.chunk_begin ? ceil_div(args.chunk_end, kStep) - first : 0;
  pool.parallel_for(args.kv_heads * steps, [&](int64_t item, int thread) {
    const auto head = static_cast<int>(item / steps);
    const int64_t step = (first + item % steps) * kStep;
    auto* keys = reinterpret_cast<float*>(pool.scratch(thread, bytes_per_thread(args)));
    float* x = keys + d * kStep;
    float* best = x + kTileRows * kStep;
    std::fill(best, best + kStep, -std::numeric_limits<float>::infinity());
    std::fill(keys, keys + d * kStep, 0.0f);
    widen_keys(args.page, *args.source, args.layer, head, step, args.chunk_begin, args.chunk_end,
               keys);
    for (int64_t g = head * group; g < (head + 1) * group; ++g) {
      for (int64_t row = 0; row < args.q.rows; row += kTileRows) {
        const int64_t rows = std::min(kTileRows, args.q.rows - row);
        simd_ops().gemm(args.q.row(row) + g * d, args.q.stride, keys, kStep, x, kStep, rows, d,
                        kStep, false);
        const float* lse = args.lse.data == nullptr ? nullptr : args.lse.row(row) + g;
        simd_ops().column_max(x, kStep, rows, args.scale, lse, args.lse.stride, best);
      }
    }
    const int64_t end = std::min(step + kStep, args.chunk_end);
    for (int64_t pair = std::max(step, args.chunk_begin); pair < end; ++pair) {
      float& target = args.best.row(head)[pair - args.chunk_begin];
      const float value = best[pair - step];
      // Written so that a NaN on either side stays.
      target = target >= value || std::isnan(target) ? target : value;
    }
  });
}

}  // namespace pagezip::cpu
