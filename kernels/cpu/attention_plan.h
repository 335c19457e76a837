// The work of one call of attend(), as two lists that threads take items from, longest first.
//
// *Tiles* are rows of one span with one KV head; finishing a tile walks its units and writes its
// rows. Before that, *runs* compute units whose results wait in slots:
// - of a shared segment. Spans whose views begin with the same segment, as requests on one document
//   do, read it once: their rows form tiles of up to kTileRows query rows for that segment alone.
// - of a tile that has more than its share of all work. So one long head or one long sequence does
//   not set the time.
// Neither changes a bit of any result, because a unit is computed alone and merged in its place.
#pragma once

#include <span>

#include "kernels/cpu/attention_tile.h"

namespace pagezip::cpu {

/// What several spans read of their first segment, with one KV head.
struct SharedSegment {
  std::span<const QueryRow> rows;  // of all these spans
  Slots slots;
  std::span<const Tile> tiles;  // of these rows
};

struct SpanTile : Tile {
  const SharedSegment* shared = nullptr;  // comes before its units; null: nothing does
  Slots slots;                            // of its units, if runs compute them
};

/// Units [first_unit, end_unit) of a tile.
struct Run {
  const Tile* tile;
  const Slots* slots;
  int64_t first_query_row;  // of the tile, in the slots
  int64_t first_unit;
  int64_t end_unit;
  int64_t work;
};

class AttentionPlan {
 public:
  /// Bytes that a plan of such a call takes.
  static size_t bytes(const AttendArgs& args, int threads);
  /// In `memory` of that many bytes, aligned to 64.
  AttentionPlan(const AttendArgs& args, int threads, std::byte* memory);

  std::span<const Run> runs() const { return {lists_.runs, static_cast<size_t>(runs_)}; }
  std::span<const SpanTile> tiles() const { return {lists_.tiles, static_cast<size_t>(tiles_)}; }
  TileScratch scratch(int thread, const Tile& tile) const {
    return {lists_.scratch + thread * lists_.scratch_floats, tile.query_rows, args_.page.head_dim};
  }

 private:
  // Arrays as long as a call can need.
  struct Lists {
    const AttentionSpan** order;
    QueryRow* rows;
    SpanTile* tiles;
    SharedSegment* shared;
    Tile* shared_tiles;
    Run* runs;
    float* slots;
    float* scratch;
    int64_t scratch_floats;  // per thread
    // What cuts may take beyond the one run and the one slot of every shared tile.
    int64_t cut_runs;
    int64_t cut_floats;
    size_t bytes;
  };
  static Lists carve(const AttendArgs& args, int threads, std::byte* memory);

  void add_group(std::span<const AttentionSpan* const> spans);
  Tile make_tile(const AttentionSpan& span, std::span<const QueryRow> rows, int head,
                 int first_segment, int end_segment);
  const SharedSegment* add_shared(const AttentionSpan& span, std::span<const QueryRow> rows,
                                  int head);
  void add_runs(SharedSegment& shared);
  int64_t units_per_run(const Tile& tile, int64_t query_rows, int64_t tiles, bool folds);
  Slots take_slots(const Tile& tile, int64_t query_rows, int64_t folded);
  void add_runs(const Tile& tile, const Slots& slots, int64_t first_query_row, int64_t units);

  const AttendArgs& args_;
  Lists lists_;
  int64_t rows_ = 0;
  int64_t tiles_ = 0;
  int64_t shared_ = 0;
  int64_t shared_tiles_ = 0;
  int64_t runs_ = 0;
  int64_t work_ = 0;      // of all tiles
  int64_t work_max_ = 0;  // of a run or a tile, if it can be cut
  int64_t slot_floats_ = 0;
};

}  // namespace pagezip::cpu
