#include "kernels/cpu/attention_plan.h"

#include <functional>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "base/math.h"

namespace pagezip::cpu {
namespace {

// Query rows of a tile: many enough to pay for widening a page, few enough for the caches.
constexpr int64_t kTileRows = 128;
// A tile is cut if it has more work than a thread should get in one of so many items.
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kCutFloatsMax = int64_t{32} << 20;
// What reading and widening a unit costs, in query rows.
constexpr int64_t kReadRows = 6;

int64_t rows_per_tile(const AttendArgs& args) {
  return std::max<int64_t>(1, kTileRows / (args.heads / args.kv_heads));
}

// The next array in some memory; without memory, only the bytes are counted.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* start = memory_ == nullptr ? nullptr : memory_ + bytes_;
    // NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is meant
    bytes_ += round_up(static_cast<size_t>(count) * sizeof(T), size_t{64});
    return reinterpret_cast<T*>(start);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

// Units that no tile of the span has more of.
int64_t units_max(const AttendArgs& args, const AttentionSpan& span) {
  int64_t units = 0;
  for (int s = 0; s < span.view->count; ++s) {
    int64_t length = 0;
    for (int head = 0; head < args.kv_heads; ++head) {
      length = std::max(length, span.view->segments[s].length(span.layer, head));
    }
    units += ceil_div(length, kUnitPairs);
  }
  return units;
}

bool sees_whole_first_segment(const AttendArgs& args, const AttentionSpan& span) {
  if (span.rows == 0 || span.view->count == 0) {
    return false;
  }
  const Segment& segment = span.view->segments[0];
  for (int head = 0; head < args.kv_heads; ++head) {
    const Range first = visible(args.page, span, segment, head, span.first_position);
    const Range last = visible(args.page, span, segment, head, span.first_position + span.rows - 1);
    if (first.high < segment.length(span.layer, head) ||
        last.low > segment.first_page * args.page.page_tokens) {
      return false;
    }
  }
  return true;
}

bool same_first_segment(const AttentionSpan& a, const AttentionSpan& b) {
  return a.layer == b.layer && a.window == b.window && a.view->segments[0] == b.view->segments[0];
}

// An order in which spans of one document are neighbours.
void sort_by_document(std::span<const AttentionSpan*> spans) {
  const auto key = [](const AttentionSpan* span) {
    const auto* ids = span->view->count == 0 ? nullptr : span->view->segments[0].ids;
    return std::tuple(reinterpret_cast<uintptr_t>(ids), span->layer, span->first_row);
  };
  std::sort(spans.begin(), spans.end(),
            [&](const auto* a, const auto* b) { return key(a) < key(b); });
}

template <typename Item>
void sort_longest_first(std::span<Item> items) {
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.work > b.work; });
}

}  // namespace

AttentionPlan::Lists AttentionPlan::carve(const AttendArgs& args, int threads, std::byte* memory) {
  const auto spans = static_cast<int64_t>(args.spans.size());
  const int64_t group = args.heads / args.kv_heads;
  const int64_t tile_rows = rows_per_tile(args);
  int64_t rows = 0;
  int64_t span_rows = 0;
  int64_t chunks = 0;
  int64_t units = 0;
  for (const AttentionSpan& span : args.spans) {
    rows += span.rows;
    span_rows = std::max(span_rows, span.rows);
    chunks += ceil_div(span.rows, tile_rows);
    units = std::max(units, units_max(args, span));
  }
  const bool shares = spans > 1;
  const int64_t groups = spans / 2;
  const int64_t shared_chunks = shares ? rows / tile_rows + groups : 0;
  const int64_t query_rows = std::min(tile_rows, shares ? rows : span_rows) * group;
  const bool cuts = threads > 1 && args.score == nullptr;
  const int64_t tile_floats = units * Slots::floats(query_rows, args.page.head_dim);
  Lists lists{};
  lists.cut_runs = cuts ? 8 * kItemsPerThread * threads : 0;
  lists.cut_floats =
      cuts ? std::min(kCutFloatsMax, (kItemsPerThread * threads + 1) * tile_floats) : 0;
  lists.scratch_floats = TileScratch::floats(query_rows, args.page.head_dim);
  const int64_t shared_floats = shares ? Slots::floats(rows * args.heads, args.page.head_dim) : 0;
  Carver carver(memory);
  lists.order = carver.take<const AttentionSpan*>(spans);
  lists.rows = carver.take<QueryRow>(rows);
  lists.tiles = carver.take<SpanTile>(chunks * args.kv_heads);
  lists.shared = carver.take<SharedSegment>(groups * args.kv_heads);
  lists.shared_tiles = carver.take<Tile>(shared_chunks * args.kv_heads);
  lists.runs = carver.take<Run>(shared_chunks * args.kv_heads + lists.cut_runs);
  lists.slots = carver.take<float>(shared_floats + lists.cut_floats);
  lists.scratch = carver.take<float>(threads * lists.scratch_floats);
  lists.bytes = carver.bytes();
  return lists;
}

size_t AttentionPlan::bytes(const AttendArgs& args, int threads) {
  return carve(args, threads, nullptr).bytes;
}

AttentionPlan::AttentionPlan(const AttendArgs& args, int threads, std::byte* memory)
    : args_(args), lists_(carve(args, threads, memory)) {
  const std::span order(lists_.order, args.spans.size());
  std::transform(args.spans.begin(), args.spans.end(), order.begin(),
                 [](const AttentionSpan& span) { return &span; });
  sort_by_document(order);
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    end = begin + 1;
    const bool shares = sees_whole_first_segment(args, *order[begin]);
    while (shares && end < order.size() && sees_whole_first_segment(args, *order[end]) &&
           same_first_segment(*order[begin], *order[end])) {
      ++end;
    }
    add_group(order.subspan(begin, end - begin));
  }
  work_max_ = lists_.cut_runs > 0 ? work_ / (kItemsPerThread * threads)
                                  : std::numeric_limits<int64_t>::max();
  for (SharedSegment& shared : std::span(lists_.shared, static_cast<size_t>(shared_))) {
    add_runs(shared);
  }
  const std::span tiles(lists_.tiles, static_cast<size_t>(tiles_));
  sort_longest_first(tiles);
  for (SpanTile& tile : tiles) {
    const bool folds = tile.shared == nullptr;
    const int64_t units = units_per_run(tile, tile.query_rows, 1, folds);
    if (units < tile.units) {
      tile.slots = take_slots(tile, tile.query_rows, folds ? units : 1);
      add_runs(tile, tile.slots, 0, units);
    }
  }
  sort_longest_first(std::span(lists_.runs, static_cast<size_t>(runs_)));
}

// Spans of one document, or a single one.
void AttentionPlan::add_group(std::span<const AttentionSpan* const> spans) {
  const QueryRow* group_rows = lists_.rows + rows_;
  for (const AttentionSpan* span : spans) {
    for (int64_t r = 0; r < span->rows; ++r) {
      lists_.rows[rows_++] = {span->first_row + r, span->first_position + r};
    }
  }
  const std::span rows(group_rows, lists_.rows + rows_);
  const bool shares = spans.size() > 1;
  const int64_t tile_rows = rows_per_tile(args_);
  for (int head = 0; head < args_.kv_heads; ++head) {
    const SharedSegment* shared = shares ? add_shared(*spans[0], rows, head) : nullptr;
    const QueryRow* row = group_rows;
    for (const AttentionSpan* span : spans) {
      for (int64_t left = span->rows; left > 0; left -= tile_rows) {
        const auto count = static_cast<size_t>(std::min(tile_rows, left));
        const Tile tile = make_tile(*span, {row, count}, head, shares ? 1 : 0, span->view->count);
        lists_.tiles[tiles_++] = {tile, shared, {}};
        row += count;
      }
    }
  }
}

const SharedSegment* AttentionPlan::add_shared(const AttentionSpan& span,
                                               std::span<const QueryRow> rows, int head) {
  const auto tile_rows = static_cast<size_t>(rows_per_tile(args_));
  Tile* const first = lists_.shared_tiles + shared_tiles_;
  for (size_t r = 0; r < rows.size(); r += tile_rows) {
    const auto count = std::min(tile_rows, rows.size() - r);
    lists_.shared_tiles[shared_tiles_++] = make_tile(span, rows.subspan(r, count), head, 0, 1);
  }
  SharedSegment& shared = lists_.shared[shared_++];
  shared = {rows, {}, {first, lists_.shared_tiles + shared_tiles_}};
  return &shared;
}

Tile AttentionPlan::make_tile(const AttentionSpan& span, std::span<const QueryRow> rows, int head,
                              int first_segment, int end_segment) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t query_rows = count * (args_.heads / args_.kv_heads);
  Tile tile{&span, rows.data(), count, query_rows, head, first_segment, end_segment, 0, 0};
  for_units(args_.page, tile, [&](const UnitRef& ref) {
    ++tile.units;
    tile.work += (ref.hull.high - ref.hull.low) * (query_rows + kReadRows);
  });
  work_ += tile.work;
  return tile;
}

void AttentionPlan::add_runs(SharedSegment& shared) {
  const Tile& first = shared.tiles[0];  // no other one has more rows
  if (first.units == 0) {
    return;
  }
  const int64_t group = args_.heads / args_.kv_heads;
  const int64_t query_rows = static_cast<int64_t>(shared.rows.size()) * group;
  const auto tiles = static_cast<int64_t>(shared.tiles.size());
  const int64_t units = units_per_run(first, query_rows, tiles, true);
  shared.slots = take_slots(first, query_rows, units);
  for (const Tile& tile : shared.tiles) {
    add_runs(tile, shared.slots, (tile.rows - shared.rows.data()) * group, units);
  }
}

// As many as keep a run of the tile short, or all where there is no memory for more runs. The same
// cut is made of `tiles` tiles with `query_rows` rows together.
int64_t AttentionPlan::units_per_run(const Tile& tile, int64_t query_rows, int64_t tiles,
                                     bool folds) {
  if (tile.work <= work_max_) {
    return tile.units;
  }
  const int64_t units = std::max<int64_t>(1, tile.units * work_max_ / tile.work);
  const int64_t runs = tiles * ceil_div(tile.units, units);
  const int64_t slots = folds ? tile.units - units + 1 : tile.units;
  const int64_t floats = slots * Slots::floats(query_rows, args_.page.head_dim);
  if (runs > lists_.cut_runs || floats > lists_.cut_floats) {
    return tile.units;
  }
  lists_.cut_runs -= runs;
  lists_.cut_floats -= floats;
  return units;
}

Slots AttentionPlan::take_slots(const Tile& tile, int64_t query_rows, int64_t folded) {
  const int64_t d = args_.page.head_dim;
  const Slots slots{lists_.slots + slot_floats_, query_rows, d, folded, tile.units - folded + 1};
  slot_floats_ += slots.count * Slots::floats(query_rows, d);
  return slots;
}

void AttentionPlan::add_runs(const Tile& tile, const Slots& slots, int64_t first_query_row,
                             int64_t units) {
  for (int64_t unit = 0; unit < tile.units; unit += units) {
    const int64_t end = std::min(unit + units, tile.units);
    lists_.runs[runs_++] = {&tile, &slots, first_query_row,
                            unit,  end,    tile.work * (end - unit) / tile.units};
  }
}

}  // namespace pagezip::cpu
