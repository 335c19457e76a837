// Operations on pages of the reference backend: one pair at a time, float64 inside.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/half.h"
#include "kernels/math.h"
#include "kernels/reference/operations.h"

namespace pagezip::reference {
namespace {

double load(KvType type, const std::byte* source) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, source, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, source, sizeof(half));
  return type == KvType::kF16 ? f16_to_float(half) : bf16_to_float(half);
}

void store(KvType type, float value, std::byte* target) {
  if (type == KvType::kF32) {
    std::memcpy(target, &value, sizeof(value));
    return;
  }
  const uint16_t half = type == KvType::kF16 ? float_to_f16(value) : float_to_bf16(value);
  std::memcpy(target, &half, sizeof(half));
}

/// Where one pair of one (layer, head) lies: channel d of K at k + d * k_stride, and of V at
/// v + d * v_stride (bytes).
struct Pair {
  std::byte* k;
  std::byte* v;
  int64_t k_stride;
  int64_t v_stride;
};

Pair pair_at(const PageLayout& page, const Segment& segment, int layer, int head, int64_t i) {
  std::byte* base = segment.page(layer, head, i / page.page_tokens);
  const int64_t slot = i % page.page_tokens;
  const int64_t k_size = bytes_of(page.k_type);
  const int64_t v_size = bytes_of(page.v_type);
  return {base + slot * page.key_stride() * k_size,
          base + page.k_bytes() + slot * page.head_dim * v_size, page.key_channel_stride() * k_size,
          v_size};
}

double dot_k(const PageLayout& page, const Pair& pair, const float* q) {
  double sum = 0;
  for (int d = 0; d < page.head_dim; ++d) {
    sum += q[d] * load(page.k_type, pair.k + d * pair.k_stride);
  }
  return sum;
}

struct PairRange {
  int64_t begin;
  int64_t end;
};

PairRange visible_pairs(const PageLayout& page, const AttentionSpan& span, const Segment& segment,
                        int head, int64_t row) {
  PairRange range{segment.first_page * page.page_tokens, segment.length(span.layer, head)};
  if (segment.lengths == nullptr) {  // the pairs of a ragged segment lie before every row
    const int64_t own_pair = span.first_position + row - segment.first_position;
    range.end = std::min(range.end, own_pair + 1);
    if (span.window > 0) {
      range.begin = std::max(range.begin, own_pair - span.window + 1);
    }
  }
  return range;
}

/// What a row and query head know after some segments: the output is not yet divided by the sum.
struct RowState {
  SoftmaxState<double> attention;
  SoftmaxState<double> score;
  std::vector<double> out;  // [head_dim]
};

/// The softmax state of those logits whose pair is `wanted`.
template <typename Wanted>
SoftmaxState<double> state_of(const std::vector<double>& logits, int64_t first_pair,
                              const Wanted& wanted) {
  SoftmaxState<double> state;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (wanted(first_pair + static_cast<int64_t>(i))) {
      state.max = std::max(state.max, logits[i]);
    }
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (wanted(first_pair + static_cast<int64_t>(i))) {
      state.sum += std::exp(logits[i] - state.max);
    }
  }
  return state;
}

void attend_segment(const AttendArgs& args, const AttentionSpan& span, int segment_index,
                    int64_t row, int head, RowState& total) {
  const PageLayout& page = args.page;
  const Segment& segment = span.view->segments[segment_index];
  const int kv_head = head / (args.heads / args.kv_heads);
  const float* q = args.q.row(span.first_row + row) + int64_t{head} * page.head_dim;
  const PairRange range = visible_pairs(page, span, segment, kv_head, row);
  std::vector<double> logits;
  for (int64_t i = range.begin; i < range.end; ++i) {
    logits.push_back(args.scale * dot_k(page, pair_at(page, segment, span.layer, kv_head, i), q));
  }
  if (const ScoreRange* score = args.score; score != nullptr) {
    merge(total.score, state_of(logits, range.begin, [&](int64_t i) {
            return segment_index > score->segment ||
                   (segment_index == 0 && i < score->prefix_end) ||
                   (segment_index == score->segment && i >= score->chunk_begin &&
                    i < score->chunk_end);
          }));
  }
  if (args.out.data == nullptr) {
    return;
  }
  const SoftmaxState<double> state = state_of(logits, range.begin, [](int64_t) { return true; });
  std::vector<double> out(static_cast<size_t>(page.head_dim));
  for (int64_t i = range.begin; i < range.end; ++i) {
    const Pair pair = pair_at(page, segment, span.layer, kv_head, i);
    const double p = std::exp(logits[static_cast<size_t>(i - range.begin)] - state.max);
    for (int d = 0; d < page.head_dim; ++d) {
      out[static_cast<size_t>(d)] += p * load(page.v_type, pair.v + d * pair.v_stride);
    }
  }
  const MergeFactors<double> factors = merge(total.attention, state);
  for (size_t d = 0; d < out.size(); ++d) {
    total.out[d] = total.out[d] * factors.into + out[d] * factors.from;
  }
}

void attend_row(const AttendArgs& args, const AttentionSpan& span, int64_t row, int head) {
  RowState total;
  total.out.resize(static_cast<size_t>(args.page.head_dim));
  for (int s = 0; s < span.view->count; ++s) {
    attend_segment(args, span, s, row, head, total);
  }
  const int64_t batch_row = span.first_row + row;
  if (args.score != nullptr) {
    args.score->lse.row(batch_row)[head] = static_cast<float>(total.score.log_sum_exp());
  }
  if (args.out.data == nullptr) {
    return;
  }
  if (args.lse.data != nullptr) {
    args.lse.row(batch_row)[head] = static_cast<float>(total.attention.log_sum_exp());
  }
  float* out = args.out.row(batch_row) + int64_t{head} * args.page.head_dim;
  for (size_t d = 0; d < total.out.size(); ++d) {
    out[d] =
        total.attention.empty() ? 0.0f : static_cast<float>(total.out[d] / total.attention.sum);
  }
}

}  // namespace

void store_kv(const StoreKvArgs& args, ThreadPool& pool) {
  const PageLayout& page = args.page;
  check_floats(page);
  for (const AttentionSpan& span : args.spans) {
    const Segment& target = span.view->segments[span.view->count - 1];
    pool.parallel_for(span.rows, [&](int64_t row, int) {
      const int64_t i = span.first_position + row - target.first_position;
      for (int head = 0; head < args.kv_heads; ++head) {
        const Pair pair = pair_at(page, target, span.layer, head, i);
        const float* k = args.k.row(span.first_row + row) + int64_t{head} * page.head_dim;
        const float* v = args.v.row(span.first_row + row) + int64_t{head} * page.head_dim;
        for (int d = 0; d < page.head_dim; ++d) {
          store(page.k_type, k[d], pair.k + d * pair.k_stride);
          store(page.v_type, v[d], pair.v + d * pair.v_stride);
        }
      }
    });
  }
}

void attend(const AttendArgs& args, ThreadPool& pool) {
  check_floats(args.page);
  CHECK(args.score == nullptr || args.spans.size() == 1);
  CHECK(args.lse.data == nullptr || args.out.data != nullptr);
  for (const AttentionSpan& span : args.spans) {
    pool.parallel_for(span.rows * args.heads, [&](int64_t item, int) {
      attend_row(args, span, item / args.heads, static_cast<int>(item % args.heads));
    });
  }
}

void score(const ScoreArgs& args, ThreadPool& pool) {
  const PageLayout& page = args.page;
  const int group = args.heads / args.kv_heads;
  const int64_t chunk = args.chunk_end - args.chunk_begin;
  pool.parallel_for(args.kv_heads * chunk, [&](int64_t item, int) {
    const int kv_head = static_cast<int>(item / chunk);
    const int64_t j = item % chunk;
    const Pair pair = pair_at(page, *args.source, args.layer, kv_head, args.chunk_begin + j);
    float& best = args.best.row(kv_head)[j];
    for (int64_t row = 0; row < args.q.rows; ++row) {
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        double value =
            args.scale * dot_k(page, pair, args.q.row(row) + int64_t{head} * page.head_dim);
        if (args.lse.data != nullptr) {
          value -= args.lse.row(row)[head];
        }
        best = std::max(best, static_cast<float>(value));
      }
    }
  });
}

void copy_pairs(const CopyPairsArgs& args, ThreadPool& pool) {
  const PageLayout& page = args.source_page;
  check_same_elements(args);
  pool.parallel_for(static_cast<int64_t>(args.pairs.size()), [&](int64_t list, int) {
    const int head = args.first_head + static_cast<int>(list);
    int64_t to = args.target_first;
    for (const uint32_t from : args.pairs[static_cast<size_t>(list)]) {
      const Pair source = pair_at(page, *args.source, args.layer, head, from);
      const Pair target = pair_at(args.target_page, *args.target, args.layer, head, to++);
      for (int d = 0; d < page.head_dim; ++d) {
        std::memcpy(target.k + d * target.k_stride, source.k + d * source.k_stride,
                    static_cast<size_t>(bytes_of(page.k_type)));
      }
      std::memcpy(target.v, source.v, static_cast<size_t>(page.head_dim * bytes_of(page.v_type)));
    }
  });
}

}  // namespace pagezip::reference
