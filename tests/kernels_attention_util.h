// Attention as the suites see it: keys and values in plain arrays, the pages made from them, one
// call over spans, and naive softmax on the plain arrays as the source of expected values.
#pragma once

#include <optional>

#include "tests/kernels_test_util.h"

namespace pagezip::test {

inline float round_to(KvType type, float value) {
  switch (type) {
    case KvType::kF16:
      return f16_to_float(float_to_f16(value));
    case KvType::kBF16:
      return bf16_to_float(float_to_bf16(value));
    default:
      break;
  }
  return value;
}

/// Writes one element of a page.
inline void put_element(KvType type, std::byte* elements, int64_t index, float value) {
  if (type == KvType::kF32) {
    std::memcpy(elements + 4 * index, &value, 4);
    return;
  }
  const uint16_t half = type == KvType::kF16 ? float_to_f16(value) : float_to_bf16(value);
  std::memcpy(elements + 2 * index, &half, 2);
}

/// By the published layout: V [page_tokens, head_dim], K likewise or transposed.
inline int64_t key_element(const PageLayout& page, int64_t slot, int64_t channel) {
  return page.key_order == KeyOrder::kPlain ? slot * page.head_dim + channel
                                            : channel * page.page_tokens + slot;
}

inline void put_pair(const PageLayout& page, std::byte* page_start, int64_t slot, const float* k,
                     const float* v) {
  for (int d = 0; d < page.head_dim; ++d) {
    put_element(page.k_type, page_start, key_element(page, slot, d), k[d]);
    put_element(page.v_type, page_start + page.k_bytes(), slot * page.head_dim + d, v[d]);
  }
}

/// Keys and values of one segment in plain arrays, already rounded to the types of the pages.
struct PlainSegment {
  bool ragged = false;
  int64_t first_position = 0;
  int64_t first_pair = 0;                // whole pages before it are not kept
  std::vector<std::vector<float>> k, v;  // [layers * kv_heads] of [length, head_dim]

  int64_t length(int layer_head, int head_dim) const {
    return static_cast<int64_t>(k[static_cast<size_t>(layer_head)].size()) / head_dim;
  }
};

/// One length for a uniform segment, or one for each (layer, head) of a ragged one.
inline PlainSegment random_segment(Prng& prng, const PageLayout& page, int layers, int kv_heads,
                                   const std::vector<int64_t>& lengths) {
  PlainSegment segment;
  segment.ragged = lengths.size() > 1;
  for (int i = 0; i < layers * kv_heads; ++i) {
    const int64_t length = lengths[segment.ragged ? static_cast<size_t>(i) : 0];
    auto& k = segment.k.emplace_back(static_cast<size_t>(length * page.head_dim));
    auto& v = segment.v.emplace_back(k.size());
    for (size_t j = 0; j < k.size(); ++j) {
      k[j] = round_to(page.k_type, random_float(prng, 2));
      v[j] = round_to(page.v_type, random_float(prng, 1));
    }
  }
  return segment;
}

/// A segment in pages of its own, in shuffled order. All bytes that hold no pair are 0xff, which is
/// a NaN in every type.
struct PagedSegment {
  AlignedBytes memory;
  std::vector<uint32_t> ids;
  std::vector<uint32_t> first;
  std::vector<uint32_t> lengths;
  Segment segment;
};

inline int64_t pages_for(int64_t pairs, int page_tokens) {
  return (pairs + page_tokens - 1) / page_tokens;
}

/// Empty pages: `lengths` as in random_segment(), for which there is room.
inline PagedSegment make_empty_pages(const PageLayout& page, int layers, int kv_heads,
                                     const std::vector<int64_t>& lengths, int64_t first_page,
                                     uint64_t seed) {
  constexpr uint32_t kSpare = 3;  // pages or blocks in the pool that belong to nobody
  constexpr uint64_t kOffset = 2;
  PagedSegment paged;
  Segment& segment = paged.segment;
  const auto page_units = static_cast<uint64_t>(page.page_bytes() / PageLayout::kUnit);
  const bool ragged = lengths.size() > 1;
  uint32_t ids = 0;
  if (ragged) {
    for (const int64_t length : lengths) {
      paged.first.push_back(ids);
      paged.lengths.push_back(static_cast<uint32_t>(length));
      ids += static_cast<uint32_t>(pages_for(length, page.page_tokens));
    }
    segment.scale = page_units;
  } else {
    ids = static_cast<uint32_t>(
        std::max<int64_t>(0, pages_for(lengths[0], page.page_tokens) - first_page));
    segment.uniform_length = lengths[0];
    segment.first_page = first_page;
    segment.head_stride = page_units;
    segment.layer_stride = page_units * static_cast<uint64_t>(kv_heads);
    segment.scale = segment.layer_stride * static_cast<uint64_t>(layers);
  }
  Prng prng(seed);
  paged.ids = shuffled(prng, ids + kSpare);
  paged.memory =
      AlignedBytes(PageLayout::kUnit * ((ids + kSpare) * segment.scale + kOffset + page_units));
  std::memset(paged.memory.data(), 0xff, paged.memory.size());
  segment.base = paged.memory.data();
  segment.ids = paged.ids.data();
  segment.first = ragged ? paged.first.data() : nullptr;
  segment.lengths = ragged ? paged.lengths.data() : nullptr;
  segment.offset = kOffset;
  segment.heads = kv_heads;
  return paged;
}

/// Stores rows as pairs [first_pair, first_pair + rows) of one segment.
inline void store_pairs(const Kernels& kernels, const PageLayout& page, int kv_heads,
                        MatrixView<const float> k, MatrixView<const float> v,
                        const Segment& segment, int layer, int64_t first_pair, ThreadPool& pool) {
  KvView view;
  view.push(segment);
  const AttentionSpan span{0, k.rows, segment.first_position + first_pair, &view, layer, 0};
  kernels.store_kv({page, kv_heads, k, v, {&span, 1}}, pool);
}

/// Uniform segments are written by the backend's store_kv() in a few calls, ragged ones by hand.
inline PagedSegment make_pages(const Kernels& kernels, const PageLayout& page, int layers,
                               int kv_heads, const PlainSegment& plain, uint64_t seed) {
  const int64_t first_page = plain.first_pair / page.page_tokens;
  std::vector<int64_t> lengths;
  for (int i = 0; i < (plain.ragged ? layers * kv_heads : 1); ++i) {
    lengths.push_back(plain.length(i, page.head_dim));
  }
  PagedSegment paged = make_empty_pages(page, layers, kv_heads, lengths, first_page, seed);
  paged.segment.first_position = plain.first_position;
  Prng prng(seed);
  ThreadPool pool(1);
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; plain.ragged && head < kv_heads; ++head) {
      const auto at = static_cast<size_t>(layer * kv_heads + head);
      for (int64_t i = 0; i < lengths[at]; ++i) {
        put_pair(page, paged.segment.page(layer, head, i / page.page_tokens), i % page.page_tokens,
                 &plain.k[at][static_cast<size_t>(i * page.head_dim)],
                 &plain.v[at][static_cast<size_t>(i * page.head_dim)]);
      }
    }
    int64_t begin = first_page * page.page_tokens;
    while (!plain.ragged && begin < lengths[0]) {
      const int64_t rows = prng.range(1, lengths[0] - begin);
      Matrix k(rows, kv_heads * page.head_dim);
      Matrix v(rows, kv_heads * page.head_dim);
      for (int64_t i = 0; i < rows * kv_heads; ++i) {
        const auto at = static_cast<size_t>(layer * kv_heads + i % kv_heads);
        const int64_t from = (begin + i / kv_heads) * page.head_dim;
        std::copy_n(plain.k[at].data() + from, page.head_dim, &k.data[i * page.head_dim]);
        std::copy_n(plain.v[at].data() + from, page.head_dim, &v.data[i * page.head_dim]);
      }
      store_pairs(kernels, page, kv_heads, k.view(), v.view(), paged.segment, layer, begin, pool);
      begin += rows;
    }
  }
  return paged;
}

struct PairRanges {
  int64_t prefix_end = 0;
  int64_t chunk_begin = 0;
  int64_t chunk_end = 0;
  int segment = 0;
};

/// One span with all that it reads.
struct AttendProblem {
  PageLayout page;
  int layers = 2;
  int layer = 1;
  int heads = 1;
  int kv_heads = 1;
  float scale = 1;
  std::vector<PlainSegment> segments;
  int64_t first_position = 0;
  int window = 0;
  Matrix q{0, 0};
  std::optional<PairRanges> score;
};

inline constexpr int kLayers = 2;

inline KvType random_type(Prng& prng) {
  return pick(prng, {KvType::kF32, KvType::kF16, KvType::kBF16});
}

inline AttendProblem random_shape(Prng& prng) {
  AttendProblem problem;
  problem.page.k_type = random_type(prng);
  problem.page.v_type = prng.chance(0.5) ? problem.page.k_type : random_type(prng);
  problem.page.page_tokens = pick(prng, {16, 32, 64});
  problem.page.head_dim = pick(prng, {16, 64, 64, 80, 128, 256});
  problem.page.key_order = prng.chance(0.3) ? KeyOrder::kPlain : KeyOrder::kTransposed;
  problem.layers = kLayers;
  problem.layer = static_cast<int>(prng.below(kLayers));
  problem.kv_heads = pick(prng, {1, 2, 3});
  problem.heads = problem.kv_heads * pick(prng, {1, 3, 4, 7, 8});
  // From nearly uniform weights to nearly one-hot ones.
  problem.scale = static_cast<float>(pick(prng, {0.1, 1.0, 10.0}) /
                                     std::sqrt(static_cast<double>(problem.page.head_dim)));
  return problem;
}

/// `rows`, or as few as keep a test of this shape over `pairs` pairs from taking seconds.
inline int64_t affordable_rows(const AttendProblem& shape, int64_t pairs, int64_t rows) {
  constexpr int64_t kProductsMax = 1'000'000;
  const int64_t per_row = std::max<int64_t>(1, pairs * shape.heads * shape.page.head_dim);
  return std::min(rows, std::max<int64_t>(3, kProductsMax / per_row));
}

inline void push_segment(Prng& prng, AttendProblem& problem, const std::vector<int64_t>& lengths,
                         int64_t first_position) {
  problem.segments.push_back(
      random_segment(prng, problem.page, problem.layers, problem.kv_heads, lengths));
  problem.segments.back().first_position = first_position;
}

/// Pairs that lie behind the window of every row are dropped in whole pages, as the pool does.
inline void drop_pairs_behind_window(AttendProblem& problem) {
  for (PlainSegment& segment : problem.segments) {
    const int64_t first_seen = problem.first_position - problem.window + 1 - segment.first_position;
    const int64_t length = segment.length(0, problem.page.head_dim);
    if (problem.window > 0 && !segment.ragged) {
      segment.first_pair = std::clamp<int64_t>(first_seen, 0, length);
    }
  }
}

/// [rows * heads * head_dim] and [rows * heads]; with expected values, the error that float32
/// arithmetic may make.
struct AttendExpected {
  std::vector<double> out, out_error;
  std::vector<double> lse, lse_error;              // of all pairs
  std::vector<double> score_lse, score_lse_error;  // of a ScoreRange
};

/// Naive softmax over the pairs that one row and head sees.
class NaiveSoftmax {
 public:
  void add(double logit, double logit_error, const float* v) {
    logits_.push_back(logit);
    values_.push_back(v);
    logit_error_ = std::max(logit_error_, logit_error);
    max_ = std::max(max_, logit);
  }
  double error() const {
    double spread = 0;
    for (const double logit : logits_) {
      spread = std::max(spread, max_ - logit);
    }
    const auto pairs = static_cast<double>(logits_.size());
    const double terms = std::min<double>(pairs, kUnitPairs) + pairs / kUnitPairs;
    return 2 * logit_error_ + kRounding * (terms + kFunctionRoundings + std::min(spread, 100.0));
  }
  double log_sum_exp() const { return logits_.empty() ? -kInfinity : max_ + std::log(sum()); }
  /// Appends head_dim channels and their errors.
  void output(int head_dim, std::vector<double>& out, std::vector<double>& out_error) const {
    std::vector<double> value(static_cast<size_t>(head_dim));
    std::vector<double> magnitude(value.size());
    const double total = logits_.empty() ? 1 : sum();
    for (size_t i = 0; i < logits_.size(); ++i) {
      const double p = std::exp(logits_[i] - max_) / total;
      for (size_t d = 0; d < value.size(); ++d) {
        value[d] += p * values_[i][d];
        magnitude[d] += p * std::fabs(values_[i][d]);
      }
    }
    const double relative = error();
    for (size_t d = 0; d < value.size(); ++d) {
      out.push_back(value[d]);
      out_error.push_back(magnitude[d] * relative + 1e-30);
    }
  }

 private:
  double sum() const {
    double total = 0;
    for (const double logit : logits_) {
      total += std::exp(logit - max_);
    }
    return total;
  }
  std::vector<double> logits_;
  std::vector<const float*> values_;
  double logit_error_ = 0;
  double max_ = -kInfinity;
};

struct Logit {
  double value;
  double error;
};

inline Logit naive_logit(const float* q, const float* k, int head_dim, double scale) {
  double sum = 0;
  double magnitude = 0;
  for (int d = 0; d < head_dim; ++d) {
    const double product = static_cast<double>(q[d]) * k[d];
    sum += product;
    magnitude += std::fabs(product);
  }
  return {scale * sum, std::fabs(scale) * magnitude * kRounding * (head_dim + 4)};
}

inline AttendExpected naive_attend(const AttendProblem& problem) {
  const int head_dim = problem.page.head_dim;
  AttendExpected expected;
  for (int64_t item = 0; item < problem.q.rows * problem.heads; ++item) {
    const int64_t row = item / problem.heads;
    const int64_t head = item % problem.heads;
    const int64_t position = problem.first_position + row;
    const int kv_head = static_cast<int>(head) / (problem.heads / problem.kv_heads);
    const int layer_head = problem.layer * problem.kv_heads + kv_head;
    NaiveSoftmax all;
    NaiveSoftmax scored;
    for (size_t s = 0; s < problem.segments.size(); ++s) {
      const PlainSegment& segment = problem.segments[s];
      const float* k = segment.k[static_cast<size_t>(layer_head)].data();
      const float* v = segment.v[static_cast<size_t>(layer_head)].data();
      const int64_t first_kept =
          segment.first_pair / problem.page.page_tokens * problem.page.page_tokens;
      for (int64_t i = first_kept; i < segment.length(layer_head, head_dim); ++i) {
        const int64_t at = segment.first_position + i;
        if (at > position || (problem.window > 0 && at <= position - problem.window)) {
          continue;
        }
        const Logit logit = naive_logit(problem.q.row(row) + head * head_dim, k + i * head_dim,
                                        head_dim, static_cast<double>(problem.scale));
        all.add(logit.value, logit.error, v + i * head_dim);
        const auto segment_index = static_cast<int>(s);
        if (problem.score && (segment_index > problem.score->segment ||
                              (segment_index == 0 && i < problem.score->prefix_end) ||
                              (segment_index == problem.score->segment &&
                               i >= problem.score->chunk_begin && i < problem.score->chunk_end))) {
          scored.add(logit.value, logit.error, v + i * head_dim);
        }
      }
    }
    all.output(head_dim, expected.out, expected.out_error);
    const auto push_lse = [](const NaiveSoftmax& softmax, auto& values, auto& errors) {
      values.push_back(softmax.log_sum_exp());
      errors.push_back(softmax.error() + kRounding * std::fabs(values.back()));
    };
    push_lse(all, expected.lse, expected.lse_error);
    push_lse(scored, expected.score_lse, expected.score_lse_error);
  }
  return expected;
}

struct AttendResult {
  Matrix out{0, 0};
  Matrix lse{0, 0};
  Matrix score_lse{0, 0};
};

/// Builds the view of a problem and keeps its pages.
struct PagedView {
  std::vector<PagedSegment> segments;
  KvView view;
};

inline PagedView make_view(const Kernels& kernels, const AttendProblem& problem, uint64_t seed) {
  PagedView paged;
  for (const PlainSegment& segment : problem.segments) {
    paged.segments.push_back(
        make_pages(kernels, problem.page, problem.layers, problem.kv_heads, segment, seed++));
    paged.view.push(paged.segments.back().segment);
  }
  return paged;
}

/// All problems in one call, as spans in shuffled order. REQUIRES: equal shapes; scores only for a
/// single problem. documents: [problems], the pages that a problem's first segment lies in together
/// with that of others; null: pages of its own.
inline std::vector<AttendResult> attend_batch(
    const Kernels& kernels, ThreadPool& pool, const std::vector<AttendProblem>& problems,
    bool with_out, uint64_t seed, const std::vector<const PagedSegment*>& documents = {}) {
  const AttendProblem& shape = problems[0];
  std::vector<PagedView> views;
  std::vector<int64_t> first_rows;
  int64_t rows = 0;
  for (const AttendProblem& problem : problems) {
    first_rows.push_back(rows);
    rows += problem.q.rows;
    views.push_back(make_view(kernels, problem, seed + 10 * views.size()));
    if (!documents.empty() && documents[views.size() - 1] != nullptr) {
      views.back().view.segments[0] = documents[views.size() - 1]->segment;
    }
  }
  Matrix q(rows, shape.heads * shape.page.head_dim, kNan, static_cast<int64_t>(seed % 3));
  Matrix out(rows, q.cols, kNan, 3);
  Matrix lse(rows, shape.heads, kNan, 2);
  Matrix score_lse(rows, shape.heads, kNan, 3);
  std::vector<AttentionSpan> spans;
  Prng prng(seed);
  for (const uint32_t i : shuffled(prng, static_cast<uint32_t>(problems.size()))) {
    const AttendProblem& problem = problems[i];
    spans.push_back({first_rows[i], problem.q.rows, problem.first_position, &views[i].view,
                     problem.layer, problem.window});
    copy_rows(problem.q, 0, q, first_rows[i], problem.q.rows);
  }
  ScoreRange score;
  if (shape.score) {
    score = {shape.score->prefix_end, shape.score->chunk_begin, shape.score->chunk_end,
             score_lse.view(), shape.score->segment};
  }
  kernels.attend({shape.page, shape.heads, shape.kv_heads, shape.scale, q.view(),
                  with_out ? out.view() : MatrixView<float>(), spans,
                  shape.score ? &score : nullptr, with_out ? lse.view() : MatrixView<float>()},
                 pool);
  std::vector<AttendResult> results;
  for (size_t i = 0; i < problems.size(); ++i) {
    const int64_t count = problems[i].q.rows;
    results.push_back({Matrix(count, out.cols), Matrix(count, lse.cols), Matrix(count, lse.cols)});
    copy_rows(out, first_rows[i], results[i].out, 0, count);
    copy_rows(lse, first_rows[i], results[i].lse, 0, count);
    copy_rows(score_lse, first_rows[i], results[i].score_lse, 0, count);
  }
  return results;
}

inline AttendResult run_attend(const Kernels& kernels, ThreadPool& pool,
                               const AttendProblem& problem, bool with_out, uint64_t seed) {
  return attend_batch(kernels, pool, {problem}, with_out, seed)[0];
}

}  // namespace pagezip::test
