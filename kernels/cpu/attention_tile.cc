// Products, softmax and merging of a tile; see attention_tile.h.
#include "kernels/cpu/attention_tile.h"

#include <cstring>
#include <utility>

#include "base/math.h"
#include "kernels/cpu/kv_pages.h"
#include "kernels/cpu/simd.h"

namespace pagezip::cpu {
namespace {

constexpr int64_t kStep = kWidenedPairs;
// Up to this many query rows (decode) read 16-bit pages directly: widening them first costs more
// than widening them again for every six rows. The bits are the same.
constexpr int64_t kDirectRows = 12;

// Whether keys are read as they lie: the direct product needs them transposed.
bool direct_keys(const PageLayout& page, int64_t query_rows) {
  return query_rows <= kDirectRows && page.key_order == KeyOrder::kTransposed;
}

// Brings the next pages of a segment into the cache, those of the next unit too.
void prefetch(const std::byte* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(p + i);
  }
}

// x = q · K for few rows, K read from the pages. step: a multiple of kStep.
void multiply_keys_directly(const AttendArgs& args, const Tile& tile, const Segment& segment,
                            int64_t step, Range hull, float* x, const TileScratch& scratch) {
  const int64_t tokens = args.page.page_tokens;
  const int layer = tile.span->layer;
  const int64_t low = std::max(step, hull.low / 16 * 16);
  const int64_t high = std::min(step + kStep, hull.high);
  const int64_t length = segment.length(layer, tile.head);
  const std::byte* groups[kStep / 16];
  int64_t count = 0;
  for (int64_t p = low; p < high; p += 16) {
    groups[count++] =
        segment.page(layer, tile.head, p / tokens) + p % tokens * bytes_of(args.page.k_type);
    if (p % tokens == 0 && p + kStep < length) {
      prefetch(segment.page(layer, tile.head, (p + kStep) / tokens), args.page.k_bytes());
    }
  }
  simd_ops().gemm_keys(args.page.k_type, scratch.q, args.page.head_dim, groups, tokens,
                       x + (low - step), kUnitPairs, tile.query_rows, args.page.head_dim,
                       16 * count);
}

// x[query rows, kUnitPairs] = q · K over the hull of a unit.
void multiply_keys(const AttendArgs& args, const Tile& tile, const UnitRef& ref,
                   const TileScratch& scratch) {
  const Segment& segment = tile.span->view->segments[ref.segment];
  for (int64_t step = ref.hull.low / kStep * kStep; step < ref.hull.high; step += kStep) {
    float* x = scratch.x + (step - ref.unit * kUnitPairs);
    if (direct_keys(args.page, tile.query_rows)) {
      multiply_keys_directly(args, tile, segment, step, ref.hull, x, scratch);
      continue;
    }
    widen_keys(args.page, segment, tile.span->layer, tile.head, step, ref.hull.low, ref.hull.high,
               scratch.kv);
    const int64_t columns = round_up(std::min(kStep, ref.hull.high - step), 16);
    simd_ops().gemm(scratch.q, args.page.head_dim, scratch.kv, kStep, x, kUnitPairs,
                    tile.query_rows, args.page.head_dim, columns, false);
  }
}

// unit = x · V for few rows, V read from the pages.
void multiply_values_directly(const AttendArgs& args, const Tile& tile, const Segment& segment,
                              int64_t base, Range hull, const TileScratch& scratch) {
  const int64_t tokens = args.page.page_tokens;
  const int64_t d = args.page.head_dim;
  const int64_t row = bytes_of(args.page.v_type) * d;
  const int64_t length = segment.length(tile.span->layer, tile.head);
  for (int64_t p = hull.low; p < hull.high; p = (p / tokens + 1) * tokens) {
    const int64_t end = std::min((p / tokens + 1) * tokens, hull.high);
    const std::byte* v =
        segment.page(tile.span->layer, tile.head, p / tokens) + args.page.k_bytes();
    if (end < length) {
      prefetch(segment.page(tile.span->layer, tile.head, end / tokens) + args.page.k_bytes(),
               args.page.v_bytes());
    }
    simd_ops().gemm_values(args.page.v_type, scratch.x + (p - base), kUnitPairs,
                           v + p % tokens * row, d, scratch.unit, d, tile.query_rows, end - p, d,
                           p != hull.low);
  }
}

// unit[query rows, head_dim] = x · V over the hull of a unit.
void multiply_values(const AttendArgs& args, const Tile& tile, const UnitRef& ref,
                     const TileScratch& scratch) {
  const Segment& segment = tile.span->view->segments[ref.segment];
  const int64_t d = args.page.head_dim;
  const int64_t base = ref.unit * kUnitPairs;
  if (tile.query_rows <= kDirectRows) {
    multiply_values_directly(args, tile, segment, base, ref.hull, scratch);
    return;
  }
  for (int64_t step = ref.hull.low; step < ref.hull.high; step = (step / kStep + 1) * kStep) {
    const int64_t end = std::min((step / kStep + 1) * kStep, ref.hull.high);
    widen_values(args.page, segment, tile.span->layer, tile.head, step, end, scratch.kv);
    simd_ops().gemm(scratch.x + (step - base), kUnitPairs, scratch.kv, d, scratch.unit, d,
                    tile.query_rows, end - step, d, step != ref.hull.low);
  }
}

// Adds to `lse` what the row sees of `wanted` in this unit; `seen` and `wanted` in pairs.
void add_score_part(const float* x, Range seen, Range wanted, int64_t base, float scale,
                    SoftmaxState<float>& lse) {
  const Range part = seen.within(wanted.low, wanted.high);
  if (!part.empty()) {
    merge(lse, simd_ops().softmax_state(x, part.low - base, part.high - base, scale));
  }
}

}  // namespace

int64_t TileScratch::floats(int64_t query_rows, int64_t head_dim) {
  return round_up(query_rows * (3 * head_dim + kUnitPairs + 6) + head_dim * kStep, 16);
}

TileScratch::TileScratch(float* memory, int64_t query_rows, int64_t head_dim) {
  const auto carve = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
  q = carve(query_rows * head_dim);
  x = carve(query_rows * kUnitPairs);
  kv = carve(head_dim * kStep);
  unit = carve(query_rows * head_dim);
  out = carve(query_rows * head_dim);
  states = reinterpret_cast<SoftmaxState<float>*>(carve(2 * query_rows));
  merged = reinterpret_cast<SoftmaxState<float>*>(carve(2 * query_rows));
  score_merged = reinterpret_cast<SoftmaxState<float>*>(carve(2 * query_rows));
}

void load_queries(const AttendArgs& args, const Tile& tile, float* q) {
  const int64_t width = int64_t{args.heads / args.kv_heads} * args.page.head_dim;
  for (int64_t r = 0; r < tile.row_count; ++r) {
    std::memcpy(q + r * width, args.q.row(tile.rows[r].row) + tile.head * width,
                static_cast<size_t>(width) * sizeof(float));
  }
}

void compute_unit(const AttendArgs& args, const Tile& tile, const UnitRef& ref,
                  const TileScratch& scratch) {
  const Segment& segment = tile.span->view->segments[ref.segment];
  const int64_t group = args.heads / args.kv_heads;
  const int64_t base = ref.unit * kUnitPairs;
  multiply_keys(args, tile, ref, scratch);
  for (int64_t r = 0; r < tile.query_rows; ++r) {
    const Range seen =
        visible(args.page, *tile.span, segment, tile.head, tile.rows[r / group].position)
            .within(base, base + kUnitPairs);
    float* x = scratch.x + r * kUnitPairs;
    const bool scored = args.score != nullptr && !seen.empty();
    const Range prefix =
        scored && ref.segment == 0 ? Range{0, args.score->prefix_end} : Range{0, 0};
    const Range chunk = scored && ref.segment == args.score->segment
                            ? Range{args.score->chunk_begin, args.score->chunk_end}
                            : Range{0, 0};
    const bool whole = scored && (ref.segment > args.score->segment ||
                                  (seen.low >= chunk.low && seen.high <= chunk.high));
    if (scored && !whole) {
      add_score_part(x, seen, prefix, base, args.scale, scratch.score_merged[r]);
      add_score_part(x, seen, chunk, base, args.scale, scratch.score_merged[r]);
    }
    // An empty range clears the row: the rows of a tile share the product with V.
    const int64_t low = seen.empty() ? 0 : seen.low - base;
    const int64_t high = seen.empty() ? 0 : seen.high - base;
    scratch.states[r] = simd_ops().softmax(x, low, high, kUnitPairs, args.scale);
    if (whole) {
      merge(scratch.score_merged[r], scratch.states[r]);
    }
  }
  if (args.out.data != nullptr) {
    multiply_values(args, tile, ref, scratch);
  }
}

void merge_results(const SoftmaxState<float>* states, const float* outputs, int64_t query_rows,
                   int64_t head_dim, SoftmaxState<float>* merged, float* out) {
  for (int64_t r = 0; r < query_rows; ++r) {
    const MergeFactors<float> factors = merge(merged[r], states[r]);
    if (factors.from == 0) {
      continue;
    }
    if (factors.into == 0) {  // out may hold nothing yet, not even a number
      std::memcpy(out + r * head_dim, outputs + r * head_dim,
                  static_cast<size_t>(head_dim) * sizeof(float));
    } else {
      simd_ops().merge_outputs(out + r * head_dim, outputs + r * head_dim, factors, head_dim);
    }
  }
}

void write_tile(const AttendArgs& args, const Tile& tile, const TileScratch& scratch) {
  const int64_t group = args.heads / args.kv_heads;
  const int64_t d = args.page.head_dim;
  for (int64_t r = 0; r < tile.query_rows; ++r) {
    const int64_t row = tile.rows[r / group].row;
    const int64_t head = tile.head * group + r % group;
    if (args.score != nullptr) {
      args.score->lse.row(row)[head] = scratch.score_merged[r].log_sum_exp();
    }
    if (args.out.data == nullptr) {
      continue;
    }
    const SoftmaxState<float>& merged = scratch.merged[r];
    if (args.lse.data != nullptr) {
      args.lse.row(row)[head] = merged.log_sum_exp();
    }
    float* target = args.out.row(row) + head * d;
    if (merged.empty()) {
      std::fill(target, target + d, 0.0f);
      continue;
    }
    const float factor = 1.0f / merged.sum;
    for (int64_t i = 0; i < d; ++i) {
      target[i] = scratch.out[r * d + i] * factor;
    }
  }
}

}  // namespace pagezip::cpu
