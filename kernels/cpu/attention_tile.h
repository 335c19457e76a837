// The arithmetic of attention: the query rows of a tile against one unit of pairs.
//
// A tile walks the units of its segments in order. For each unit it multiplies by K and V in steps
// of kWidenedPairs pairs, widened to float32 in scratch, so a page is converted once for all rows
// of the tile. Each (row, unit) gives a softmax state and an output of its own, whatever the other
// rows of the tile and whichever thread computes it; merged in order they are the row's result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/math.h"

namespace pagezip::cpu {

/// One row of a call.
struct QueryRow {
  int64_t row;       // of the batch
  int64_t position;  // logical
};

/// Where the results of a tile's units wait to be merged: `count` slots, each of them a state for
/// every query row, then an output for every query row. Slot 0 is the merged result of the first
/// `folded` units, each later slot that of one unit.
struct Slots {
  float* memory = nullptr;
  int64_t query_rows = 0;
  int64_t head_dim = 0;
  int64_t folded = 0;
  int64_t count = 0;

  static int64_t floats(int64_t query_rows, int64_t head_dim) {
    return query_rows * (head_dim + 2);
  }
  int64_t slot_of(int64_t unit) const { return unit < folded ? 0 : unit - folded + 1; }
  SoftmaxState<float>* states(int64_t slot, int64_t query_row) const {
    float* start = memory + slot * floats(query_rows, head_dim);
    return reinterpret_cast<SoftmaxState<float>*>(start) + query_row;
  }
  float* outputs(int64_t slot, int64_t query_row) const {
    return memory + slot * floats(query_rows, head_dim) + 2 * query_rows + query_row * head_dim;
  }
};

/// Rows with the query heads of one KV head, and the segments that they walk.
struct Tile {
  const AttentionSpan* span = nullptr;  // of its rows; of several spans: any of them
  const QueryRow* rows = nullptr;
  int64_t row_count = 0;
  int64_t query_rows = 0;  // row_count * query heads of a KV head
  int head = 0;            // KV head
  int first_segment = 0;
  int end_segment = 0;
  int64_t units = 0;  // not empty
  int64_t work = 0;   // pairs times query rows, and what reading them costs
};

struct Range {
  int64_t low;
  int64_t high;
  bool empty() const { return low >= high; }
  Range within(int64_t from, int64_t to) const { return {std::max(low, from), std::min(high, to)}; }
};

/// Pairs of a segment that the row at `position` sees.
inline Range visible(const PageLayout& page, const AttentionSpan& span, const Segment& segment,
                     int head, int64_t position) {
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
  Range hull;  // of the pairs that some row of the tile sees
};

/// f(UnitRef) for the units that some row of the tile sees, in order.
template <typename F>
void for_units(const PageLayout& page, const Tile& tile, const F& f) {
  for (int s = tile.first_segment; s < tile.end_segment; ++s) {
    const Segment& segment = tile.span->view->segments[s];
    const Range first = visible(page, *tile.span, segment, tile.head, tile.rows[0].position);
    const Range last =
        visible(page, *tile.span, segment, tile.head, tile.rows[tile.row_count - 1].position);
    const Range hull{first.low, last.high};
    for (int64_t unit = hull.low / kUnitPairs; unit * kUnitPairs < hull.high; ++unit) {
      const UnitRef ref{s, unit, hull.within(unit * kUnitPairs, (unit + 1) * kUnitPairs)};
      if (!ref.hull.empty()) {
        f(ref);
      }
    }
  }
}

/// A thread's memory for one tile.
struct TileScratch {
  float* q;                           // [query rows, head_dim]
  float* x;                           // [query rows, kUnitPairs]
  float* kv;                          // [head_dim, kWidenedPairs] or [kWidenedPairs, head_dim]
  float* unit;                        // [query rows, head_dim] output of one unit
  float* out;                         // [query rows, head_dim] merged
  SoftmaxState<float>* states;        // [query rows] of one unit
  SoftmaxState<float>* merged;        // [query rows]
  SoftmaxState<float>* score_merged;  // [query rows]

  static int64_t floats(int64_t query_rows, int64_t head_dim);
  TileScratch(float* memory, int64_t query_rows, int64_t head_dim);
};

void load_queries(const AttendArgs& args, const Tile& tile, float* q);

/// The state and the output of one unit for every row of the tile, and the LSE for scores.
void compute_unit(const AttendArgs& args, const Tile& tile, const UnitRef& ref,
                  const TileScratch& scratch);

/// Merges states and outputs [query_rows] into the running ones.
void merge_results(const SoftmaxState<float>* states, const float* outputs, int64_t query_rows,
                   int64_t head_dim, SoftmaxState<float>* merged, float* out);

/// Divides by the sums and writes what the call asked for.
void write_tile(const AttendArgs& args, const Tile& tile, const TileScratch& scratch);

}  // namespace pagezip::cpu
