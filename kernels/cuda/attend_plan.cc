#include "kernels/cuda/attend_plan.h"

#include <algorithm>
#include <tuple>

namespace pagezip::cuda {
namespace {

/// Rows that read one segment with the same layer and window.
struct Reader {
  const AttentionSpan* span;
  int segment;        // in the span's view
  int64_t first_row;  // of the span, in the plan's rows
};
struct Group {
  Segment segment;
  std::vector<Reader> readers;
};

std::vector<Group> group_by_segment(std::span<const AttentionSpan> spans) {
  std::vector<Group> groups;
  int64_t row = 0;
  for (const AttentionSpan& span : spans) {
    for (int s = 0; s < span.view->count; ++s) {
      const Segment& segment = span.view->segments[s];
      const auto same = [&](const Group& group) {
        const AttentionSpan& other = *group.readers[0].span;
        return group.segment == segment && other.layer == span.layer && other.window == span.window;
      };
      auto group = std::find_if(groups.begin(), groups.end(), same);
      if (group == groups.end()) {
        group = groups.insert(groups.end(), {segment, {}});
      }
      group->readers.push_back({&span, s, row});
    }
    row += span.rows;
  }
  return groups;
}

/// The ranges of a segment that count.
std::vector<PairRange> ranges_of(const ScoreRange* score, int segment) {
  constexpr PairRange kAll{0, INT64_MAX};
  if (score == nullptr || segment > score->segment) {
    return {kAll};
  }
  std::vector<PairRange> ranges;
  if (segment == 0) {
    ranges.push_back({0, score->prefix_end});
  }
  if (segment == score->segment) {
    ranges.push_back({score->chunk_begin, score->chunk_end});
  }
  return ranges;
}

/// A row of a group: where it is in the plan, and which segment of its own view the group is.
struct GroupRow {
  int64_t unique;
  int segment;
};

class Planner {
 public:
  Planner(const PageLayout& page, int heads, int kv_heads, const ScoreRange* score,
          int64_t pairs_per_item)
      : page_(page),
        group_heads_(heads / kv_heads),
        kv_heads_(kv_heads),
        score_(score),
        pairs_per_item_(pairs_per_item) {}

  AttendPlan run(std::span<const AttentionSpan> spans) {
    for (const AttentionSpan& span : spans) {
      for (int64_t i = 0; i < span.rows; ++i) {
        plan_.rows.push_back({span.first_position + i, span.first_row + i});
      }
    }
    plan_.row_count = static_cast<int64_t>(plan_.rows.size());
    const std::vector<Group> groups = group_by_segment(spans);
    for (const Group& group : groups) {
      int64_t rows = 0;
      for (const Reader& reader : group.readers) {
        rows += reader.span->rows;
      }
      plan_.many_rows |= rows * group_heads_ > kPackedRowsFew;
    }
    for (const Group& group : groups) {
      add_group(group);
    }
    finish();
    return std::move(plan_);
  }

 private:
  using Entry = std::tuple<int64_t, int, int64_t, int64_t>;  // list, segment, begin, partial

  void add_group(const Group& group) {
    const AttentionSpan& span = *group.readers[0].span;
    std::vector<GroupRow> rows;
    int64_t first = group.readers[0].first_row;
    for (const Reader& reader : group.readers) {
      for (int64_t i = 0; i < reader.span->rows; ++i) {
        rows.push_back({reader.first_row + i, reader.segment});
      }
    }
    if (group.readers.size() > 1) {  // items need their rows side by side
      first = static_cast<int64_t>(plan_.rows.size());
      for (const GroupRow& row : rows) {
        plan_.rows.push_back(AttendRow(plan_.rows[static_cast<size_t>(row.unique)]));
      }
    }
    plan_.segments.push_back(group.segment);
    const int64_t rows_per_item =
        (plan_.many_rows ? kPackedRowsMany : kPackedRowsFew) / group_heads_;
    const auto count = static_cast<int64_t>(rows.size());
    for (int64_t row = 0; row < count; row += rows_per_item) {
      const auto in_item = std::min(rows_per_item, count - row);
      for (const PairRange& range : ranges_of(score_, group.readers[0].segment)) {
        for (int head = 0; head < kv_heads_; ++head) {
          AttendItem item{};
          item.segment = static_cast<int32_t>(plan_.segments.size()) - 1;
          item.kv_head = head;
          item.layer = span.layer;
          item.window = span.window;
          item.first_row = static_cast<int32_t>(first + row);
          item.rows = static_cast<int32_t>(in_item);
          add_items(item, group.segment, range, std::span(rows).subspan(row, in_item));
        }
      }
    }
  }

  /// Cuts what the rows of `item` see at multiples of pairs_per_item_.
  void add_items(AttendItem item, const Segment& segment, const PairRange& wanted,
                 std::span<const GroupRow> rows) {
    PairRange seen{INT64_MAX, 0};
    for (int32_t i = 0; i < item.rows; ++i) {
      const PairRange range =
          visible_pairs(page_, segment, item.layer, item.kv_head, item.window,
                        plan_.rows[static_cast<size_t>(int64_t{item.first_row} + i)].position);
      seen.begin = std::min(seen.begin, range.begin);
      seen.end = std::max(seen.end, range.end);
    }
    seen.begin = std::max(seen.begin, wanted.begin);
    seen.end = std::min(seen.end, wanted.end);
    for (int64_t begin = seen.begin; begin < seen.end; begin = item.end) {
      item.begin = begin;
      item.end = std::min(seen.end, (begin / pairs_per_item_ + 1) * pairs_per_item_);
      item.first_partial = plan_.partials;
      plan_.items.push_back(item);
      plan_.partials += int64_t{item.rows} * group_heads_;
      for (int32_t i = 0; i < item.rows; ++i) {
        const GroupRow& row = rows[static_cast<size_t>(i)];
        entries_.emplace_back(row.unique * kv_heads_ + item.kv_head, row.segment, begin,
                              item.first_partial + int64_t{i} * group_heads_);
      }
    }
  }

  void finish() {
    std::sort(entries_.begin(), entries_.end());
    plan_.first.assign(static_cast<size_t>(plan_.row_count * kv_heads_) + 1, 0);
    for (const auto& [list, segment, begin, partial] : entries_) {
      ++plan_.first[static_cast<size_t>(list) + 1];
      plan_.entries.push_back(partial);
    }
    for (size_t i = 1; i < plan_.first.size(); ++i) {
      plan_.first[i] += plan_.first[i - 1];
    }
    std::stable_sort(
        plan_.items.begin(), plan_.items.end(),
        [](const AttendItem& a, const AttendItem& b) { return a.end - a.begin > b.end - b.begin; });
  }

  PageLayout page_;
  int group_heads_;
  int kv_heads_;
  const ScoreRange* score_;
  int64_t pairs_per_item_;
  AttendPlan plan_;
  std::vector<Entry> entries_;
};

}  // namespace

AttendPlan plan_attend(const PageLayout& page, int heads, int kv_heads,
                       std::span<const AttentionSpan> spans, const ScoreRange* score,
                       int64_t pairs_per_item) {
  CHECK_EQ(pairs_per_item % kRunPairs, 0);
  CHECK_GT(pairs_per_item, 0);
  CHECK_LE(heads / kv_heads, kPackedRowsMany);
  CHECK(score == nullptr || spans.size() == 1);
  return Planner(page, heads, kv_heads, score, pairs_per_item).run(spans);
}

int64_t choose_pairs_per_item(std::span<const AttentionSpan> spans, int kv_heads, int blocks) {
  constexpr int64_t kItemsPerBlock = 4;
  int64_t pairs = 0;
  for (const AttentionSpan& span : spans) {
    for (int s = 0; s < span.view->count; ++s) {
      for (int head = 0; head < kv_heads; ++head) {
        pairs += span.view->segments[s].length(span.layer, head);
      }
    }
  }
  return std::max<int64_t>(kRunPairs, round_up(pairs / (kItemsPerBlock * blocks), kRunPairs));
}

}  // namespace pagezip::cuda
