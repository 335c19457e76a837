#include "paging/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/host_arena.h"

namespace pagezip {
namespace {

KvGeometry small_geometry() {
  KvGeometry geometry;
  geometry.page = {KvType::kF16, KvType::kF16, 16, 16};
  geometry.kv_heads = 2;
  geometry.layers_per_block = 3;
  return geometry;
}

class BlockPoolTest : public ::testing::Test {
 protected:
  BlockReservation must_reserve(int64_t blocks) {
    std::optional<BlockReservation> reservation = pool_.reserve(blocks);
    EXPECT_TRUE(reservation.has_value());
    return std::move(*reservation);
  }
  std::vector<uint32_t> pins_of(const BlockList& list) const {
    std::vector<uint32_t> pins(static_cast<size_t>(pool_.blocks_total()), 0);
    list.count_refs(pins);
    return pins;
  }

  BlockPool pool_{small_geometry(), 8};
};

TEST(KvGeometry, CountsPagesAndBytes) {
  const KvGeometry geometry = small_geometry();
  EXPECT_EQ(geometry.pages_per_block(), 6);
  EXPECT_EQ(geometry.page.page_bytes(), 2 * 16 * 16 * 2);
  EXPECT_EQ(geometry.block_bytes(), 6 * 1024);
  EXPECT_EQ(geometry.page_index(2, 1), 5);
  EXPECT_EQ(geometry.pages_for(0), 0);
  EXPECT_EQ(geometry.pages_for(16), 1);
  EXPECT_EQ(geometry.pages_for(17), 2);
}

TEST(KvGeometry, HeadsMayComeFirst) {
  KvGeometry geometry = small_geometry();
  geometry.order = BlockOrder::kHeadMajor;
  EXPECT_EQ(geometry.page_index(2, 0), 2);
  EXPECT_EQ(geometry.page_index(0, 1), 3);
  EXPECT_EQ(geometry.block_bytes(), 6 * 1024);
}

TEST_F(BlockPoolTest, StartsFreeAndZeroed) {
  EXPECT_EQ(pool_.blocks_total(), 8);
  EXPECT_EQ(pool_.blocks_available(), 8);
  EXPECT_EQ(pool_.bytes(), 8 * 6 * 1024);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pool_.base()) % PageLayout::kUnit, 0u);
  BlockReservation reservation = must_reserve(1);
  const BlockRef block = pool_.take(reservation);
  EXPECT_EQ(block.id(), BlockId{0});
  EXPECT_EQ(pool_.page_id(block.id(), 5), PageId{5});
  for (int64_t i = 0; i < pool_.geometry().block_bytes(); ++i) {
    ASSERT_EQ(pool_.base()[i], std::byte{0});
  }
}

TEST_F(BlockPoolTest, RefusesMoreThanIsAvailable) {
  BlockReservation first = must_reserve(5);
  EXPECT_FALSE(pool_.reserve(4).has_value());
  EXPECT_EQ(pool_.blocks_reserved(), 5);
  BlockReservation second = must_reserve(3);
  EXPECT_FALSE(pool_.reserve(1).has_value());
  EXPECT_TRUE(pool_.reserve(0).has_value());
  EXPECT_EQ(pool_.blocks_free(), 8) << "a reservation takes no blocks";
}

TEST_F(BlockPoolTest, ReservationGivesBackWhatIsLeft) {
  {
    BlockReservation reservation = must_reserve(5);
    const BlockRef block = pool_.take(reservation);
    EXPECT_EQ(reservation.blocks(), 4);
    EXPECT_EQ(pool_.blocks_reserved(), 4);
    EXPECT_EQ(pool_.blocks_in_use(), 1);
    EXPECT_EQ(pool_.blocks_available(), 3);
  }
  EXPECT_EQ(pool_.blocks_available(), 8);
}

TEST_F(BlockPoolTest, ReservationsSplitAndMerge) {
  BlockReservation whole = must_reserve(6);
  BlockReservation part = whole.split(2);
  EXPECT_EQ(whole.blocks(), 4);
  EXPECT_EQ(part.blocks(), 2);
  EXPECT_EQ(whole.split(0).blocks(), 0);
  part.merge(whole.split(1));
  EXPECT_EQ(part.blocks(), 3);
  EXPECT_EQ(pool_.blocks_reserved(), 6);
  BlockReservation empty;
  empty.merge(std::move(part));
  EXPECT_EQ(empty.blocks(), 3);
  whole = std::move(empty);  // gives back its own 3
  EXPECT_EQ(whole.blocks(), 3);
  EXPECT_EQ(pool_.blocks_reserved(), 3);
}

TEST_F(BlockPoolTest, BlockLivesUntilItsLastPin) {
  BlockReservation reservation = must_reserve(1);
  BlockRef first = pool_.take(reservation);
  {
    const BlockRef second = first.share();
    const BlockRef moved = std::move(first);
    EXPECT_EQ(second.id(), moved.id());
    EXPECT_EQ(pool_.blocks_in_use(), 1);
  }
  EXPECT_EQ(pool_.blocks_in_use(), 0);
}

TEST_F(BlockPoolTest, AssignmentUnpinsAtOnce) {
  BlockReservation reservation = must_reserve(2);
  BlockRef kept = pool_.take(reservation);
  BlockRef other = pool_.take(reservation);
  kept = std::move(other);
  EXPECT_EQ(pool_.blocks_in_use(), 1);
  EXPECT_EQ(kept.id(), BlockId{1});
}

TEST_F(BlockPoolTest, FreedBlocksComeBackFirst) {
  BlockReservation reservation = must_reserve(4);
  const BlockRef first = pool_.take(reservation);
  BlockId freed{};
  {
    const BlockRef second = pool_.take(reservation);
    freed = second.id();
  }
  EXPECT_EQ(pool_.take(reservation).id(), freed);
}

TEST_F(BlockPoolTest, ListSharesTruncatesAndDrops) {
  BlockReservation reservation = must_reserve(4);
  BlockList list(pool_);
  for (int i = 0; i < 4; ++i) {
    list.push(pool_.take(reservation));
  }
  BlockList middle = list.share(1, 2);
  EXPECT_EQ(middle.ids()[0], 1u);
  EXPECT_EQ(middle.ids()[1], 2u);
  list.truncate(2);
  EXPECT_EQ(pool_.blocks_in_use(), 3) << "block 2 is still pinned by the share";
  list.drop_front(1);
  EXPECT_EQ(list.ids()[0], 1u);
  EXPECT_EQ(pool_.blocks_in_use(), 2);
  EXPECT_EQ(pins_of(middle), (std::vector<uint32_t>{0, 1, 1, 0, 0, 0, 0, 0}));
  middle = std::move(list);
  EXPECT_EQ(pool_.blocks_in_use(), 1);
}

TEST_F(BlockPoolTest, AuditComparesOwnersWithCounts) {
  BlockReservation reservation = must_reserve(3);
  BlockList list(pool_);
  list.push(pool_.take(reservation));
  list.push(pool_.take(reservation));
  EXPECT_EQ(pool_.audit(), "");
  EXPECT_EQ(pool_.audit_owners(pins_of(list), 1), "");
  const BlockList unknown = list.share(1, 1);
  EXPECT_EQ(pool_.audit_owners(pins_of(list), 1), "block 1 has 2 pins, its owners hold 1");
  std::vector<uint32_t> pins = pins_of(list);
  unknown.count_refs(pins);
  EXPECT_EQ(pool_.audit_owners(pins, 1), "");
  EXPECT_EQ(pool_.audit_owners(pins, 2), "1 blocks reserved, their owners hold 2");
}

TEST_F(BlockPoolTest, FreedBlocksReadAsNan) {
  if (!BlockPool::kPoisonsFreed) {
    GTEST_SKIP() << "release builds leave freed blocks as they are";
  }
  BlockReservation reservation = must_reserve(2);
  { const BlockRef freed = pool_.take(reservation); }
  const BlockRef again = pool_.take(reservation);
  EXPECT_EQ(pool_.base()[again.id().value * 6 * 1024], std::byte{0xff});
}

TEST_F(BlockPoolTest, MisuseEndsTheProcess) {
  BlockReservation reservation = must_reserve(1);
  const BlockRef block = pool_.take(reservation);
  EXPECT_DEATH(pool_.take(reservation), "blocks_ > 0");
  EXPECT_DEATH(reservation.split(1), "blocks <= blocks_");
  EXPECT_DEATH(BlockList(pool_).truncate(1), "count <= size");
  EXPECT_DEATH(
      {
        BlockPool other(small_geometry(), 1);
        std::optional<BlockReservation> leaked = other.reserve(1);
        other.~BlockPool();
      },
      "reserved_ == 0");
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(BlockPoolTest, AddressSanitizerSeesAccessToFreeBlocks) {
  EXPECT_DEATH(std::memset(pool_.base(), 1, 1), "use-after-poison");
}
#endif

TEST(BlockPool, ImpossibleSizeIsAnError) {
  KvGeometry geometry = small_geometry();
  geometry.page.head_dim = 1 << 24;
  try {
    const BlockPool pool(geometry, 1 << 16);
    FAIL() << "2^16 blocks of 6 GiB were mapped";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  }
}

// ---- in the arena of a host ----

TEST(HostedPool, TakesWhatItReservesAndGivesBackEachBlockAtOnce) {
  HostArena host(small_geometry(), 8, 1);
  BlockPool pool(small_geometry(), host.arena());
  EXPECT_EQ(pool.blocks_total(), 8);
  EXPECT_EQ(host.blocks_free(), 8U) << "a pool holds nothing that it doesn't need";
  {
    BlockReservation reservation = std::move(*pool.reserve(5));
    EXPECT_EQ(host.blocks_free(), 3U) << "what is promised can't go to others";
    EXPECT_EQ(pool.blocks_reserved(), 5);
    EXPECT_FALSE(pool.reserve(4).has_value());
    EXPECT_FALSE(pool.reserve(100).has_value());
    BlockList list(pool);
    list.push(pool.take(reservation));
    list.push(pool.take(reservation));
    EXPECT_NE(list.ids()[0], list.ids()[1]);
    EXPECT_EQ(pool.blocks_in_use(), 2);
    std::memset(pool.base() + list.ids()[0] * 6 * 1024, 1, 6 * 1024);
    const BlockList shared = list.share(0, 1);
    list.truncate(0);
    EXPECT_EQ(pool.blocks_in_use(), 1) << "block 0 has another pin";
    EXPECT_EQ(host.blocks_free(), 4U);
    EXPECT_EQ(pool.audit(), "");
  }
  EXPECT_EQ(host.blocks_free(), 8U);
  EXPECT_EQ(pool.blocks_in_use(), 0);
  EXPECT_TRUE(host.intact());
}

TEST(HostedPool, DistrustsItsSource) {
  class BadSource : public BlockSource {
   public:
    bool take(std::span<uint32_t> ids) override {
      std::copy_n(next.begin(), ids.size(), ids.begin());
      return true;
    }
    void give_back(std::span<const uint32_t> /*ids*/) noexcept override { ++returns; }
    std::vector<uint32_t> next;
    int returns = 0;
  } source;
  const AlignedBytes memory(static_cast<size_t>(4 * small_geometry().block_bytes()));
  BlockPool pool(small_geometry(), BlockArena{memory.data(), 4, &source});
  for (const std::vector<uint32_t>& bad : {std::vector<uint32_t>{1, 4}, {2, 2}}) {
    source.next = bad;
    EXPECT_THROW(pool.reserve(2), Error);
    EXPECT_EQ(pool.audit(), "");
    EXPECT_EQ(pool.blocks_reserved(), 0);
  }
  source.next = {1, 2};
  const auto reservation = pool.reserve(2);
  ASSERT_TRUE(reservation.has_value());
  source.next = {2};
  EXPECT_THROW(pool.reserve(1), Error);
  EXPECT_EQ(source.returns, 0);
}

TEST(HostedPool, MayHaveTheWholeArena) {
  const AlignedBytes memory(static_cast<size_t>(4 * small_geometry().block_bytes()));
  BlockPool pool(small_geometry(), BlockArena{memory.data(), 4, nullptr});
  EXPECT_EQ(pool.blocks_available(), 4);
  BlockReservation reservation = std::move(*pool.reserve(4));
  EXPECT_EQ(pool.base(), memory.data());
  EXPECT_EQ(pool.take(reservation).id(), BlockId{0});
  EXPECT_EQ(pool.blocks_reserved(), 3);
}

}  // namespace
}  // namespace pagezip
