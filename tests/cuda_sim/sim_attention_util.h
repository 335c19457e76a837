// Attention problems for CUDA kernels in the simulator: pages of every type, one call that plans,
// launches and merges, and what float64 says about the values as the kernels see them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/append.cuh"
#include "kernels/cuda/attend_plan.h"
#include "kernels/cuda/dispatch.cuh"
#include "tests/kernels_attention_util.h"

namespace pagezip::test {

inline constexpr int kSimBlocks = 3;  // that share a list of items

// ---- pages of any type ----

struct TestParameters {
  uint16_t scale;
  uint16_t zero;
};

inline TestParameters fit_parameters(const float* values, int count, float levels) {
  constexpr float kLargestF16 = 65504;
  const auto [low, high] = std::minmax_element(values, values + count);
  const uint16_t zero = float_to_f16(std::max(-kLargestF16, *low) + 0.0f);
  return {float_to_f16((std::min(kLargestF16, *high) + 0.0f - f16_to_float(zero)) / levels), zero};
}

/// Rounds and writes one side of a pair; `elements` and `parameters` are where those of a page
/// begin.
inline void write_side(KvType type, const float* values, int head_dim, std::byte* elements,
                       std::byte* parameters, int64_t slot, int64_t first, int64_t stride) {
  if (!is_quantised(type)) {
    for (int d = 0; d < head_dim; ++d) {
      put_element(type, elements, first + d * stride, values[d]);
    }
    return;
  }
  const float levels = type == KvType::kI8 ? 255 : 15;
  const TestParameters p = fit_parameters(values, head_dim, levels);
  std::memcpy(parameters + 4 * slot, &p, 4);
  const float scale = f16_to_float(p.scale);
  for (int d = 0; d < head_dim; ++d) {
    const float code =
        scale == 0
            ? 0
            : std::clamp(std::rint((values[d] - f16_to_float(p.zero)) / scale), 0.0f, levels);
    const int64_t at = slot * head_dim + d;
    if (type == KvType::kI8) {
      elements[at] = static_cast<std::byte>(code);
    } else {
      const auto byte = std::to_integer<unsigned>(elements[at / 2]);
      const auto nibble = static_cast<unsigned>(code);
      elements[at / 2] =
          static_cast<std::byte>(d % 2 == 0 ? nibble | 0xf0u : (byte & 0x0fu) | nibble << 4);
    }
  }
}

inline void write_pair(const PageLayout& page, std::byte* start, int64_t slot, const float* k,
                       const float* v) {
  write_side(page.k_type, k, page.head_dim, start, start + page.k_elements_bytes(), slot,
             slot * page.key_stride(), page.key_channel_stride());
  std::byte* values = start + page.k_bytes();
  write_side(page.v_type, v, page.head_dim, values, values + page.v_elements_bytes(), slot,
             slot * page.head_dim, 1);
}

/// Writes what `plain` says into pages in an order of `seed`, and replaces it by what they hold.
inline PagedSegment write_pages(const PageLayout& page, int layers, int kv_heads,
                                PlainSegment& plain, uint64_t seed) {
  const int64_t first_page = plain.first_pair / page.page_tokens;
  std::vector<int64_t> lengths;
  for (int i = 0; i < (plain.ragged ? layers * kv_heads : 1); ++i) {
    lengths.push_back(plain.length(i, page.head_dim));
  }
  PagedSegment paged = make_empty_pages(page, layers, kv_heads, lengths, first_page, seed);
  paged.segment.first_position = plain.first_position;
  for (int i = 0; i < layers * kv_heads; ++i) {
    const auto at = static_cast<size_t>(i);
    for (int64_t pair = first_page * page.page_tokens;
         pair < paged.segment.length(i / kv_heads, i % kv_heads); ++pair) {
      std::byte* start = paged.segment.page(i / kv_heads, i % kv_heads, pair / page.page_tokens);
      const int64_t slot = pair % page.page_tokens;
      float* k = &plain.k[at][static_cast<size_t>(pair * page.head_dim)];
      float* v = &plain.v[at][static_cast<size_t>(pair * page.head_dim)];
      write_pair(page, start, slot, k, v);
      for (int d = 0; d < page.head_dim; ++d) {
        k[d] = cuda::load_key(page, start, slot, d);
        v[d] = cuda::load_value(page, start, slot, d);
      }
    }
  }
  return paged;
}

// ---- problems ----

struct TypePair {
  KvType k;
  KvType v;
  bool tensor_cores;
};
inline const std::vector<TypePair>& type_pairs() {
  static const std::vector<TypePair> pairs = {
      {KvType::kF16, KvType::kF16, true}, {KvType::kBF16, KvType::kBF16, true},
      {KvType::kI8, KvType::kI8, true},   {KvType::kI4, KvType::kI4, true},
      {KvType::kI8, KvType::kI4, true},   {KvType::kF32, KvType::kF32, false},
      {KvType::kF16, KvType::kI8, false}, {KvType::kI4, KvType::kBF16, false},
  };
  return pairs;
}

inline AttendProblem random_sim_shape(Prng& prng, size_t types) {
  AttendProblem problem = random_shape(prng);
  const TypePair& pair = type_pairs()[types % type_pairs().size()];
  problem.page.k_type = pair.k;
  problem.page.v_type = pair.v;
  problem.page.head_dim = pair.tensor_cores ? pick(prng, {64, 128, 256}) : pick(prng, {64, 80});
  if (is_quantised(pair.k)) {
    problem.page.key_order = KeyOrder::kPlain;
  }
  problem.kv_heads = pick(prng, {1, 2});
  problem.heads = problem.kv_heads * pick(prng, {1, 3, 4, 7, 8});
  return problem;
}

/// Queries as tensor cores see them.
inline void round_queries(AttendProblem& problem) {
  if (cuda::uses_tensor_cores(problem.page)) {
    const KvType type = problem.page.k_type == KvType::kBF16 ? KvType::kBF16 : KvType::kF16;
    for (float& value : problem.q.data) {
      value = round_to(type, value);
    }
  }
}

// ---- launches ----

/// The problems' views with their pages, as one batch.
struct SimBatch {
  std::vector<PagedView> views;
  std::vector<AttentionSpan> spans;
  Matrix q{0, 0};
};

inline SimBatch make_batch(std::vector<AttendProblem>& problems, uint64_t seed) {
  SimBatch batch;
  int64_t rows = 0;
  for (AttendProblem& problem : problems) {
    round_queries(problem);
    PagedView& paged = batch.views.emplace_back();
    for (PlainSegment& segment : problem.segments) {
      paged.segments.push_back(
          write_pages(problem.page, problem.layers, problem.kv_heads, segment, seed++));
      paged.view.push(paged.segments.back().segment);
    }
    rows += problem.q.rows;
  }
  batch.q = Matrix(rows, problems[0].heads * problems[0].page.head_dim, kNan, 2);
  rows = 0;
  for (size_t i = 0; i < problems.size(); ++i) {
    const AttendProblem& problem = problems[i];
    batch.spans.push_back({rows, problem.q.rows, problem.first_position, &batch.views[i].view,
                           problem.layer, problem.window});
    copy_rows(problem.q, 0, batch.q, rows, problem.q.rows);
    rows += problem.q.rows;
  }
  return batch;
}

struct SimOutput {
  Matrix out{0, 0};
  Matrix lse{0, 0};
};

/// Plans, launches and merges one batch. All device buffers have the exact size, and begin as NaN.
inline SimOutput sim_attend(const AttendProblem& shape, const SimBatch& batch,
                            const ScoreRange* score, int64_t pairs_per_item = cuda::kRunPairs) {
  const cuda::AttendPlan plan = cuda::plan_attend(shape.page, shape.heads, shape.kv_heads,
                                                  batch.spans, score, pairs_per_item);
  const int head_dim = shape.page.head_dim;
  SimOutput result{Matrix(batch.q.rows, batch.q.cols, kNan, 3),
                   Matrix(batch.q.rows, shape.heads, kNan, 1)};
  std::vector<float> partial_out(score == nullptr ? plan.partials * head_dim : 0, kNan);
  std::vector<SoftmaxState<float>> states(static_cast<size_t>(plan.partials), {kNan, kNan});
  std::vector<uint32_t> next_item{0};
  cuda::AttendParams params{.page = shape.page,
                            .heads = shape.heads,
                            .kv_heads = shape.kv_heads,
                            .scale = shape.scale,
                            .q = batch.q.data.data(),
                            .q_stride = batch.q.stride,
                            .segments = plan.segments.data(),
                            .rows = plan.rows.data(),
                            .items = plan.items.data(),
                            .item_count = static_cast<int>(plan.items.size()),
                            .next_item = next_item.data(),
                            .partial_out = score == nullptr ? partial_out.data() : nullptr,
                            .partial_states = states.data()};
  cuda::attend(params, plan.many_rows, kSimBlocks, {});
  cuda::merge_partials({.heads = shape.heads,
                        .kv_heads = shape.kv_heads,
                        .head_dim = head_dim,
                        .row_count = plan.row_count,
                        .rows = plan.rows.data(),
                        .first = plan.first.data(),
                        .entries = plan.entries.data(),
                        .partial_out = partial_out.data(),
                        .partial_states = states.data(),
                        .out = score == nullptr ? result.out.data.data() : nullptr,
                        .out_stride = result.out.stride,
                        .lse = result.lse.data.data(),
                        .lse_stride = result.lse.stride,
                        .next_item = next_item.data()},
                       {});
  if (plan.row_count > 0) {
    EXPECT_EQ(next_item[0], 0U) << "the list is not ready for the next launch";
  }
  return result;
}

// ---- expectations ----

/// What tensor cores add to the errors of float32: probabilities and values of 16 bits, and sums of
/// codes, which are larger than the products that they become.
struct ExtraError {
  double logit = 0;
  double out = 0;
};

inline ExtraError extra_error(const AttendProblem& problem) {
  constexpr double kValueBound = 1.1;  // values are uniform in [-1, 1]
  constexpr double kKeyBound = 6;      // |zero| + scale * code for keys in [-2, 2]
  ExtraError extra;
  if (!cuda::uses_tensor_cores(problem.page)) {
    return extra;
  }
  const int head_dim = problem.page.head_dim;
  if (is_quantised(problem.page.k_type)) {
    extra.logit = std::fabs(problem.scale) * head_dim * kKeyBound * kRounding * (head_dim + 4);
  }
  const double half = problem.page.v_type == KvType::kBF16 ? 0x1p-9 : 0x1p-11;
  extra.out = kValueBound * (half * (is_quantised(problem.page.v_type) ? 2 : 1) +
                             cuda::kRunPairs * 0x1p-25 + 2 * extra.logit);
  return extra;
}

inline void expect_output(const AttendProblem& problem, const SimOutput& result, int64_t first_row,
                          bool with_out, const std::string& what) {
  const AttendExpected expected = naive_attend(problem);
  const ExtraError extra = extra_error(problem);
  const int64_t columns = problem.heads * problem.page.head_dim;
  for (int64_t i = 0; with_out && i < problem.q.rows * columns; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_NEAR(result.out.row(first_row + i / columns)[i % columns], expected.out[at],
                expected.out_error[at] + extra.out)
        << what << ", row " << i / columns << ", column " << i % columns;
  }
  const auto& lse = with_out ? expected.lse : expected.score_lse;
  const auto& lse_error = with_out ? expected.lse_error : expected.score_lse_error;
  for (int64_t i = 0; i < problem.q.rows * problem.heads; ++i) {
    const auto at = static_cast<size_t>(i);
    const float value = result.lse.row(first_row + i / problem.heads)[i % problem.heads];
    const std::string where = what + ", LSE of row " + std::to_string(i / problem.heads) +
                              ", head " + std::to_string(i % problem.heads);
    if (std::isinf(lse[at])) {
      ASSERT_EQ(value, -kInfinity) << where;
    } else {
      ASSERT_NEAR(value, lse[at], lse_error[at] + extra.logit) << where;
    }
  }
}

// ---- random problems ----

inline int64_t random_length(Prng& prng, int page_tokens) {
  return pick<int64_t>(prng, {0, 1, page_tokens - 1, page_tokens, page_tokens + 1, 3 * page_tokens,
                              63, 64, 65, 100, prng.range(0, 300)});
}

/// Up to three segments, ragged or uniform, with or without a window.
inline AttendProblem random_sim_problem(Prng& prng, size_t types) {
  AttendProblem problem = random_sim_shape(prng, types);
  const int count = static_cast<int>(prng.range(0, 3));
  const bool windowed = prng.chance(0.3);
  int64_t position = 0;
  int64_t ragged_end = 0;
  for (int s = 0; s < count; ++s) {
    std::vector<int64_t> lengths;
    const bool ragged = !windowed && prng.chance(0.5);
    for (int i = 0; i < (ragged ? kLayers * problem.kv_heads : 1); ++i) {
      lengths.push_back(random_length(prng, problem.page.page_tokens));
    }
    push_segment(prng, problem, lengths, position);
    position += *std::max_element(lengths.begin(), lengths.end()) + (ragged ? 9 : 0);
    ragged_end = ragged ? position : ragged_end;
  }
  const int64_t rows = affordable_rows(problem, position, pick<int64_t>(prng, {1, 1, 2, 5, 20}));
  problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim, 1, 3);
  problem.first_position = std::max(
      {int64_t{0}, ragged_end, prng.chance(0.5) ? position - rows : prng.range(0, position)});
  if (windowed) {
    problem.window = static_cast<int>(pick<int64_t>(prng, {1, 2, 16, 17, 65, prng.range(1, 300)}));
    drop_pairs_behind_window(problem);
  }
  return problem;
}

inline void expect_matches(AttendProblem problem, uint64_t seed, const std::string& what) {
  cuda_sim::options().seed = seed % 4;
  std::vector<AttendProblem> problems{std::move(problem)};
  const SimBatch batch = make_batch(problems, seed);
  expect_output(problems[0], sim_attend(problems[0], batch, nullptr), 0, true, what);
}

}  // namespace pagezip::test
