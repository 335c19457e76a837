// Which work attend() of the CPU backend gives to threads; the results are tested elsewhere.
#include <map>
#include <set>

#include "kernels/cpu/attention_plan.h"
#include "tests/kernels_attention_util.h"

namespace pagezip::test {
namespace {

using cpu::AttentionPlan;
using cpu::SpanTile;
using cpu::Tile;

constexpr int64_t kTileRowsMax = 128;

/// Decode rows or prompts behind documents of which only the lengths matter.
class PlanTest : public testing::Test {
 protected:
  PlanTest() {
    args_.page.head_dim = 64;
    args_.kv_heads = 2;
    args_.heads = 14;
    lengths_ = {600, 1800};
    document_.ids = ids_;
    document_.lengths = lengths_.data();
    document_.heads = 2;
  }

  /// `rows` rows behind the document, which end a sequence of `own` pairs.
  void add(const Segment& document, int64_t rows, int64_t own, int window = 0) {
    KvView& view = views_.emplace_back();
    view.push(document);
    Segment& tail = view.segments[view.count++];
    tail.ids = ids_ + 10 + views_.size();
    tail.uniform_length = own;
    tail.first_position = kPosition;
    tail.heads = 2;
    spans_.push_back({rows_, rows, kPosition + own - rows, nullptr, 0, window});
    rows_ += rows;
  }

  AttentionPlan make(int threads) {
    for (size_t i = 0; i < spans_.size(); ++i) {
      spans_[i].view = &views_[i];
    }
    args_.spans = spans_;
    memory_ = AlignedBytes(AttentionPlan::bytes(args_, threads));
    return {args_, threads, memory_.data()};
  }

  /// How often each (segment, head, row, unit) is computed, by runs or by tiles; checks the units.
  static std::map<std::array<int64_t, 4>, int> computed(const AttentionPlan& plan) {
    std::map<std::array<int64_t, 4>, int> count;
    const auto add_units = [&](const Tile& tile, int64_t first, int64_t end) {
      EXPECT_LE(tile.query_rows, kTileRowsMax);
      int64_t unit = 0;
      cpu::for_units(PageLayout{.head_dim = 64}, tile, [&](const cpu::UnitRef& ref) {
        for (int64_t r = 0; unit >= first && unit < end && r < tile.row_count; ++r) {
          ++count[{ref.segment, tile.head, tile.rows[r].row, ref.unit}];
        }
        ++unit;
      });
      EXPECT_EQ(unit, tile.units);
    };
    for (const cpu::Run& run : plan.runs()) {
      add_units(*run.tile, run.first_unit, run.end_unit);
    }
    for (const SpanTile& tile : plan.tiles()) {
      add_units(tile, 0, tile.slots.count > 0 ? 0 : tile.units);
    }
    return count;
  }

  static int64_t tiles_with(const AttentionPlan& plan, int segment) {
    std::set<const Tile*> tiles;
    for (const cpu::Run& run : plan.runs()) {
      if (run.tile->first_segment == segment) tiles.insert(run.tile);
    }
    for (const SpanTile& tile : plan.tiles()) {
      if (tile.first_segment == segment) tiles.insert(&tile);
    }
    return static_cast<int64_t>(tiles.size());
  }

  static constexpr int64_t kPosition = 4000;
  uint32_t ids_[1000] = {};
  std::vector<uint32_t> lengths_;
  Segment document_;
  AttendArgs args_;
  std::vector<KvView> views_;
  std::vector<AttentionSpan> spans_;
  int64_t rows_ = 0;
  AlignedBytes memory_;
};

TEST_F(PlanTest, SharersReadTheDocumentOnce) {
  for (int i = 0; i < 16; ++i) add(document_, 1, 64);
  for (const int threads : {1, 2, 16}) {
    const AttentionPlan plan = make(threads);
    // 16 rows of 7 query heads fit one tile for each KV head.
    EXPECT_EQ(tiles_with(plan, 0), 2);
    EXPECT_EQ(plan.tiles().size(), 32U);
    const auto count = computed(plan);
    EXPECT_EQ(count.size(), 16U * (3 + 8 + 2));
    for (const auto& [unit, times] : count) EXPECT_EQ(times, 1);
  }
}

TEST_F(PlanTest, ManySharersFillSeveralTiles) {
  for (int i = 0; i < 20; ++i) add(document_, i == 7 ? 40 : 1, 64);
  const AttentionPlan plan = make(2);
  EXPECT_EQ(tiles_with(plan, 0), 2 * 4);  // 59 rows, 18 in a tile
  for (const auto& [unit, times] : computed(plan)) EXPECT_EQ(times, 1);
}

TEST_F(PlanTest, OnlyTheSameRangeOfTheSameSegmentIsShared) {
  Segment other = document_;
  other.ids = ids_ + 1;
  add(document_, 1, 64);
  add(other, 1, 64);
  EXPECT_EQ(tiles_with(make(1), 1), 0);
  // Not with rows that see less of it.
  Segment full;
  full.ids = ids_;
  full.uniform_length = kPosition;
  full.heads = 2;
  for (const int64_t first : {kPosition - 2, kPosition - 1}) {
    spans_.clear();
    views_.clear();
    add(full, 1, 64);
    add(full, 1, 64);
    spans_[1].first_position = first;
    EXPECT_EQ(tiles_with(make(1), 1), first == kPosition - 1 ? 4 : 0);
  }
  for (const int window : {4000, 5000}) {
    spans_.clear();
    views_.clear();
    add(full, 1, 64, window);
    add(full, 1, 64, window);
    EXPECT_EQ(tiles_with(make(1), 1), window == 5000 ? 4 : 0);
  }
}

TEST_F(PlanTest, LongestFirstAndNothingSetsTheTime) {
  lengths_ = {300, 100'000};  // one long head
  for (int i = 0; i < 3; ++i) add(document_, 1, 64);
  add(document_, 1, 90'000);  // one long sequence
  const int threads = 4;
  const AttentionPlan plan = make(threads);
  int64_t total = 0;
  int64_t previous = INT64_MAX;
  for (const cpu::Run& run : plan.runs()) {
    total += run.work;
    EXPECT_LE(run.work, previous);
    previous = run.work;
  }
  EXPECT_GT(plan.runs().size(), 12U);
  EXPECT_LE(plan.runs()[0].work, total / (2 * threads));
  for (const auto& [unit, times] : computed(plan)) EXPECT_EQ(times, 1);
}

TEST_F(PlanTest, OneThreadCutsNothing) {
  add(document_, 1, 90'000);
  const AttentionPlan plan = make(1);
  EXPECT_TRUE(plan.runs().empty());
  EXPECT_EQ(plan.tiles().size(), 2U);
}

}  // namespace
}  // namespace pagezip::test
