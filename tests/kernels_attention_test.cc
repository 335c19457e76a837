// Operations on pages, for every backend: store_kv, attend with and without the scores' LSE, score
// and copy_pairs, against naive float64 loops on plain arrays (kernels_attention_util.h).
#include "tests/kernels_attention_util.h"

namespace pagezip::test {
namespace {

class AttentionKernelsTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
  ThreadPool pool_{2};
};

INSTANTIATE_TEST_SUITE_P(Backends, AttentionKernelsTest, testing::ValuesIn(backends()),
                         backend_name);

int64_t random_length(Prng& prng, int page_tokens) {
  return pick<int64_t>(prng, {0, 1, page_tokens - 1, page_tokens, page_tokens + 1, 3 * page_tokens,
                              100, 255, 256, 257, prng.range(0, 520)});
}

/// Up to four segments, one after the other in positions, and rows that read them.
AttendProblem random_problem(Prng& prng) {
  AttendProblem problem = random_shape(prng);
  const int count = static_cast<int>(prng.range(0, KvView::kSegmentsMax));
  const bool windowed = prng.chance(0.4);
  int64_t position = 0;
  int64_t ragged_end = 0;
  for (int s = 0; s < count; ++s) {
    if (!windowed && prng.chance(0.4)) {
      std::vector<int64_t> lengths;
      for (int i = 0; i < kLayers * problem.kv_heads; ++i) {
        lengths.push_back(random_length(prng, problem.page.page_tokens));
      }
      push_segment(prng, problem, lengths, position);
      position += *std::max_element(lengths.begin(), lengths.end()) + prng.range(0, 50);
      ragged_end = position;
    } else {
      const int64_t length = random_length(prng, problem.page.page_tokens);
      push_segment(prng, problem, {length}, position);
      position += length;
    }
  }
  const int64_t rows =
      affordable_rows(problem, position, pick<int64_t>(prng, {1, 1, 2, 5, 31, 33}));
  problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim, 1,
                            pick<int64_t>(prng, {0, 5}));
  // At the end of the last segment as in a step, or anywhere after the ragged pairs.
  problem.first_position =
      std::max(ragged_end, prng.chance(0.5) ? position - rows : prng.range(0, position));
  problem.first_position = std::max<int64_t>(0, problem.first_position);
  if (windowed) {
    problem.window = static_cast<int>(
        pick<int64_t>(prng, {1, 2, 15, 16, 17, 100, 255, 256, 257, prng.range(1, 600)}));
    drop_pairs_behind_window(problem);
  }
  return problem;
}

void expect_close(const AttendProblem& problem, const AttendResult& result, bool with_out,
                  const std::string& what) {
  const AttendExpected expected = naive_attend(problem);
  const int64_t columns = problem.heads * problem.page.head_dim;
  for (int64_t i = 0; with_out && i < problem.q.rows * columns; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_NEAR(result.out.row(i / columns)[i % columns], expected.out[at], expected.out_error[at])
        << what << ", row " << i / columns << ", column " << i % columns;
  }
  const auto expect_lse = [&](const Matrix& actual, const std::vector<double>& values,
                              const std::vector<double>& errors, const std::string& name) {
    for (int64_t i = 0; i < problem.q.rows * problem.heads; ++i) {
      const auto at = static_cast<size_t>(i);
      const float value = actual.row(i / problem.heads)[i % problem.heads];
      const std::string where = what + ", " + name + " of row " +
                                std::to_string(i / problem.heads) + ", head " +
                                std::to_string(i % problem.heads);
      if (std::isinf(values[at])) {
        ASSERT_EQ(value, -kInfinity) << where;
      } else {
        ASSERT_NEAR(value, values[at], errors[at]) << where;
      }
    }
  };
  if (with_out) {
    expect_lse(result.lse, expected.lse, expected.lse_error, "LSE");
  }
  if (problem.score) {
    expect_lse(result.score_lse, expected.score_lse, expected.score_lse_error, "scores' LSE");
  }
}

TEST_P(AttentionKernelsTest, AttendMatchesNaiveSoftmax) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Prng prng(seed);
    const AttendProblem problem = random_problem(prng);
    const AttendResult result = run_attend(kernels(), pool_, problem, true, seed);
    expect_close(problem, result, true, "seed " + std::to_string(seed));
    if (HasFatalFailure()) {
      return;
    }
  }
}

TEST_P(AttentionKernelsTest, LongAndManyRows) {
  Prng prng(1);
  for (const int page_tokens : {16, 32, 64}) {
    AttendProblem problem;
    problem.page = {KvType::kF16, KvType::kF16, page_tokens, 64};
    problem.page.key_order = page_tokens == 32 ? KeyOrder::kPlain : KeyOrder::kTransposed;
    problem.heads = 3;
    problem.scale = 0.125f;
    push_segment(prng, problem, {1000}, 0);
    problem.q = random_matrix(prng, 70, 3 * 64);
    problem.first_position = 930;
    expect_close(problem, run_attend(kernels(), pool_, problem, true, 1), true, "long");
    problem.first_position = 470;  // pairs after the rows exist but are hidden
    expect_close(problem, run_attend(kernels(), pool_, problem, true, 2), true, "middle");
  }
}

// A segment begins at its first page, whether or not a window hides what came before.
TEST_P(AttentionKernelsTest, FirstPageWithoutWindow) {
  Prng prng(6);
  for (const int64_t first_pair : {16, 260, 300}) {
    AttendProblem problem;
    problem.page = {KvType::kF16, KvType::kF16, 16, 64};
    problem.heads = 2;
    problem.scale = 0.125f;
    push_segment(prng, problem, {300}, 0);
    problem.segments[0].first_pair = first_pair;
    problem.first_position = 297;
    problem.q = random_matrix(prng, 3, 2 * 64);
    expect_close(problem, run_attend(kernels(), pool_, problem, true, 8), true, "first page");
  }
}

// KVzip keeps very different numbers of pairs per head; one head may keep nothing.
TEST_P(AttentionKernelsTest, OneRaggedHeadIsMuchLongerThanTheRest) {
  Prng prng(2);
  AttendProblem problem;
  problem.page = {KvType::kBF16, KvType::kF16, 16, 128};
  problem.kv_heads = 4;
  problem.heads = 8;
  problem.scale = 0.09f;
  push_segment(prng, problem, {7, 10, 3, 0, 9, 10, 1000, 0}, 0);
  push_segment(prng, problem, {20}, 5000);
  problem.first_position = 5017;
  problem.q = random_matrix(prng, 3, 8 * 128);
  expect_close(problem, run_attend(kernels(), pool_, problem, true, 3), true, "ragged");
}

// What flattens or overflows a softmax that loses its maximum: large logits of one sign, in units
// that come before and after the largest.
TEST_P(AttentionKernelsTest, LargeLogits) {
  for (const float sign : {1.0f, -1.0f}) {
    for (const int64_t largest : {0, 255, 256, 599}) {
      Prng prng(3);
      AttendProblem problem;
      problem.page = {KvType::kF32, KvType::kF32, 32, 16};
      problem.scale = 1;
      push_segment(prng, problem, {600}, 0);
      for (auto& k : problem.segments[0].k) {
        for (int64_t i = 0; i < 600 * 16; ++i) {
          k[static_cast<size_t>(i)] = sign * (i / 16 == largest ? 25.0f : 24.0f);
        }
      }
      problem.first_position = 599;
      problem.q = Matrix(1, 16, 1.0f);
      problem.score = PairRanges{0, 0, 600};
      expect_close(problem, run_attend(kernels(), pool_, problem, true, 4), true, "large");
    }
  }
}

TEST_P(AttentionKernelsTest, RowThatSeesNothing) {
  Prng prng(4);
  AttendProblem problem;
  problem.page = {KvType::kF16, KvType::kF16, 16, 64};
  problem.heads = 2;
  push_segment(prng, problem, {0, 0}, 0);
  push_segment(prng, problem, {40}, 10);
  problem.first_position = 8;  // rows 0 and 1 lie before the first pair
  problem.q = random_matrix(prng, 3, 2 * 64);
  problem.score = PairRanges{0, 0, 0};
  const AttendResult result = run_attend(kernels(), pool_, problem, true, 5);
  expect_close(problem, result, true, "nothing");
  EXPECT_EQ(result.out.row(1)[0], 0.0f);
  EXPECT_EQ(result.lse.row(1)[0], -kInfinity);
  EXPECT_EQ(result.score_lse.row(1)[0], -kInfinity);
  EXPECT_NE(result.out.row(2)[0], 0.0f);

  problem.segments.clear();  // a view without segments
  expect_close(problem, run_attend(kernels(), pool_, problem, true, 6), true, "no segments");
}

/// A document that every row sees whole, sometimes behind others; the ranges of the LSE lie in it
/// and in the first one.
AttendProblem random_score_problem(Prng& prng) {
  AttendProblem problem = random_shape(prng);
  const auto parents = pick<int>(prng, {0, 0, 0, 1, 2});
  const int64_t parent = parents > 0 ? pick<int64_t>(prng, {1, 30, 257}) : 0;
  for (int i = 0; i < parents; ++i) {
    push_segment(prng, problem, {parent}, i * parent);
  }
  const int64_t length = pick<int64_t>(prng, {1, 40, 255, 256, 257, 600});
  const int64_t end = parents * parent + length;
  push_segment(prng, problem, {length}, end - length);
  const int64_t tail = pick<int64_t>(prng, {0, 1, 20, 50});
  if (prng.chance(0.7)) {
    push_segment(prng, problem, {tail}, end);
  }
  const int64_t rows = affordable_rows(problem, end, pick<int64_t>(prng, {1, 2, 17, 31}));
  problem.first_position = end + prng.range(0, tail);
  problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim);
  const int64_t chunk = std::min(length, pick<int64_t>(prng, {0, 1, 15, 16, 17, 300}));
  const int64_t begin = prng.range(0, length - chunk);
  const int64_t prefix = prng.range(0, parents > 0 ? parent : begin);
  problem.score = PairRanges{prefix, begin, begin + chunk, parents};
  return problem;
}

TEST_P(AttentionKernelsTest, ScoreRangeLse) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Prng prng(1000 + seed);
    const AttendProblem problem = random_score_problem(prng);
    const bool with_out = prng.chance(0.5);
    const AttendResult result = run_attend(kernels(), pool_, problem, with_out, seed);
    expect_close(problem, result, with_out, "seed " + std::to_string(seed));
    if (HasFatalFailure()) {
      return;
    }
  }
}

// Spans with views, windows and layers of their own.
TEST_P(AttentionKernelsTest, SeveralSpans) {
  Prng prng(5);
  const AttendProblem shape = random_shape(prng);
  std::vector<AttendProblem> problems;
  while (problems.size() < 6) {
    AttendProblem problem = shape;
    problem.layer = static_cast<int>(problems.size() % kLayers);
    const int64_t length = prng.range(1, 400);
    push_segment(prng, problem, {length}, 0);
    const int64_t rows = problems.size() == 2 ? 33 : prng.range(0, 4);
    problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim);
    problem.first_position = std::max<int64_t>(0, length - rows);
    problem.window = pick(prng, {0, 0, 60});
    drop_pairs_behind_window(problem);
    problems.push_back(problem);
  }
  const auto results = attend_batch(kernels(), pool_, problems, true, 7);
  for (size_t i = 0; i < problems.size(); ++i) {
    expect_close(problems[i], results[i], true, "span " + std::to_string(i));
  }
}

TEST_P(AttentionKernelsTest, Score) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Prng prng(2000 + seed);
    const AttendProblem problem = random_score_problem(prng);
    const PageLayout& page = problem.page;
    const PagedView paged = make_view(kernels(), problem, seed);
    const int64_t chunk = problem.score->chunk_end - problem.score->chunk_begin;
    const bool with_lse = prng.chance(0.6);
    const Matrix lse = random_matrix(prng, problem.q.rows, problem.heads, 3, 2);
    Matrix best(problem.kv_heads, chunk, -std::numeric_limits<float>::infinity(), 4);
    if (prng.chance(0.5)) {
      best = random_matrix(prng, problem.kv_heads, chunk, 4);
    }
    const Matrix before = best;
    kernels().score({page, problem.heads, problem.kv_heads, problem.scale, problem.q.view(),
                     with_lse ? lse.view() : MatrixView<const float>(),
                     &paged.view.segments[problem.score->segment], problem.layer,
                     problem.score->chunk_begin, problem.score->chunk_end, best.view()},
                    pool_);
    const int group = problem.heads / problem.kv_heads;
    for (int64_t item = 0; item < problem.kv_heads * chunk; ++item) {
      const int64_t head = item / chunk;
      const int64_t j = item % chunk;
      const auto& k = problem.segments[static_cast<size_t>(problem.score->segment)]
                          .k[problem.layer * problem.kv_heads + head];
      double expected = static_cast<double>(before.row(head)[j]);
      double error = 0;
      for (int64_t i = 0; i < problem.q.rows * group; ++i) {
        const int64_t h = head * group + i % group;
        const Logit logit = naive_logit(problem.q.row(i / group) + h * page.head_dim,
                                        &k[(problem.score->chunk_begin + j) * page.head_dim],
                                        page.head_dim, static_cast<double>(problem.scale));
        const double subtracted = with_lse ? static_cast<double>(lse.row(i / group)[h]) : 0.0;
        expected = std::max(expected, logit.value - subtracted);
        error = std::max(error, logit.error + 2 * kRounding * (std::fabs(logit.value) + 3));
      }
      ASSERT_NEAR(best.row(head)[j], expected, error) << "seed " << seed << ", pair " << j;
    }
  }
}

TEST_P(AttentionKernelsTest, StoreKvWritesItsPairsOnly) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Prng prng(3000 + seed);
    const AttendProblem shape = random_shape(prng);
    const PageLayout& page = shape.page;
    const int64_t first_pair = prng.range(0, 70);
    const int64_t rows = pick<int64_t>(prng, {0, 1, 2, 15, 16, 17, 70});
    const int64_t first_page = prng.range(0, first_pair / page.page_tokens);
    PagedSegment actual =
        make_empty_pages(page, kLayers, shape.kv_heads, {first_pair + rows}, first_page, seed);
    const PagedSegment expected =
        make_empty_pages(page, kLayers, shape.kv_heads, {first_pair + rows}, first_page, seed);
    // Up to beyond float16's largest value, and down to its subnormals.
    const double bound = pick(prng, {1.0, 1e5, 1e-6});
    const Matrix k = random_matrix(prng, rows, shape.kv_heads * page.head_dim, bound, 3);
    const Matrix v = random_matrix(prng, rows, shape.kv_heads * page.head_dim, bound);
    for (int64_t i = 0; i < rows * shape.kv_heads; ++i) {
      const int64_t pair = first_pair + i / shape.kv_heads;
      const int head = static_cast<int>(i) % shape.kv_heads;
      put_pair(page, expected.segment.page(shape.layer, head, pair / page.page_tokens),
               pair % page.page_tokens, k.row(i / shape.kv_heads) + head * page.head_dim,
               v.row(i / shape.kv_heads) + head * page.head_dim);
    }
    store_pairs(kernels(), page, shape.kv_heads, k.view(), v.view(), actual.segment, shape.layer,
                first_pair, pool_);
    ASSERT_EQ(std::memcmp(actual.memory.data(), expected.memory.data(), expected.memory.size()), 0)
        << "seed " << seed;
  }
}

// Pairs hold random bits, among them NaNs, and must arrive unchanged in any arrangement of pages,
// of other sizes and with the other order of keys too.
TEST_P(AttentionKernelsTest, CopyPairsMovesBits) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Prng prng(4000 + seed);
    const AttendProblem shape = random_shape(prng);
    const PageLayout& page = shape.page;
    const int64_t length = prng.range(0, 200);
    PagedSegment source =
        make_empty_pages(page, kLayers, shape.kv_heads, {length}, /*first_page=*/0, seed);
    for (size_t i = 0; i < source.memory.size(); ++i) {
      source.memory.data()[i] = static_cast<std::byte>(prng.next());
    }
    const int first_head = static_cast<int>(prng.below(static_cast<uint64_t>(shape.kv_heads)));
    std::vector<std::vector<uint32_t>> lists(
        static_cast<size_t>(prng.range(1, shape.kv_heads - first_head)));
    for (std::vector<uint32_t>& pairs : lists) {
      const double share = prng.uniform();
      for (uint32_t i = 0; i < length; ++i) {
        if (prng.chance(share)) {
          pairs.push_back(i);
        }
      }
    }
    const int64_t target_first = pick<int64_t>(prng, {0, 0, 1, 13});
    const std::vector<int64_t> lengths(static_cast<size_t>(kLayers * shape.kv_heads),
                                       target_first + length);
    PageLayout target = page;
    target.page_tokens = pick(prng, {16, 32, 64});
    target.key_order = pick(prng, {KeyOrder::kPlain, KeyOrder::kTransposed});
    PagedSegment actual = make_empty_pages(target, kLayers, shape.kv_heads, lengths, 0, seed + 1);
    PagedSegment expected = make_empty_pages(target, kLayers, shape.kv_heads, lengths, 0, seed + 1);
    const int64_t k_size = bytes_of(page.k_type);
    const int64_t v_size = bytes_of(page.v_type) * page.head_dim;
    for (size_t list = 0; list < lists.size(); ++list) {
      const int head = first_head + static_cast<int>(list);
      int64_t to = target_first;
      for (const uint32_t from : lists[list]) {
        const int64_t from_slot = from % page.page_tokens;
        const int64_t to_slot = to % target.page_tokens;
        const std::byte* from_page =
            source.segment.page(shape.layer, head, from / page.page_tokens);
        std::byte* to_page = expected.segment.page(shape.layer, head, to / target.page_tokens);
        for (int d = 0; d < page.head_dim; ++d) {
          std::memcpy(to_page + key_element(target, to_slot, d) * k_size,
                      from_page + key_element(page, from_slot, d) * k_size, k_size);
        }
        std::memcpy(to_page + target.k_bytes() + to_slot * v_size,
                    from_page + page.k_bytes() + from_slot * v_size, v_size);
        ++to;
      }
    }
    const std::vector<std::span<const uint32_t>> pairs(lists.begin(), lists.end());
    kernels().copy_pairs({page, &source.segment, target, &actual.segment, shape.layer, first_head,
                          pairs, target_first},
                         pool_);
    ASSERT_EQ(std::memcmp(actual.memory.data(), expected.memory.data(), expected.memory.size()), 0)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace pagezip::test
