// Cuts a batch of rows and what they see into work items for attend.cuh, on the host.
//
// Rows that read the same segment share its items, so that requests on one document read its pages
// together. Long views are cut into items of whole runs; how finely is free, for it changes no bit
// of any result. Items are sorted by their bytes, longest first, so that one long head doesn't set
// the time of a launch.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/attend.h"
#include "kernels/kernels.h"

namespace pagezip::cuda {

struct AttendPlan {
  std::vector<Segment> segments;
  std::vector<AttendRow> rows;  // first those of the batch, once each; then rows of shared segments
  int64_t row_count = 0;        // of the batch
  std::vector<AttendItem> items;
  std::vector<int64_t> first;    // as in MergeParams
  std::vector<int64_t> entries;  // as in MergeParams
  int64_t partials = 0;
  bool many_rows = false;
};

/// `score`: only the pairs of its ranges, for their log-sum-exp; REQUIRES: a single span.
/// REQUIRES: pairs_per_item is a multiple of kRunPairs; at most kPackedRowsMany query heads share a
/// KV head. The spans' segments have lengths that the host can read.
AttendPlan plan_attend(const PageLayout& page, int heads, int kv_heads,
                       std::span<const AttentionSpan> spans, const ScoreRange* score,
                       int64_t pairs_per_item);

/// Pairs per item that give each of `blocks` some items, and no more items than that.
int64_t choose_pairs_per_item(std::span<const AttentionSpan> spans, int kv_heads, int blocks);

}  // namespace pagezip::cuda
