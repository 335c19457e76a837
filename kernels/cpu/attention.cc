// Attention over segments of pages.
//
// A *tile* is some rows of one span with the query heads of one KV head: up to kTileRows rows that
// share every key. A tile walks the units of its segments in order. For each unit it multiplies by
// K and V in steps of kStep pairs, widened to float32 in scratch, so a page is converted once for
// all rows of the tile. Each (row, unit) gives a softmax state and an output of its own, which are
// merged in order: at once where one thread walks the whole view, or, where there are too few tiles
// to occupy the threads (decode), from a buffer after all units are done. Both ways do the same
// arithmetic, so they give the same bits.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "kernels/cpu/kv_pages.h"
#include "kernels/cpu/simd.h"

namespace pagezip::cpu {
namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kTileRows = 96;
constexpr int64_t kStep = kWidenedPairs;
// Up to this many query rows (decode) read 16-bit pages directly: widening them first costs more
// than widening them again for every six rows. The bits are the same.
constexpr int64_t kDirectRows = 12;

// Whether keys are read as they lie: the direct product needs them transposed.
bool direct_keys(const PageLayout& page, int64_t query_rows) {
  return query_rows <= kDirectRows && page.key_order == KeyOrder::kTransposed;
}

struct Tile {
  const AttentionSpan* span;
  int head;            // KV head
  int64_t first_row;   // within the span
  int64_t rows;        // of the span
  int64_t query_rows;  // rows * query heads of a KV head
};

struct Range {
  int64_t low;
  int64_t high;
  bool empty() const { return low >= high; }
  Range within(int64_t from, int64_t to) const { return {std::max(low, from), std::min(high, to)}; }
};

// Pairs of a segment that the row at `position` sees.
Range visible(const PageLayout& page, const AttentionSpan& span, const Segment& segment, int head,
              int64_t position) {
  const int64_t high =
      std::min(segment.length(span.layer, head), position - segment.first_position + 1);
  int64_t low = segment.first_page * page.page_tokens;
  if (span.window > 0) {
    low = std::max(low, position - span.window + 1 - segment.first_position);
  }
  return {low, high};
}

struct UnitRef {
  int segment;
  int64_t unit;
};

// The units that some row of the tile sees, in order, as f(UnitRef, hull of the visible pairs).
template <typename F>
void for_units(const AttendArgs& args, const Tile& tile, const F& f) {
  const AttentionSpan& span = *tile.span;
  const int64_t position = span.first_position + tile.first_row;
  for (int s = 0; s < span.view->count; ++s) {
    const Segment& segment = span.view->segments[s];
    const Range first = visible(args.page, span, segment, tile.head, position);
    const Range last = visible(args.page, span, segment, tile.head, position + tile.rows - 1);
    for (int64_t unit = first.low / kUnitPairs; unit * kUnitPairs < last.high; ++unit) {
      const Range hull =
          Range{first.low, last.high}.within(unit * kUnitPairs, (unit + 1) * kUnitPairs);
      if (!hull.empty()) {
        f(UnitRef{s, unit}, hull);
      }
    }
  }
}

// One tile's memory, carved from a thread's scratch.
struct TileScratch {
  float* q;                           // [query rows, head_dim]
  float* x;                           // [query rows, kUnitPairs]
  float* kv;                          // [head_dim, kStep] or [kStep, head_dim]
  float* unit;                        // [query rows, head_dim] output of one unit
  float* out;                         // [query rows, head_dim] merged
  SoftmaxState<float>* states;        // [query rows] of one unit
  SoftmaxState<float>* merged;        // [query rows]
  SoftmaxState<float>* score_merged;  // [query rows]

  static size_t bytes(int64_t query_rows, int64_t head_dim) {
    const int64_t floats = query_rows * (3 * head_dim + kUnitPairs + 6) + head_dim * kStep;
    return round_up(static_cast<size_t>(floats) * sizeof(float), kAlignment);
  }
  TileScratch(std::byte* memory, int64_t query_rows, int64_t head_dim) {
    auto* p = reinterpret_cast<float*>(memory);
    const auto carve = [&p](int64_t floats) { return std::exchange(p, p + floats); };
    q = carve(query_rows * head_dim);
    x = carve(query_rows * kUnitPairs);
    kv = carve(head_dim * kStep);
    unit = carve(query_rows * head_dim);
    out = carve(query_rows * head_dim);
    states = reinterpret_cast<SoftmaxState<float>*>(carve(2 * query_rows));
    merged = reinterpret_cast<SoftmaxState<float>*>(carve(2 * query_rows));
    score_merged = reinterpret_cast<SoftmaxState<float>*>(carve(2 * query_rows));
  }
};

void load_queries(const AttendArgs& args, const Tile& tile, float* q) {
  const int64_t group = args.heads / args.kv_heads;
  const int64_t width = group * args.page.head_dim;
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::memcpy(q + r * width,
                args.q.row(tile.span->first_row + tile.first_row + r) + tile.head * width,
                static_cast<size_t>(width) * sizeof(float));
  }
}

// Brings the pages behind a unit's into the cache while the unit is computed.
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
  const std::byte* groups[kStep / 16];
  int64_t count = 0;
  for (int64_t p = low; p < high; p += 16) {
    groups[count++] =
        segment.page(layer, tile.head, p / tokens) + p % tokens * bytes_of(args.page.k_type);
    if (p + kStep < hull.high && p % tokens == 0) {
      prefetch(segment.page(layer, tile.head, (p + kStep) / tokens), args.page.k_bytes());
    }
  }
  simd_ops().gemm_keys(args.page.k_type, scratch.q, args.page.head_dim, groups, tokens,
                       x + (low - step), kUnitPairs, tile.query_rows, args.page.head_dim,
                       16 * count);
}

// x[query rows, kUnitPairs] = q · K over the hull of a unit.
void multiply_keys(const AttendArgs& args, const Tile& tile, UnitRef ref, Range hull,
                   const TileScratch& scratch) {
  const Segment& segment = tile.span->view->segments[ref.segment];
  for (int64_t step = hull.low / kStep * kStep; step < hull.high; step += kStep) {
    float* x = scratch.x + (step - ref.unit * kUnitPairs);
    if (direct_keys(args.page, tile.query_rows)) {
      multiply_keys_directly(args, tile, segment, step, hull, x, scratch);
      continue;
    }
    widen_keys(args.page, segment, tile.span->layer, tile.head, step, hull.low, hull.high,
               scratch.kv);
    const int64_t columns = round_up(std::min(kStep, hull.high - step), 16);
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
  for (int64_t p = hull.low; p < hull.high; p = (p / tokens + 1) * tokens) {
    const int64_t end = std::min((p / tokens + 1) * tokens, hull.high);
    const std::byte* v =
        segment.page(tile.span->layer, tile.head, p / tokens) + args.page.k_bytes();
    if (end < hull.high) {
      prefetch(segment.page(tile.span->layer, tile.head, end / tokens) + args.page.k_bytes(),
               args.page.v_bytes());
    }
    simd_ops().gemm_values(args.page.v_type, scratch.x + (p - base), kUnitPairs,
                           v + p % tokens * row, d, scratch.unit, d, tile.query_rows, end - p, d,
                           p != hull.low);
  }
}

// unit[query rows, head_dim] = x · V over the hull of a unit.
void multiply_values(const AttendArgs& args, const Tile& tile, UnitRef ref, Range hull,
                     const TileScratch& scratch) {
  const Segment& segment = tile.span->view->segments[ref.segment];
  const int64_t d = args.page.head_dim;
  const int64_t base = ref.unit * kUnitPairs;
  if (tile.query_rows <= kDirectRows) {
    multiply_values_directly(args, tile, segment, base, hull, scratch);
    return;
  }
  for (int64_t step = hull.low; step < hull.high; step = (step / kStep + 1) * kStep) {
    const int64_t end = std::min((step / kStep + 1) * kStep, hull.high);
    widen_values(args.page, segment, tile.span->layer, tile.head, step, end, scratch.kv);
    simd_ops().gemm(scratch.x + (step - base), kUnitPairs, scratch.kv, d, scratch.unit, d,
                    tile.query_rows, end - step, d, step != hull.low);
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

// The state and the output of one unit for every row of the tile, and the LSE for scores.
void compute_unit(const AttendArgs& args, const Tile& tile, UnitRef ref, Range hull,
                  const TileScratch& scratch) {
  const Segment& segment = tile.span->view->segments[ref.segment];
  const int64_t group = args.heads / args.kv_heads;
  const int64_t base = ref.unit * kUnitPairs;
  multiply_keys(args, tile, ref, hull, scratch);
  for (int64_t r = 0; r < tile.query_rows; ++r) {
    const int64_t position = tile.span->first_position + tile.first_row + r / group;
    const Range seen = visible(args.page, *tile.span, segment, tile.head, position)
                           .within(base, base + kUnitPairs);
    float* x = scratch.x + r * kUnitPairs;
    const bool scored = args.score != nullptr && !seen.empty();
    const Range chunk =
        scored ? Range{args.score->chunk_begin, args.score->chunk_end} : Range{0, 0};
    const bool whole = ref.segment > 0 || (seen.low >= chunk.low && seen.high <= chunk.high);
    if (scored && !whole) {
      add_score_part(x, seen, {0, args.score->prefix_end}, base, args.scale,
                     scratch.score_merged[r]);
      add_score_part(x, seen, chunk, base, args.scale, scratch.score_merged[r]);
    }
    // An empty range clears the row: the rows of a tile share the product with V.
    const int64_t low = seen.empty() ? 0 : seen.low - base;
    const int64_t high = seen.empty() ? 0 : seen.high - base;
    scratch.states[r] = simd_ops().softmax(x, low, high, kUnitPairs, args.scale);
    if (scored && whole) {
      merge(scratch.score_merged[r], scratch.states[r]);
    }
  }
  if (args.out.data != nullptr) {
    multiply_values(args, tile, ref, hull, scratch);
  }
}

// Merges a unit's states and outputs into the running ones.
void merge_unit(const Tile& tile, const SoftmaxState<float>* states, const float* unit,
                int64_t head_dim, SoftmaxState<float>* merged, float* out) {
  for (int64_t r = 0; r < tile.query_rows; ++r) {
    const MergeFactors<float> factors = merge(merged[r], states[r]);
    if (factors.from == 0) {
      continue;
    }
    if (factors.into == 0) {  // out may hold nothing yet, not even a number
      std::memcpy(out + r * head_dim, unit + r * head_dim,
                  static_cast<size_t>(head_dim) * sizeof(float));
    } else {
      simd_ops().merge_outputs(out + r * head_dim, unit + r * head_dim, factors, head_dim);
    }
  }
}

void write_tile(const AttendArgs& args, const Tile& tile, const SoftmaxState<float>* merged,
                const float* out) {
  const int64_t group = args.heads / args.kv_heads;
  const int64_t d = args.page.head_dim;
  for (int64_t r = 0; r < tile.query_rows; ++r) {
    const int64_t row = tile.span->first_row + tile.first_row + r / group;
    const int64_t head = tile.head * group + r % group;
    if (args.lse.data != nullptr) {
      args.lse.row(row)[head] = merged[r].log_sum_exp();
    }
    float* target = args.out.row(row) + head * d;
    if (merged[r].empty()) {
      std::fill(target, target + d, 0.0f);
      continue;
    }
    const float factor = 1.0f / merged[r].sum;
    for (int64_t i = 0; i < d; ++i) {
      target[i] = out[r * d + i] * factor;
    }
  }
}

// One unit of a tile whose units are computed by different threads.
struct Item {
  const Tile* tile;
  UnitRef ref;
  Range hull;
  int64_t floats;  // where its states and then its output begin in the buffer
};

// The sizes of a call's work.
struct Plan {
  int64_t tiles = 0;
  int64_t query_rows_max = 0;  // of a tile
  bool split = false;          // into units; then:
  int64_t items = 0;
  int64_t floats = 0;

  size_t tile_bytes() const {
    return round_up(static_cast<size_t>(tiles) * sizeof(Tile), kAlignment);
  }
  size_t item_bytes() const {
    return round_up(static_cast<size_t>(items) * sizeof(Item), kAlignment);
  }
  size_t float_bytes() const {
    return round_up(static_cast<size_t>(floats) * sizeof(float), kAlignment);
  }
  size_t bytes(const AttendArgs& args, int threads) const {
    return tile_bytes() + item_bytes() + float_bytes() +
           static_cast<size_t>(threads) * TileScratch::bytes(query_rows_max, args.page.head_dim);
  }
};

template <typename F>
void for_tiles(const AttendArgs& args, const F& f) {
  const int64_t group = args.heads / args.kv_heads;
  const int64_t rows_max = std::max<int64_t>(1, kTileRows / group);
  for (const AttentionSpan& span : args.spans) {
    for (int64_t row = 0; row < span.rows; row += rows_max) {
      const int64_t rows = std::min(rows_max, span.rows - row);
      for (int head = 0; head < args.kv_heads; ++head) {
        f(Tile{&span, head, row, rows, rows * group});
      }
    }
  }
}

Plan make_plan(const AttendArgs& args, int threads) {
  Plan plan;
  for_tiles(args, [&](const Tile& tile) {
    ++plan.tiles;
    plan.query_rows_max = std::max(plan.query_rows_max, tile.query_rows);
  });
  plan.split = args.score == nullptr && threads > 1 && plan.tiles < int64_t{4} * threads;
  if (plan.split) {
    for_tiles(args, [&](const Tile& tile) {
      for_units(args, tile, [&](UnitRef, Range) {
        ++plan.items;
        plan.floats += tile.query_rows * (args.page.head_dim + 2);
      });
    });
  }
  return plan;
}

// The memory of a call, carved from the pool's scratch.
struct CallMemory {
  Tile* tiles;
  Item* items;
  float* buffer;
  std::byte* threads;
  size_t thread_bytes;

  CallMemory(const AttendArgs& args, const Plan& plan, ThreadPool& pool) {
    std::byte* memory = pool.shared_scratch(plan.bytes(args, pool.threads()));
    tiles = reinterpret_cast<Tile*>(memory);
    items = reinterpret_cast<Item*>(memory + plan.tile_bytes());
    buffer = reinterpret_cast<float*>(memory + plan.tile_bytes() + plan.item_bytes());
    threads = memory + plan.tile_bytes() + plan.item_bytes() + plan.float_bytes();
    thread_bytes = TileScratch::bytes(plan.query_rows_max, args.page.head_dim);
    Tile* next = tiles;
    for_tiles(args, [&next](const Tile& tile) { *next++ = tile; });
  }
  TileScratch tile(int thread, const Tile& of, int64_t head_dim) const {
    return {threads + static_cast<size_t>(thread) * thread_bytes, of.query_rows, head_dim};
  }
};

// One thread walks the whole view of a tile.
void attend_tile(const AttendArgs& args, const Tile& tile, const TileScratch& scratch) {
  const int64_t group = args.heads / args.kv_heads;
  const int64_t d = args.page.head_dim;
  std::fill(scratch.merged, scratch.merged + tile.query_rows, SoftmaxState<float>{});
  std::fill(scratch.score_merged, scratch.score_merged + tile.query_rows, SoftmaxState<float>{});
  load_queries(args, tile, scratch.q);
  for_units(args, tile, [&](UnitRef ref, Range hull) {
    compute_unit(args, tile, ref, hull, scratch);
    if (args.out.data != nullptr) {
      merge_unit(tile, scratch.states, scratch.unit, d, scratch.merged, scratch.out);
    }
  });
  if (args.out.data != nullptr) {
    write_tile(args, tile, scratch.merged, scratch.out);
  }
  for (int64_t r = 0; args.score != nullptr && r < tile.query_rows; ++r) {
    const int64_t row = tile.span->first_row + tile.first_row + r / group;
    args.score->lse.row(row)[tile.head * group + r % group] = scratch.score_merged[r].log_sum_exp();
  }
}

// Threads take single units; a second pass merges them in order.
void attend_split(const AttendArgs& args, const Plan& plan, const CallMemory& memory,
                  ThreadPool& pool) {
  const int64_t d = args.page.head_dim;
  Item* next = memory.items;
  int64_t floats = 0;
  for (int64_t t = 0; t < plan.tiles; ++t) {
    const Tile& tile = memory.tiles[t];
    for_units(args, tile, [&](UnitRef ref, Range hull) {
      *next++ = {&tile, ref, hull, floats};
      floats += tile.query_rows * (d + 2);
    });
  }
  pool.parallel_for(plan.items, [&](int64_t i, int thread) {
    const Item& item = memory.items[i];
    TileScratch scratch = memory.tile(thread, *item.tile, d);
    scratch.states = reinterpret_cast<SoftmaxState<float>*>(memory.buffer + item.floats);
    scratch.unit = memory.buffer + item.floats + 2 * item.tile->query_rows;
    load_queries(args, *item.tile, scratch.q);
    compute_unit(args, *item.tile, item.ref, item.hull, scratch);
  });
  const Item* item = memory.items;
  for (int64_t t = 0; t < plan.tiles; ++t) {
    const Tile& tile = memory.tiles[t];
    const TileScratch scratch = memory.tile(0, tile, d);
    std::fill(scratch.merged, scratch.merged + tile.query_rows, SoftmaxState<float>{});
    for (; item != memory.items + plan.items && item->tile == &tile; ++item) {
      const float* unit = memory.buffer + item->floats;
      merge_unit(tile, reinterpret_cast<const SoftmaxState<float>*>(unit),
                 unit + 2 * tile.query_rows, d, scratch.merged, scratch.out);
    }
    write_tile(args, tile, scratch.merged, scratch.out);
  }
}

}  // namespace

size_t attend_scratch(const AttendArgs& args, int threads) {
  return make_plan(args, threads).bytes(args, threads);
}

void attend(const AttendArgs& args, ThreadPool& pool) {
  CHECK(args.score == nullptr || args.spans.size() == 1);
  CHECK(args.score != nullptr || args.out.data != nullptr);
  CHECK(args.lse.data == nullptr || args.out.data != nullptr);
  const Plan plan = make_plan(args, pool.threads());
  const CallMemory memory(args, plan, pool);
  if (plan.split) {
    attend_split(args, plan, memory, pool);
    return;
  }
  // The last rows of a prompt see most pairs: long items first, so that threads end together.
  pool.parallel_for(plan.tiles, [&](int64_t i, int thread) {
    const Tile& tile = memory.tiles[plan.tiles - 1 - i];
    attend_tile(args, tile, memory.tile(thread, tile, args.page.head_dim));
  });
}

}  // namespace pagezip::cpu
