// Attention kernels in the simulator: against float64 for every type of page and odd shapes, and
// bit for bit against themselves where only the arrangement differs.
#include "tests/cuda_sim/sim_attention_util.h"

namespace pagezip::test {
namespace {

class CudaAttendTest : public testing::Test {
 protected:
  ~CudaAttendTest() override { cuda_sim::options() = {}; }
};

TEST_F(CudaAttendTest, MatchesNaiveSoftmax) {
  for (uint64_t seed = 0; seed < 120 && !HasFatalFailure(); ++seed) {
    Prng prng(seed);
    expect_matches(random_sim_problem(prng, seed), seed, "seed " + std::to_string(seed));
  }
}

// Every page that tensor cores read, with every page size and order of keys, few rows and many.
TEST_F(CudaAttendTest, EveryTypeSizeAndOrder) {
  uint64_t seed = 0;
  for (const TypePair& types : type_pairs()) {
    for (const int page_tokens : {16, 32, 64}) {
      for (const KeyOrder order : {KeyOrder::kPlain, KeyOrder::kTransposed}) {
        if (!types.tensor_cores || (is_quantised(types.k) && order == KeyOrder::kTransposed)) {
          continue;
        }
        for (const int head_dim : {64, 128, 256}) {
          Prng prng(seed);
          AttendProblem problem;
          problem.page = {types.k, types.v, page_tokens, head_dim, order};
          ASSERT_TRUE(cuda::uses_tensor_cores(problem.page));
          problem.heads = 3;
          problem.scale = 0.1f;
          push_segment(prng, problem, {70}, 0);
          problem.first_position = seed % 2 == 0 ? 69 : 60;
          problem.q = random_matrix(prng, 70 - problem.first_position, 3 * head_dim);
          expect_matches(problem, seed++, "page " + std::to_string(page_tokens));
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

// KVzip keeps very different numbers of pairs per head; one head may keep nothing.
TEST_F(CudaAttendTest, OneRaggedHeadIsMuchLongerThanTheRest) {
  for (const KvType type : {KvType::kF16, KvType::kI4}) {
    for (const uint64_t seed : {1, 2, 3}) {
      Prng prng(seed);
      AttendProblem problem;
      problem.page = {type, type, 16, 64, KeyOrder::kPlain};
      problem.kv_heads = 4;
      problem.heads = 16;
      problem.scale = 0.125f;
      push_segment(prng, problem, {7, 10, 3, 0, 12, 10, 1200, 0}, 0);
      push_segment(prng, problem, {20}, 5000);
      problem.first_position = 5018;
      problem.q = random_matrix(prng, 2, 16 * 64);
      expect_matches(problem, seed, "ragged");
    }
  }
}

// Longer than a run, so that runs are merged within an item, between items and between segments.
TEST_F(CudaAttendTest, LongerThanARun) {
  for (const KvType type : {KvType::kBF16, KvType::kI8, KvType::kF32}) {
    Prng prng(4);
    AttendProblem problem;
    problem.page = {type, type, 32, 64, KeyOrder::kPlain};
    problem.heads = 2;
    problem.scale = 0.5f;
    push_segment(prng, problem, {1100}, 0);
    push_segment(prng, problem, {2100}, 1100);
    problem.first_position = 3198;
    problem.q = random_matrix(prng, 2, 2 * 64);
    expect_matches(problem, 1, "long");
  }
}

// Logits that overflow or vanish where a maximum is lost.
TEST_F(CudaAttendTest, LargeLogits) {
  for (const float sign : {1.0f, -1.0f}) {
    for (const int64_t largest : {0, 63, 64, 1099}) {
      Prng prng(5);
      AttendProblem problem;
      problem.page = {KvType::kF16, KvType::kF16, 16, 64};
      problem.scale = 1;
      push_segment(prng, problem, {1100}, 0);
      for (auto& k : problem.segments[0].k) {
        for (int64_t i = 0; i < 1100 * 64; ++i) {
          k[static_cast<size_t>(i)] = sign * (i / 64 == largest ? 12.5f : 12.0f);
        }
      }
      problem.first_position = 1099;
      problem.q = Matrix(1, 64, 1.0f);
      expect_matches(problem, 2, "large");
    }
  }
}

TEST_F(CudaAttendTest, RowThatSeesNothing) {
  Prng prng(6);
  AttendProblem problem;
  problem.page = {KvType::kF16, KvType::kF16, 16, 64};
  problem.heads = 2;
  push_segment(prng, problem, {0, 0}, 0);
  push_segment(prng, problem, {40}, 10);
  problem.first_position = 8;  // rows 0 and 1 lie before the first pair
  problem.q = random_matrix(prng, 3, 2 * 64);
  expect_matches(problem, 3, "nothing");
  problem.segments.clear();
  expect_matches(problem, 3, "no segments");
}

// ---- the same bits ----

/// A document and text behind it that 24 rows fill.
AttendProblem document_problem(uint64_t seed, KvType type, int page_tokens) {
  Prng prng(seed);
  AttendProblem problem;
  problem.page = {type, type, page_tokens, 64, KeyOrder::kPlain};
  problem.kv_heads = 2;
  problem.heads = 6;
  problem.scale = 0.3f;
  push_segment(prng, problem, {300, 0, 1500, 40}, 0);
  push_segment(prng, problem, {90}, 2000);
  problem.first_position = 2066;
  problem.q = random_matrix(prng, 24, 6 * 64);
  return problem;
}

SimOutput run(std::vector<AttendProblem> problems, uint64_t seed,
              int64_t pairs_per_item = cuda::kRunPairs) {
  cuda_sim::options().seed = seed;
  const SimBatch batch = make_batch(problems, seed);
  return sim_attend(problems[0], batch, nullptr, pairs_per_item);
}

AttendProblem rows_of(const AttendProblem& problem, int64_t first, int64_t count) {
  AttendProblem part = problem;
  part.q = Matrix(count, problem.q.cols);
  copy_rows(problem.q, first, part.q, 0, count);
  part.first_position += first;
  return part;
}

void expect_same_rows(const SimOutput& a, int64_t a_row, const SimOutput& b, int64_t b_row,
                      int64_t rows, const std::string& what) {
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = [&](const Matrix& matrix, int64_t at) {
      return std::vector<float>(matrix.row(at), matrix.row(at) + matrix.cols);
    };
    expect_same_bits(row(a.out, a_row + i), row(b.out, b_row + i), what);
    expect_same_bits(row(a.lse, a_row + i), row(b.lse, b_row + i), what);
  }
}

TEST_F(CudaAttendTest, PagesItemsAndThreadsDoNotMatter) {
  for (const KvType type : {KvType::kF16, KvType::kI8, KvType::kF32}) {
    const SimOutput expected = run({document_problem(7, type, 16)}, 0);
    for (const uint64_t seed : {1, 2, 3}) {  // of the threads and of the pages' order
      const auto again = run({document_problem(7, type, seed == 1 ? 16 : 64)}, seed,
                             static_cast<int64_t>(seed) * cuda::kRunPairs);
      expect_same_rows(again, 0, expected, 0, 24, "seed " + std::to_string(seed));
    }
  }
}

// Prefill in one go, in chunks, and row by row as decode does.
TEST_F(CudaAttendTest, CutsOfThePromptDoNotMatter) {
  for (const KvType type : {KvType::kBF16, KvType::kI4, KvType::kF32}) {
    const AttendProblem problem = document_problem(8, type, 32);
    const SimOutput expected = run({problem}, 1, 4 * cuda::kRunPairs);
    for (const int64_t step : {1, 5, 23}) {
      for (int64_t first = 0; first < 24; first += step) {
        const int64_t count = std::min<int64_t>(step, 24 - first);
        expect_same_rows(run({rows_of(problem, first, count)}, 2), 0, expected, first, count,
                         "steps of " + std::to_string(step));
      }
      if (type == KvType::kF32) {
        break;
      }
    }
  }
}

// Requests on one document share its items; each gets what it gets alone.
TEST_F(CudaAttendTest, NeighboursDoNotMatter) {
  const AttendProblem document = document_problem(9, KvType::kF16, 16);
  for (const int readers : {3, 12}) {
    std::vector<AttendProblem> problems;
    for (int i = 0; i < readers; ++i) {
      problems.push_back(rows_of(document, i, 1 + i % 2));
    }
    cuda_sim::options().seed = 3;
    SimBatch batch = make_batch(problems, 1);
    for (PagedView& view : batch.views) {  // one and the same document
      view.view.segments[0] = batch.views[0].view.segments[0];
    }
    const cuda::AttendPlan plan = cuda::plan_attend(document.page, document.heads,
                                                    document.kv_heads, batch.spans, nullptr, 1024);
    EXPECT_EQ(plan.many_rows, readers == 12);
    const SimOutput together = sim_attend(problems[0], batch, nullptr);
    int64_t row = 0;
    for (const AttendProblem& problem : problems) {
      expect_same_rows(together, row, run({problem}, 2), 0, problem.q.rows, "together");
      row += problem.q.rows;
    }
  }
}

// ---- the plan ----

TEST_F(CudaAttendTest, PlanSharesDocumentsAndStartsWithTheLongest) {
  const AttendProblem document = document_problem(10, KvType::kF16, 16);
  std::vector<AttendProblem> problems{rows_of(document, 0, 1), rows_of(document, 1, 1)};
  SimBatch batch = make_batch(problems, 1);
  const auto items = [&] {
    return cuda::plan_attend(document.page, document.heads, document.kv_heads, batch.spans, nullptr,
                             1024)
        .items;
  };
  const size_t apart = items().size();
  batch.views[1].view.segments[0] = batch.views[0].view.segments[0];
  const auto shared = items();
  EXPECT_EQ(apart - shared.size(), 3U);  // 1500 pairs are two items, 40 are one
  for (size_t i = 1; i < shared.size(); ++i) {
    EXPECT_GE(shared[i - 1].end - shared[i - 1].begin, shared[i].end - shared[i].begin);
  }
}

TEST_F(CudaAttendTest, ItemsAreAsLongAsTheWorkAllows) {
  KvView view;
  Segment segment;
  segment.uniform_length = 100'000;
  view.push(segment);
  const std::vector<AttentionSpan> spans{{0, 1, 99'999, &view, 0, 0}};
  EXPECT_EQ(cuda::choose_pairs_per_item(spans, 8, 132), 2048);
  EXPECT_EQ(cuda::choose_pairs_per_item(spans, 1, 132), 1024);
}

}  // namespace
}  // namespace pagezip::test
