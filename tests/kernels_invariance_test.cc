// The promise of kernels.h that every backend keeps bit for bit: a row's result does not depend on
// the other rows of the call, on how a prompt is cut into calls, on the number of threads, on the
// page size and the order of its keys, or on which pages hold the pairs.
#include "tests/kernels_attention_util.h"

namespace pagezip::test {
namespace {

class KernelsInvarianceTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
  ThreadPool pools_[3]{ThreadPool(1), ThreadPool(2), ThreadPool(3)};
};

INSTANTIATE_TEST_SUITE_P(Backends, KernelsInvarianceTest, testing::ValuesIn(backends()),
                         backend_name);

Matrix rows_of(const Matrix& matrix, int64_t begin, int64_t end) {
  Matrix rows(end - begin, matrix.cols);
  copy_rows(matrix, begin, rows, 0, rows.rows);
  return rows;
}

/// Ascending cuts of [0, rows), both ends included: single rows, or pieces of random sizes.
std::vector<int64_t> cuts(Prng& prng, int64_t rows, bool single_rows) {
  std::vector<int64_t> result{0};
  while (result.back() < rows) {
    const int64_t piece = single_rows ? 1 : prng.range(1, rows - result.back());
    result.push_back(result.back() + piece);
  }
  return result;
}

// A prompt's own segment is the last one; some problems have a document before it, some a window,
// some the scores' LSE.
AttendProblem prompt_problem(Prng& prng) {
  AttendProblem problem = random_shape(prng);
  int64_t position = 0;
  const int kind = static_cast<int>(prng.below(4));
  if (kind == 1) {  // ragged document, one head far longer than the rest
    std::vector<int64_t> lengths(static_cast<size_t>(kLayers * problem.kv_heads));
    for (int64_t& length : lengths) {
      length = prng.range(0, 9);
    }
    lengths[prng.below(lengths.size())] = 700;
    push_segment(prng, problem, lengths, 0);
    position = 900;
  } else if (kind == 2) {  // uniform document that is being scored
    position = prng.range(200, 600);
    push_segment(prng, problem, {position}, 0);
    const int64_t begin = prng.range(0, position - 1);
    problem.score = PairRanges{prng.range(0, begin), begin, prng.range(begin, position)};
  } else if (kind == 3) {
    problem.window = static_cast<int>(pick<int64_t>(prng, {16, 40, 255, 256}));
  }
  const int64_t length = pick<int64_t>(prng, {40, 255, 257, 530});
  push_segment(prng, problem, {length}, position);
  const int64_t rows = affordable_rows(problem, position + length,
                                       std::min(length, pick<int64_t>(prng, {2, 13, 33, 40})));
  problem.first_position = position + length - rows;
  problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim);
  return problem;
}

/// The call that computes rows [begin, end) before any later pair is stored.
AttendProblem part_of(const AttendProblem& problem, int64_t begin, int64_t end) {
  AttendProblem part = problem;
  part.q = rows_of(problem.q, begin, end);
  part.first_position += begin;
  PlainSegment& own = part.segments.back();
  const int64_t length = problem.first_position + end - own.first_position;
  for (auto* plain : {&own.k, &own.v}) {
    for (auto& values : *plain) {
      values.resize(static_cast<size_t>(length * problem.page.head_dim));
    }
  }
  drop_pairs_behind_window(part);
  return part;
}

TEST_P(KernelsInvarianceTest, AttendInOtherPagesAndThreads) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Prng prng(seed);
    AttendProblem problem = prompt_problem(prng);
    drop_pairs_behind_window(problem);
    problem.page.page_tokens = 16;
    const AttendResult base = run_attend(kernels(), pools_[0], problem, true, seed);
    for (const int page_tokens : {16, 32, 64}) {
      problem.page.page_tokens = page_tokens;
      problem.page.key_order = pick(prng, {KeyOrder::kPlain, KeyOrder::kTransposed});
      ThreadPool& pool = pools_[prng.below(3)];
      const AttendResult other = run_attend(kernels(), pool, problem, true, seed + 100);
      const std::string what = "seed " + std::to_string(seed) + ", " + std::to_string(page_tokens) +
                               " tokens per page, " + std::to_string(pool.threads()) + " threads";
      expect_same_bits(base.out.data, other.out.data, what);
      expect_same_bits(base.lse.data, other.lse.data, what + ", LSE");
      expect_same_bits(base.score_lse.data, other.score_lse.data, what + ", scores' LSE");
      if (HasFatalFailure()) {
        return;
      }
    }
    if (problem.score) {
      const AttendResult only_lse = run_attend(kernels(), pools_[1], problem, false, seed);
      expect_same_bits(base.score_lse.data, only_lse.score_lse.data, "LSE without the output");
    }
  }
}

TEST_P(KernelsInvarianceTest, AttendCutIntoCalls) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Prng prng(100 + seed);
    AttendProblem problem = prompt_problem(prng);
    drop_pairs_behind_window(problem);
    const AttendResult whole = run_attend(kernels(), pools_[0], problem, true, seed);
    const std::vector<int64_t> ends = cuts(prng, problem.q.rows, false);
    for (size_t i = 1; i < ends.size(); ++i) {
      // The piece whole, and its last row alone.
      for (const int64_t begin : {ends[i - 1], ends[i] - 1}) {
        const AttendProblem part = part_of(problem, begin, ends[i]);
        const AttendResult result = run_attend(kernels(), pools_[i % 3], part, true, seed + i);
        const std::string what = "seed " + std::to_string(seed) + ", rows " +
                                 std::to_string(begin) + " to " + std::to_string(ends[i]);
        expect_same_bits(rows_of(whole.out, begin, ends[i]).data, result.out.data, what);
        expect_same_bits(rows_of(whole.lse, begin, ends[i]).data, result.lse.data, what);
        expect_same_bits(rows_of(whole.score_lse, begin, ends[i]).data, result.score_lse.data,
                         what);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_P(KernelsInvarianceTest, AttendBesideOtherSpans) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Prng prng(200 + seed);
    AttendProblem shape = prompt_problem(prng);
    shape.score.reset();
    std::vector<AttendProblem> problems{shape};
    while (problems.size() < 5) {
      AttendProblem other = shape;
      const int64_t length = prng.range(1, 300);
      const int64_t rows = std::min(length, affordable_rows(other, length, prng.range(1, 20)));
      other.segments.clear();
      push_segment(prng, other, {length}, 0);
      other.first_position = length - rows;
      other.q = random_matrix(prng, rows, shape.heads * shape.page.head_dim);
      problems.push_back(other);
    }
    const auto together = attend_batch(kernels(), pools_[2], problems, true, seed);
    for (size_t i = 0; i < problems.size(); ++i) {
      const AttendResult alone = run_attend(kernels(), pools_[1], problems[i], true, seed + i);
      expect_same_bits(alone.out.data, together[i].out.data, "span " + std::to_string(i));
      expect_same_bits(alone.lse.data, together[i].lse.data, "LSE of span " + std::to_string(i));
    }
  }
}

/// Lengths of a document's lists: full, or ragged with empty heads and one far longer than the
/// rest.
std::vector<int64_t> document_lengths(Prng& prng, int kv_heads) {
  if (prng.chance(0.3)) {
    return {prng.range(1, 800)};
  }
  std::vector<int64_t> lengths(static_cast<size_t>(kLayers * kv_heads));
  for (int64_t& length : lengths) {
    length = pick<int64_t>(prng, {0, 7, 10, prng.range(0, 300)});
  }
  lengths[prng.below(lengths.size())] = prng.chance(0.5) ? 1000 : 0;
  return lengths;
}

struct Sharers {
  std::vector<AttendProblem> problems;
  std::vector<PagedSegment> documents;            // two with different pairs
  std::vector<const PagedSegment*> documents_of;  // [problems]
};

/// Requests on two documents, and some on neither: decode rows, prompts, and, where the document is
/// uniform, rows in the middle of it; with the same window or without.
Sharers random_sharers(Prng& prng, const Kernels& kernels, int group) {
  Sharers sharers;
  AttendProblem shape = random_shape(prng);
  shape.heads = shape.kv_heads * group;
  shape.page.head_dim = pick(prng, {16, 64});
  std::vector<PlainSegment> plain;
  for (uint64_t i = 0; i < 2; ++i) {
    plain.push_back(random_segment(prng, shape.page, shape.layers, shape.kv_heads,
                                   document_lengths(prng, shape.kv_heads)));
    sharers.documents.push_back(
        make_pages(kernels, shape.page, shape.layers, shape.kv_heads, plain.back(), i));
  }
  const int64_t count = prng.range(2, 20);
  for (int64_t i = 0; i < count; ++i) {
    AttendProblem problem = shape;
    const auto which = static_cast<size_t>(prng.below(10));
    const PlainSegment& document = plain[which < 7 ? 0 : 1];
    sharers.documents_of.push_back(which == 9 ? nullptr : &sharers.documents[which < 7 ? 0 : 1]);
    problem.segments.push_back(document);
    const int64_t length = document.ragged ? 1000 : document.length(0, shape.page.head_dim);
    const int64_t own = pick<int64_t>(prng, {1, 17, 40, 300});
    push_segment(prng, problem, {own}, length);
    const int64_t rows = std::min(own, pick<int64_t>(prng, {1, 1, 1, 2, 20}));
    problem.q = random_matrix(prng, rows, shape.heads * shape.page.head_dim);
    problem.first_position = length + own - rows;
    if (!document.ragged) {
      problem.window = pick(prng, {0, 0, 5000, 200});
      problem.first_position = prng.chance(0.1) ? prng.range(0, length) : problem.first_position;
    }
    problem.layer = prng.chance(0.1) ? 1 - shape.layer : shape.layer;
    sharers.problems.push_back(std::move(problem));
  }
  return sharers;
}

// Requests on one document read its pages together; nobody's bits show it.
TEST_P(KernelsInvarianceTest, AttendBesideSharersOfTheDocument) {
  for (const int group : {1, 3, 4, 7, 8}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Prng prng(600 + seed);
      const Sharers sharers = random_sharers(prng, kernels(), group);
      const auto together = attend_batch(kernels(), pools_[prng.below(3)], sharers.problems, true,
                                         seed, sharers.documents_of);
      for (size_t i = 0; i < sharers.problems.size(); ++i) {
        const AttendResult alone =
            run_attend(kernels(), pools_[prng.below(3)], sharers.problems[i], true, seed + i);
        const std::string what = "group " + std::to_string(group) + ", seed " +
                                 std::to_string(seed) + ", request " + std::to_string(i);
        expect_same_bits(alone.out.data, together[i].out.data, what);
        expect_same_bits(alone.lse.data, together[i].lse.data, what + ", LSE");
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

/// best[kv_heads, chunk] of score(), computed in parts of rows and of the chunk.
Matrix score_in_parts(const Kernels& kernels, ThreadPool& pool, const AttendProblem& problem,
                      const Matrix* lse, const std::vector<int64_t>& row_cuts,
                      const std::vector<int64_t>& pair_cuts, uint64_t seed) {
  const PagedView paged = make_view(kernels, problem, seed);
  const auto columns = [](MatrixView<float> matrix, int64_t begin, int64_t end) {
    return MatrixView<float>(matrix.data + begin, matrix.rows, end - begin, matrix.stride);
  };
  Matrix best(problem.kv_heads, pair_cuts.back(), -std::numeric_limits<float>::infinity());
  for (size_t i = 1; i < row_cuts.size(); ++i) {
    const int64_t rows = row_cuts[i] - row_cuts[i - 1];
    for (size_t j = 1; j < pair_cuts.size(); ++j) {
      const int64_t chunk_begin = problem.score->chunk_begin;
      kernels.score(
          {problem.page, problem.heads, problem.kv_heads, problem.scale,
           problem.q.view().slice(row_cuts[i - 1], rows),
           lse != nullptr ? lse->view().slice(row_cuts[i - 1], rows) : MatrixView<const float>(),
           &paged.view.segments[0], problem.layer, chunk_begin + pair_cuts[j - 1],
           chunk_begin + pair_cuts[j], columns(best.view(), pair_cuts[j - 1], pair_cuts[j])},
          pool);
    }
  }
  return best;
}

TEST_P(KernelsInvarianceTest, Score) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Prng prng(300 + seed);
    AttendProblem problem = random_shape(prng);
    push_segment(prng, problem, {400}, 0);
    const int64_t chunk = pick<int64_t>(prng, {1, 15, 16, 17, 300});
    const int64_t begin = prng.range(0, 400 - chunk);
    problem.score = PairRanges{0, begin, begin + chunk};
    const int64_t rows = affordable_rows(problem, chunk, pick<int64_t>(prng, {1, 2, 17, 33}));
    problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim);
    const Matrix lse_matrix = random_matrix(prng, rows, problem.heads, 3);
    const Matrix* lse = prng.chance(0.7) ? &lse_matrix : nullptr;
    problem.page.page_tokens = 16;
    const Matrix whole =
        score_in_parts(kernels(), pools_[0], problem, lse, {0, rows}, {0, chunk}, seed);
    for (const int page_tokens : {16, 32, 64}) {
      problem.page.page_tokens = page_tokens;
      problem.page.key_order = pick(prng, {KeyOrder::kPlain, KeyOrder::kTransposed});
      const Matrix other =
          score_in_parts(kernels(), pools_[prng.below(3)], problem, lse,
                         cuts(prng, rows, prng.chance(0.3)), cuts(prng, chunk, false), seed + 100);
      expect_same_bits(whole.data, other.data, "seed " + std::to_string(seed));
    }
  }
}

// Rows alone and in a batch, targets alone and together, any number of threads.
TEST_P(KernelsInvarianceTest, Matmul) {
  Prng prng(400);
  for (const ActivationType activations : {ActivationType::kQ8, ActivationType::kF32}) {
    std::vector<TestWeight> weights;
    for (const WeightType type : all_weight_types()) {
      weights.push_back(random_weight(prng, type, prng.range(1, 70), 512));
      kernels().pack(weights.back().weight, activations, pools_[prng.below(3)]);
    }
    const int64_t rows = 37;
    const Matrix x = random_matrix(prng, rows, 512);
    const auto run = [&](ThreadPool& pool, int64_t begin, int64_t end,
                         std::span<const TestWeight> which) {
      const Matrix input = rows_of(x, begin, end);
      Activations prepared;
      kernels().prepare(input.view(), activations, prepared, pool);
      std::vector<Matrix> outs;
      for (const TestWeight& weight : which) {
        outs.emplace_back(end - begin, weight.weight.rows, kNan);
      }
      std::vector<MatmulTarget> targets;
      for (size_t t = 0; t < which.size(); ++t) {
        targets.push_back({&which[t].weight, nullptr, outs[t].view()});
      }
      kernels().matmul(prepared, activations, targets, pool);
      return outs;
    };
    // A call takes the few weights that read one input, not all types at once.
    constexpr size_t kTogether = 5;
    std::vector<Matrix> whole;
    for (size_t w = 0; w < weights.size(); w += kTogether) {
      const size_t count = std::min(kTogether, weights.size() - w);
      for (Matrix& out : run(pools_[0], 0, rows, std::span(weights).subspan(w, count))) {
        whole.push_back(std::move(out));
      }
    }
    for (const bool single_rows : {false, true}) {
      const std::vector<int64_t> ends = cuts(prng, rows, single_rows);
      for (size_t i = 1; i < ends.size(); ++i) {
        for (size_t w = 0; w < weights.size(); ++w) {
          const std::vector<Matrix> part =
              run(pools_[i % 3], ends[i - 1], ends[i], std::span(weights).subspan(w, 1));
          expect_same_bits(rows_of(whole[w], ends[i - 1], ends[i]).data, part[0].data,
                           info(weights[w].weight.type).name);
        }
      }
    }
  }
}

TEST_P(KernelsInvarianceTest, RowOperations) {
  Prng prng(500);
  for (const int64_t cols : {64, 192}) {
    const int64_t rows = 19;
    const Matrix x = random_matrix(prng, rows, cols, 4);
    const Matrix y = random_matrix(prng, rows, cols);
    const Matrix angles = random_matrix(prng, rows, 32);
    const auto run = [&](ThreadPool& pool, int64_t begin, int64_t end) {
      Matrix out = rows_of(x, begin, end);
      const auto angle = angles.view().slice(begin, end - begin);
      kernels().rms_norm(out.view(), y.row(0), 1e-5f, out.view(), pool);
      kernels().rope(out.view(), 64, RopeStyle::kHalfSplit, angle, angle, pool);
      kernels().rope(out.view(), 64, RopeStyle::kInterleaved, angle, angle, pool);
      kernels().gate(GateFunction::kSilu, out.view(), y.view().slice(begin, end - begin), pool);
      kernels().gate(GateFunction::kGeluTanh, out.view(), y.view().slice(begin, end - begin), pool);
      kernels().add(out.view(), y.view().slice(begin, end - begin), pool);
      return out;
    };
    const Matrix whole = run(pools_[0], 0, rows);
    for (const bool single_rows : {false, true}) {
      const std::vector<int64_t> ends = cuts(prng, rows, single_rows);
      for (size_t i = 1; i < ends.size(); ++i) {
        expect_same_bits(rows_of(whole, ends[i - 1], ends[i]).data,
                         run(pools_[i % 3], ends[i - 1], ends[i]).data, "row operations");
      }
    }
  }
}

}  // namespace
}  // namespace pagezip::test
