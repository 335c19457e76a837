// Scores of pairs in the simulator, against float64.
#pragma once

#include "tests/cuda_sim/sim_attention_util.h"

namespace pagezip::test {

/// A document that every row sees whole, and the text behind it.
inline AttendProblem random_score_problem(Prng& prng, uint64_t seed) {
  AttendProblem problem = random_sim_shape(prng, seed);
  const int64_t length = pick<int64_t>(prng, {1, 40, 63, 64, 65, 200});
  const int64_t tail = pick<int64_t>(prng, {0, 1, 20, 50});
  push_segment(prng, problem, {length}, 0);
  push_segment(prng, problem, {tail}, length);
  const int64_t rows = affordable_rows(problem, length, pick<int64_t>(prng, {1, 2, 17, 40}));
  problem.first_position = length + prng.range(0, tail);
  problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim);
  const int64_t chunk = std::min(length, pick<int64_t>(prng, {0, 1, 15, 64, 70, 200}));
  const int64_t begin = prng.range(0, length - chunk);
  problem.score = PairRanges{prng.range(0, begin), begin, begin + chunk, 0};
  return problem;
}

inline void expect_best(const AttendProblem& problem, const Matrix& lse, const Matrix& before,
                        const Matrix& best, const std::string& what) {
  const PageLayout& page = problem.page;
  const int group = problem.heads / problem.kv_heads;
  const int64_t chunk = problem.score->chunk_end - problem.score->chunk_begin;
  for (int64_t item = 0; item < problem.kv_heads * chunk; ++item) {
    const int64_t head = item / chunk;
    const int64_t j = item % chunk;
    const auto& k = problem.segments[0].k[problem.layer * problem.kv_heads + head];
    double expected = static_cast<double>(before.row(head)[j]);
    double error = 0;
    for (int64_t i = 0; i < problem.q.rows * group; ++i) {
      const int64_t h = head * group + i % group;
      const Logit logit = naive_logit(problem.q.row(i / group) + h * page.head_dim,
                                      &k[(problem.score->chunk_begin + j) * page.head_dim],
                                      page.head_dim, static_cast<double>(problem.scale));
      expected = std::max(expected, logit.value - lse.row(i / group)[h]);
      error = std::max(error, logit.error + 2 * kRounding * (std::fabs(logit.value) + 3));
    }
    ASSERT_NEAR(best.row(head)[j], expected, error + extra_error(problem).logit)
        << what << ", pair " << j;
  }
}

/// One random problem, launched and checked.
inline void expect_score(uint64_t seed) {
  Prng prng(200 + seed);
  cuda_sim::options().seed = seed % 4;
  std::vector<AttendProblem> problems{random_score_problem(prng, seed)};
  const SimBatch batch = make_batch(problems, seed);
  const AttendProblem& problem = problems[0];
  const int64_t chunk = problem.score->chunk_end - problem.score->chunk_begin;
  const bool with_lse = prng.chance(0.7);
  const Matrix lse = with_lse ? random_matrix(prng, problem.q.rows, problem.heads, 3, 2)
                              : Matrix(problem.q.rows, problem.heads);
  Matrix best(problem.kv_heads, chunk, -std::numeric_limits<float>::infinity(), 4);
  if (prng.chance(0.3)) {
    best = random_matrix(prng, problem.kv_heads, chunk, 4);
  }
  const Matrix before = best;
  cuda::score({.page = problem.page,
               .heads = problem.heads,
               .kv_heads = problem.kv_heads,
               .scale = problem.scale,
               .q = batch.q.data.data(),
               .q_stride = batch.q.stride,
               .rows = problem.q.rows,
               .lse = with_lse ? lse.data.data() : nullptr,
               .lse_stride = lse.stride,
               .source = batch.views[0].view.segments[0],
               .layer = problem.layer,
               .chunk_begin = problem.score->chunk_begin,
               .chunk_end = problem.score->chunk_end,
               .best = best.data.data(),
               .best_stride = best.stride},
              {});
  expect_best(problem, lse, before, best, "seed " + std::to_string(seed));
}

}  // namespace pagezip::test
