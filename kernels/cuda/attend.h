// What attention on the GPU is asked to do: rows, work items and the order in which their results
// are merged. Plain data; the plan that fills it is made on the host (attend_plan.h).
//
// The arithmetic of a row depends on its own view only. The softmax state of each *run* of
// kRunPairs pairs, counted from pair 0 of its segment, is computed alone, tile by tile, and runs
// are merged in order. So decode, whose runs are computed by many blocks, and prefill, where one
// block walks all of them, give the same bits for the same tokens, however rows are packed into
// items, whatever else the batch holds, and wherever the pages lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/mutant.h"
#include "kernels/kv_view.h"
#include "kernels/math.h"

namespace pagezip::cuda {

inline constexpr int kTilePairs = 64;
inline constexpr int kRunPairs = 1024;
inline constexpr int kAttendThreads = 128;
inline constexpr int kAttendWarps = 4;
/// Packed rows of an item: (row, query head of the group), of as many whole rows as fit.
inline constexpr int kPackedRowsFew = 16;
inline constexpr int kPackedRowsMany = 64;

/// A row of the batch, as attention sees it.
struct AttendRow {
  int64_t position;
  int64_t row;  // of q and of the results
};

/// Pairs [begin, end) of one KV head of a segment, for some rows: all runs in it are merged into
/// one partial result for each row and query head.
struct AttendItem {
  int32_t segment;  // index into AttendParams::segments
  int32_t kv_head;
  int32_t layer;
  int32_t window;     // 0: none
  int32_t first_row;  // index into AttendParams::rows
  int32_t rows;
  int64_t begin;
  int64_t end;
  int64_t first_partial;  // of the first row's first query head; the others follow
};

struct AttendParams {
  PageLayout page;
  int heads = 0;
  int kv_heads = 0;
  float scale = 0;
  const float* q = nullptr;  // [batch rows, heads * head_dim]
  int64_t q_stride = 0;
  const Segment* segments = nullptr;
  const AttendRow* rows = nullptr;
  const AttendItem* items = nullptr;
  int item_count = 0;
  uint32_t* next_item = nullptr;  // 0 before the launch
  float* partial_out = nullptr;   // [partials, head_dim], not yet divided; null: states only
  SoftmaxState<float>* partial_states = nullptr;  // [partials]

  PAGEZIP_HD int group() const { return heads / kv_heads; }
};

/// Partials entries[first[i]], ..., entries[first[i + 1] - 1], in this order, are those of the
/// first query head of (row i / kv_heads, KV head i % kv_heads); the group's other heads follow
/// each.
struct MergeParams {
  int heads;
  int kv_heads;
  int head_dim;
  int64_t row_count;
  const AttendRow* rows;
  const int64_t* first;  // [row_count * kv_heads + 1]
  const int64_t* entries;
  const float* partial_out;
  const SoftmaxState<float>* partial_states;
  float* out;  // [batch rows, heads * head_dim], or null
  int64_t out_stride;
  float* lse;  // [batch rows, heads], or null
  int64_t lse_stride;
  uint32_t* next_item;  // reset for the next launch; null: there is none
};

/// The pairs of a segment that a row sees. The pairs of a ragged segment lie before every row.
struct PairRange {
  int64_t begin;
  int64_t end;
};
PAGEZIP_HD inline PairRange visible_pairs(const PageLayout& page, const Segment& segment, int layer,
                                          int head, int window, int64_t position) {
  PairRange range{segment.first_page * page.page_tokens, segment.length(layer, head)};
  if (segment.lengths == nullptr) {
    const int64_t own = position - segment.first_position + (MUTANT(kCausalOffByOne) ? 1 : 0);
    range.end = range.end < own + 1 ? range.end : own + 1;
    const int64_t first = own - window + 1;
    range.begin = window > 0 && first > range.begin ? first : range.begin;
  }
  return range;
}

}  // namespace pagezip::cuda
