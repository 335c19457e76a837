// What the prefix index gives up first.
#include <gtest/gtest.h>

#include <utility>

#include "paging/prefix_index.h"
#include "tests/prefix_index_test_util.h"

namespace pagezip {
namespace {

TEST(PrefixEviction, StripsWindowsBeforeLeavesGo) {
  Cache cache(16, 33);
  cache.cache(text(1, 96));
  EXPECT_EQ(cache.index().blocks_idle(), 18);
  EXPECT_EQ(cache.index().evict(7), 8);  // the sliding blocks of four pages
  EXPECT_EQ(cache.index().stats().pages_stripped, 4);
  EXPECT_EQ(cache.match(text(1, 96)), 96);
  EXPECT_EQ(cache.match(text(1, 95)), 0);
  // Without its last page the chain serves nobody, so all of it goes before another leaf.
  cache.cache(text(2, 16));
  cache.acquire(text(2, 16));
  EXPECT_EQ(cache.index().evict(4), 3 + 3);
  EXPECT_EQ(cache.match(text(1, 96)), 0);
  EXPECT_EQ(cache.index().evict(4), 4);
  EXPECT_EQ(cache.match(text(2, 16)), 16);
  EXPECT_EQ(cache.index().stats().pages, 1);
  cache.audit({}, true);
}

TEST(PrefixEviction, KeepsWindowsWhereChainsForked) {
  Cache cache(16, 33);
  cache.cache(text(1, 64) + text(2, 64));
  cache.cache(text(1, 64) + text(3, 64));
  // Both chains keep the windows of their ends, and there is one of the fork.
  EXPECT_EQ(cache.index().evict(12), 12);
  EXPECT_EQ(cache.index().stats().pages_stripped, 6);
  EXPECT_EQ(cache.match(text(1, 64) + text(4, 64)), 64);
  cache.audit({}, true);
}

TEST(PrefixEviction, LeavesGoFirst) {
  Cache cache;
  cache.cache(text(1, 64));
  for (int64_t left = 48; left >= 0; left -= 16) {
    EXPECT_EQ(cache.index().evict(1), 1);
    EXPECT_EQ(cache.match(text(1, 64)), left);
    cache.audit({}, true);
  }
  EXPECT_EQ(cache.index().evict(1), 0);
  EXPECT_EQ(cache.index().stats().spaces, 0);
}

TEST(PrefixEviction, WhatIsUsedStaysLonger) {
  Cache cache;
  for (TokenId fill = 1; fill <= 3; ++fill) {
    cache.cache(text(fill, 16));
  }
  cache.acquire(text(1, 16));
  EXPECT_EQ(cache.index().evict(1), 1);
  EXPECT_EQ(cache.match(text(2, 16)), 0) << "the oldest of those used once";
  cache.cache(text(4, 16));  // younger than the clock
  EXPECT_EQ(cache.index().evict(1), 1);
  EXPECT_EQ(cache.match(text(3, 16)), 0);
  EXPECT_EQ(cache.match(text(1, 16)), 16);
  EXPECT_EQ(cache.match(text(4, 16)), 16);
}

TEST(PrefixEviction, OldFameFades) {
  Cache cache;
  cache.cache(text(1, 16));
  for (int use = 0; use < 5; ++use) {
    cache.acquire(text(1, 16));
  }
  int rounds = 0;
  for (TokenId fill = 2; cache.match(text(1, 16)) > 0; ++fill, ++rounds) {
    cache.cache(text(fill, 16));
    EXPECT_EQ(cache.index().evict(1), 1);
  }
  EXPECT_EQ(rounds, 6);
}

TEST(PrefixEviction, DeepPagesAreWorthMore) {
  Cache cache;
  const Tokens deep = text(1, 64);
  cache.cache(deep);
  cache.cache(text(2, 16));
  EXPECT_EQ(cache.index().evict(1), 1);
  EXPECT_EQ(cache.match(deep), 64);
  EXPECT_EQ(cache.match(text(2, 16)), 0);
}

TEST(PrefixEviction, FreesAllThatIsIdle) {
  Cache cache;
  // The second sequence has duplicates of the first two pages and reads what is behind them.
  Writer first = cache.writer();
  cache.write(first, text(1, 32));
  Writer second = cache.writer();
  cache.write(second, text(1, 48));
  { const Writer ended = std::move(first); }
  EXPECT_EQ(cache.index().blocks_idle(), 2);
  EXPECT_EQ(cache.index().evict(1), 1);
  EXPECT_EQ(cache.match(text(1, 48)), 16);
  EXPECT_EQ(cache.index().evict(9), 1);
  EXPECT_EQ(cache.index().blocks_idle(), 0);
  cache.write(second, text(1, 64));
  EXPECT_EQ(cache.match(text(1, 64)), 64);
  cache.audit({&second}, true);
}

TEST(PrefixEviction, PassesOverWhatIsInUse) {
  Cache cache;
  cache.cache(text(1, 32));
  cache.cache(text(2, 32));
  const PrefixIndex::Hit hit = cache.acquire(text(1, 32));
  EXPECT_EQ(cache.index().evict(100), 2);
  EXPECT_EQ(cache.match(text(1, 32)), 32);
  EXPECT_EQ(cache.match(text(2, 32)), 0);
  EXPECT_EQ(cache.index().evict(0), 0);
  EXPECT_EQ(cache.index().evict(-1), 0);
}

TEST(PrefixEviction, APageFoundAgainByItsOwnSequenceIsNoUse) {
  Cache cache;
  {
    Writer second = cache.writer();
    {
      Writer first = cache.writer();
      cache.write(first, text(1, 32));
      cache.write(second, text(1, 48));
    }
    EXPECT_EQ(cache.index().evict(1), 1);  // the second page, and what is behind it
    cache.write(second, text(1, 64));
  }
  cache.cache(text(2, 16));
  cache.acquire(text(2, 16));
  EXPECT_EQ(cache.index().evict(3), 3);
  EXPECT_EQ(cache.match(text(1, 64)), 16);
  EXPECT_EQ(cache.index().evict(1), 1);
  EXPECT_EQ(cache.match(text(1, 64)), 0) << "published twice, older than what was used twice";
  EXPECT_EQ(cache.match(text(2, 16)), 16);
}

TEST(PrefixEviction, AWindowThatIsBackMakesALeafUseful) {
  Cache cache(16, 33);
  {
    Writer late = cache.writer();
    cache.grow(late, 64);
    late.sequence.drop_behind(64);  // sliding pages 2 and 3 are left
    for (int time = 0; time < 2; ++time) {
      PrefixIndex::Cursor cursor;
      cache.index().publish("s", text(1, 64), late.sequence, 48, KvOrigin::kPrefill, cursor);
    }
  }
  EXPECT_EQ(cache.match(text(1, 48)), 0);
  cache.cache(text(1, 32) + text(2, 16));
  EXPECT_EQ(cache.match(text(1, 48)), 48);
  EXPECT_EQ(cache.index().evict(1), 3);
  EXPECT_EQ(cache.match(text(1, 48)), 48) << "published twice";
  EXPECT_EQ(cache.match(text(1, 32) + text(2, 16)), 32);
  cache.audit({}, true);
}

}  // namespace
}  // namespace pagezip
