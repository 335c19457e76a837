#include "paging/block_table.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace pagezip {
namespace {

KvGeometry small_geometry() {
  KvGeometry geometry;
  geometry.page = {KvType::kF16, KvType::kBF16, 16, 32};
  geometry.kv_heads = 2;
  geometry.layers_per_block = 2;
  return geometry;
}

TEST(KvGroups, GlobalOnlyIsOneGroup) {
  const auto groups = make_kv_groups({true, true, true}, 0);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(groups[0].window, 0);
}

TEST(KvGroups, SlidingLayersAreCutToTheSizeOfTheGlobalGroup) {
  // Every third layer is global; the others make groups of two.
  const auto groups =
      make_kv_groups({false, false, true, false, false, true, false, false, false}, 512);
  ASSERT_EQ(groups.size(), 5u);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{2, 5}));
  EXPECT_EQ(groups[0].window, 0);
  EXPECT_EQ(groups[1].layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(groups[3].layers, (std::vector<int>{6, 7}));
  EXPECT_EQ(groups[4].layers, (std::vector<int>{8}));
  EXPECT_EQ(groups[4].window, 512);
}

TEST(KvGroups, SlidingOnlyIsOneGroup) {
  const auto groups = make_kv_groups({false, false}, 64);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(groups[0].window, 64);
}

class BlockTableTest : public ::testing::Test {
 protected:
  void grow(BlockTable& table, int64_t length) {
    auto reservation = pool_.reserve(table.blocks_needed(length));
    ASSERT_TRUE(reservation.has_value());
    table.grow(length, *reservation);
    EXPECT_EQ(reservation->blocks(), 0);
  }
  void grow(Sequence& sequence, int64_t length) {
    auto reservation = pool_.reserve(sequence.blocks_needed(length));
    ASSERT_TRUE(reservation.has_value());
    sequence.grow(length, *reservation);
    EXPECT_EQ(reservation->blocks(), 0);
  }

  BlockPool pool_{small_geometry(), 32};
};

TEST_F(BlockTableTest, GrowsByWholeBlocksAndTruncates) {
  BlockTable table(pool_, 0, 0);
  EXPECT_EQ(table.blocks_needed(33), 3);
  grow(table, 33);
  EXPECT_EQ(table.blocks_needed(48), 0);
  grow(table, 48);
  EXPECT_EQ(table.blocks_held(), 3);
  table.truncate(16);
  EXPECT_EQ(table.length(), 16);
  EXPECT_EQ(pool_.blocks_in_use(), 1);
  table.truncate(0);
  EXPECT_EQ(pool_.blocks_in_use(), 0);
}

TEST_F(BlockTableTest, SegmentAddressesEveryPageOnce) {
  BlockTable table(pool_, 0, 100);
  grow(table, 40);
  const Segment segment = table.segment();
  EXPECT_EQ(segment.first_position, 100);
  EXPECT_EQ(segment.length(1, 1), 40);
  const int64_t page_bytes = pool_.geometry().page.page_bytes();
  for (int64_t page = 0; page < 3; ++page) {
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 2; ++head) {
        const PageId id = pool_.page_id({static_cast<uint32_t>(page)}, layer * 2 + head);
        EXPECT_EQ(segment.page(layer, head, page), pool_.base() + id.value * page_bytes);
      }
    }
  }
}

TEST_F(BlockTableTest, DropsOnlyBlocksWhollyBehindTheWindow) {
  BlockTable table(pool_, 20, 0);
  grow(table, 64);
  table.drop_behind(34);  // reads 15..34
  EXPECT_EQ(table.first_page(), 0);
  table.drop_behind(35);  // reads 16..35
  EXPECT_EQ(table.first_page(), 1);
  EXPECT_EQ(pool_.blocks_in_use(), 3);
  table.drop_behind(20);  // an earlier row changes nothing
  EXPECT_EQ(table.first_page(), 1);
  table.drop_behind(64);  // reads 45..64
  EXPECT_EQ(table.first_page(), 2);
  EXPECT_EQ(table.blocks_needed(65), 1);
  const Segment segment = table.segment();
  EXPECT_EQ(segment.first_page, 2);
  EXPECT_EQ(segment.page(0, 0, 3), pool_.base() + 3 * pool_.geometry().block_bytes());
}

TEST_F(BlockTableTest, WindowWideningPastTheStartDropsNothing) {
  BlockTable table(pool_, 20, 7);
  grow(table, 10);
  table.drop_behind(10);
  EXPECT_EQ(table.first_page(), 0);
  table.truncate(0);
  EXPECT_EQ(table.length(), 0);
}

TEST_F(BlockTableTest, SharedPairsAreFrozen) {
  BlockTable table(pool_, 0, 0);
  grow(table, 40);
  const BlockRun run = table.share(35);
  EXPECT_EQ(run.blocks.size(), 3);
  table.truncate(35);
  EXPECT_DEATH(table.truncate(34), "length >= frozen_");
}

TEST_F(BlockTableTest, SharesSinglePages) {
  BlockTable table(pool_, 20, 0);
  grow(table, 70);
  table.drop_behind(40);  // reads 21..40
  const BlockRef block = table.share_page(2);
  EXPECT_EQ(block.id().value, 2u);
  EXPECT_EQ(pool_.pins(block.id()), 2u);
  EXPECT_DEATH(table.share_page(0), "first_page <= page");
  EXPECT_DEATH(table.share_page(4), "end <= run_.length");
  table.truncate(48);
  EXPECT_DEATH(table.truncate(47), "length >= frozen_");
  table.drop_behind(48);
  EXPECT_EQ(pool_.pins(block.id()), 2u);
}

TEST_F(BlockTableTest, TruncateNeedsItsWindow) {
  BlockTable table(pool_, 20, 0);
  grow(table, 64);
  table.drop_behind(64);
  table.truncate(51);  // row 51 reads 32..51
  EXPECT_DEATH(table.truncate(50), "first_page <= first_page_needed");
}

TEST_F(BlockTableTest, SequenceCountsAllGroups) {
  const auto groups = make_kv_groups({true, false, true, false, false}, 20);
  Sequence sequence(pool_, groups, 0);
  EXPECT_EQ(sequence.groups(), 3);
  EXPECT_EQ(sequence.blocks_needed(17), 6);
  grow(sequence, 64);
  EXPECT_EQ(sequence.blocks_held(), 12);
  sequence.drop_behind(64);
  EXPECT_EQ(sequence.blocks_held(), 4 + 2 + 2);
  EXPECT_EQ(sequence.blocks_needed(80), 3);
  std::vector<uint32_t> pins(32, 0);
  sequence.count_refs(pins);
  EXPECT_EQ(pool_.audit_owners(pins, 0), "");
}

TEST_F(BlockTableTest, AdoptedPrefixIsSharedNotCopied) {
  const auto groups = make_kv_groups({true, false, true, false}, 20);
  Sequence donor(pool_, groups, 0);
  grow(donor, 70);
  Sequence reader(pool_, groups, 0);
  reader.adopt(donor.share(64));
  EXPECT_EQ(reader.length(), 64);
  EXPECT_EQ(reader.table(0).blocks_held(), 4);
  EXPECT_EQ(reader.table(1).first_page(), 2);  // row 64 reads 45..64
  EXPECT_EQ(reader.segment(1).page(1, 0, 3), donor.segment(1).page(1, 0, 3));
  const int64_t before = pool_.blocks_in_use();
  grow(reader, 65);
  EXPECT_EQ(pool_.blocks_in_use(), before + 2);
  Sequence other(pool_, groups, 0);
  EXPECT_DEATH(other.adopt(donor.share(65)), "page_tokens");
  EXPECT_DEATH(reader.truncate(63), "frozen_");
}

}  // namespace
}  // namespace pagezip
