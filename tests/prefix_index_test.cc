#include "paging/prefix_index.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/prefix_index_test_util.h"

namespace pagezip {
namespace {

class PrefixIndexPages : public ::testing::TestWithParam<int> {};

TEST_P(PrefixIndexPages, FindsWholePagesOnly) {
  const int page = GetParam();
  Cache cache(page);
  const Tokens tokens = text(1, 3 * page + 5);
  EXPECT_EQ(cache.match(tokens), 0);
  cache.cache(tokens);
  EXPECT_EQ(cache.match(tokens), 3 * page);
  EXPECT_EQ(cache.match(text(1, 9 * page)), 3 * page);
  EXPECT_EQ(cache.match(text(1, 2 * page) + text(2, 2 * page)), 2 * page);
  EXPECT_EQ(cache.match(text(2, 1) + text(1, 3 * page)), 0);
  EXPECT_EQ(cache.index().match("s", tokens, 3 * page - 1, kAnyOrigin), 2 * page);
  EXPECT_EQ(cache.index().match("s", tokens, page - 1, kAnyOrigin), 0);
  EXPECT_EQ(cache.index().match("s", tokens, -1, kAnyOrigin), 0);
  EXPECT_EQ(cache.index().match("s", {}, 100, kAnyOrigin), 0);
  cache.audit({}, true);
}

TEST_P(PrefixIndexPages, AHitIsTheBlocksThatWerePublished) {
  const int page = GetParam();
  Cache cache(page);
  const Tokens tokens = text(1, 4 * page);
  Writer first = cache.writer();
  cache.write(first, tokens);
  const Writer second = cache.reader(tokens);
  EXPECT_EQ(second.sequence.length(), 4 * page);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(second.sequence.segment(0).ids[i], first.sequence.segment(0).ids[i]);
  }
  EXPECT_EQ(cache.pool().blocks_in_use(), 4);
  cache.audit({&first, &second}, true);
}

INSTANTIATE_TEST_SUITE_P(Sizes, PrefixIndexPages, ::testing::Values(16, 32, 64));

TEST(PrefixIndex, SpacesShareNothing) {
  Cache cache;
  const Tokens tokens = text(1, 32);
  cache.cache(tokens, KvOrigin::kPrefill, "tenant a");
  EXPECT_EQ(cache.match(tokens, kAnyOrigin, "tenant a"), 32);
  EXPECT_EQ(cache.match(tokens, kAnyOrigin, "tenant b"), 0);
  cache.cache(tokens, KvOrigin::kPrefill, "tenant b");
  EXPECT_EQ(cache.pool().blocks_in_use(), 4);
  EXPECT_EQ(cache.index().stats().spaces, 2);
  cache.index().drop_space("tenant a");
  cache.index().drop_space("tenant c");
  EXPECT_EQ(cache.match(tokens, kAnyOrigin, "tenant a"), 0);
  EXPECT_EQ(cache.match(tokens, kAnyOrigin, "tenant b"), 32);
  EXPECT_EQ(cache.pool().blocks_in_use(), 2);
  cache.audit({}, true);
}

TEST(PrefixIndex, ACursorStaysInItsSpace) {
  Cache cache;
  Writer writer = cache.writer();
  cache.write(writer, text(1, 16));
  EXPECT_DEATH(cache.write(writer, text(1, 32), KvOrigin::kPrefill, "other"), "root_of");
}

TEST(PrefixIndex, AHitIsPinnedAtOnce) {
  Cache cache;
  cache.cache(text(1, 64));
  PrefixIndex::Hit hit = cache.index().acquire("s", text(1, 64), 40, kAnyOrigin);
  EXPECT_EQ(hit.length, 32);
  EXPECT_EQ(cache.index().blocks_idle(), 2);
  EXPECT_EQ(cache.index().evict(100), 2);
  EXPECT_EQ(cache.match(text(1, 64)), 32);
  cache.index().clear();
  EXPECT_EQ(cache.pool().blocks_in_use(), 2);
  Writer reader = cache.writer();
  reader.sequence.adopt(std::move(hit.runs));
  cache.audit({&reader}, true);
}

TEST(PrefixIndex, CountsLookups) {
  Cache cache;
  cache.cache(text(1, 32));
  cache.match(text(1, 32));
  cache.acquire(text(1, 50));
  cache.acquire(text(2, 50));
  const PrefixIndex::Stats stats = cache.index().stats();
  EXPECT_EQ(stats.pages, 2);
  EXPECT_EQ(stats.blocks_pinned, 2);
  EXPECT_EQ(stats.lookups, 2);
  EXPECT_EQ(stats.lookup_tokens, 100);
  EXPECT_EQ(stats.hit_tokens, 32);
  EXPECT_EQ(stats.pages_added, 2);
}

TEST(PrefixIndex, CollidingHashesGiveNoWrongHit) {
  const auto hasher = [](const PageHash&, std::span<const TokenId>) { return PageHash{}; };
  Cache cache(16, 0, true, hasher);
  cache.cache(text(1, 48));
  cache.cache(text(2, 48));
  EXPECT_EQ(cache.match(text(3, 48)), 0);
  EXPECT_EQ(cache.match(text(1, 16) + text(2, 16)), 16);
  EXPECT_EQ(cache.match(text(2, 16) + text(1, 16)), 16);
  EXPECT_EQ(cache.match(text(1, 48)), 48);
  EXPECT_EQ(cache.match(text(2, 48)), 48);
  EXPECT_EQ(cache.match(text(2, 48), kAnyOrigin, "other"), 0);
}

// ---- who wrote a page ---------------------------------------------------------------------------

TEST(PrefixIndex, DocumentsReadOnlyWhatPrefillWrote) {
  Cache cache;
  Writer writer = cache.writer();
  const Tokens tokens = text(1, 96);
  cache.write(writer, text(1, 32), KvOrigin::kPrefill);
  cache.write(writer, text(1, 64), KvOrigin::kDecode);
  cache.write(writer, text(1, 96), KvOrigin::kPrefill);  // computed from what decode wrote
  EXPECT_EQ(cache.match(tokens, kPrefillOnly), 32);
  EXPECT_EQ(cache.match(tokens), 96);
  EXPECT_EQ(cache.acquire(tokens, kPrefillOnly).length, 32);
}

TEST(PrefixIndex, PrefillBehindAPageOfDecodeIsNotPrefill) {
  Cache cache;
  cache.cache(text(1, 32), KvOrigin::kDecode);
  Writer reader = cache.reader(text(1, 32));
  cache.write(reader, text(1, 64), KvOrigin::kPrefill);
  Writer exact = cache.writer();
  cache.write(exact, text(1, 32), KvOrigin::kPrefill);
  EXPECT_EQ(cache.match(text(1, 64), kPrefillOnly), 32);
  EXPECT_EQ(cache.match(text(1, 64)), 64);
}

TEST(PrefixIndex, PrefillReplacesDecodeButNotTheReverse) {
  Cache cache;
  Writer decoder = cache.writer();
  cache.write(decoder, text(1, 32), KvOrigin::kDecode);
  Writer builder = cache.reader(text(1, 32), kPrefillOnly);
  EXPECT_EQ(builder.sequence.length(), 0);
  cache.write(builder, text(1, 32), KvOrigin::kPrefill);
  EXPECT_EQ(cache.match(text(1, 32), kPrefillOnly), 32);
  Writer reader = cache.reader(text(1, 32));
  EXPECT_EQ(reader.sequence.segment(0).ids[0], builder.sequence.segment(0).ids[0]);
  cache.audit({&decoder, &builder, &reader}, true);
  Writer late = cache.writer();
  cache.write(late, text(1, 32), KvOrigin::kDecode);
  EXPECT_EQ(cache.match(text(1, 32), kPrefillOnly), 32);
}

// A page that prefill wrote may lie behind one of decode, computed from pages of its own.
TEST(PrefixIndex, AHitIsExactOnlyUpToTheFirstPageOfDecode) {
  Cache cache(16, 17);
  cache.cache(text(1, 16), KvOrigin::kDecode);
  Writer late = cache.writer();
  cache.grow(late, 32);
  late.sequence.drop_behind(32);
  cache.index().publish("s", text(1, 32), late.sequence, 32, KvOrigin::kPrefill, late.cursor);
  EXPECT_EQ(cache.match(text(1, 32), kPrefillOnly), 0);
  EXPECT_EQ(late.cursor.prefill_pages, 2);
  const Writer reader = cache.reader(text(1, 32));
  EXPECT_EQ(reader.cursor.pages, 2);
  EXPECT_EQ(reader.cursor.prefill_pages, 0);
  EXPECT_TRUE(reader.cursor.decoded);
}

// ---- cursors and duplicates ---------------------------------------------------------------------

TEST(PrefixIndex, PublishesFromTheCursorOn) {
  Cache cache;
  Writer writer = cache.writer();
  for (int64_t length = 5; length <= 100; length += 5) {
    cache.write(writer, text(1, length));
    EXPECT_EQ(writer.cursor.pages, length / 16);
    EXPECT_EQ(cache.match(text(1, 200)), length / 16 * 16);
  }
  EXPECT_EQ(cache.index().stats().pages_added, 6);
}

TEST(PrefixIndex, RestartsWhereTheCursorIsGone) {
  Cache cache;
  Writer writer = cache.writer();
  cache.write(writer, text(1, 32));
  cache.write(writer, text(1, 48), KvOrigin::kDecode);
  cache.index().clear();
  cache.cache(text(7, 16));  // takes the old ids
  cache.write(writer, text(1, 64), KvOrigin::kDecode);
  EXPECT_EQ(cache.match(text(1, 64)), 64);
  EXPECT_EQ(cache.match(text(1, 64), kPrefillOnly), 32);
  EXPECT_EQ(cache.match(text(7, 16)), 16);
}

TEST(PrefixIndex, KeepsOneBlockForAPage) {
  Cache cache;
  Writer first = cache.writer();
  cache.write(first, text(1, 32));
  const uint32_t old_block = first.sequence.segment(0).ids[0];
  Writer second = cache.writer();
  cache.write(second, text(1, 32));
  EXPECT_EQ(cache.pool().blocks_in_use(), 4);
  EXPECT_EQ(cache.reader(text(1, 32)).sequence.segment(0).ids[0], old_block);
  { const Writer ended = std::move(first); }
  Writer third = cache.writer();
  cache.write(third, text(1, 32));
  EXPECT_EQ(cache.pool().blocks_in_use(), 4) << "nobody read the index's blocks, so they went";
  EXPECT_EQ(cache.reader(text(1, 32)).sequence.segment(0).ids[0], third.sequence.segment(0).ids[0]);
  cache.audit({&second, &third}, true);
}

TEST(PrefixIndex, FreezesWhatItPublished) {
  Cache cache;
  Writer writer = cache.writer();
  cache.write(writer, text(1, 40));
  writer.sequence.truncate(32);
  EXPECT_DEATH(writer.sequence.truncate(31), "frozen_");
}

// ---- sliding windows ----------------------------------------------------------------------------

// Window 33: a row behind a page sees the 32 pairs before it, two pages.
TEST(PrefixIndex, AHitEndsOnlyWhereTheWindowIs) {
  Cache cache(16, 33);
  Writer writer = cache.writer();
  cache.grow(writer, 96);
  writer.sequence.drop_behind(80);  // sliding pages 3 to 5 are left
  cache.index().publish("s", text(1, 96), writer.sequence, 96, KvOrigin::kPrefill, writer.cursor);
  EXPECT_EQ(cache.index().stats().blocks_pinned, 6 + 2 * 3);
  EXPECT_EQ(cache.match(text(1, 96)), 96);
  EXPECT_EQ(cache.match(text(1, 95)), 80);
  EXPECT_EQ(cache.match(text(1, 79)), 0);
  const PrefixIndex::Hit hit = cache.acquire(text(1, 95));
  ASSERT_EQ(hit.runs.size(), 3u);
  EXPECT_EQ(hit.runs[0].first_page, 0);
  EXPECT_EQ(hit.runs[0].blocks.size(), 5);
  EXPECT_EQ(hit.runs[1].first_page, 3);
  EXPECT_EQ(hit.runs[1].blocks.size(), 2);
  EXPECT_EQ(hit.runs[2].blocks.ids()[1], writer.sequence.segment(2).ids[1]);
  EXPECT_EQ(cache.index().audit(), "");
}

TEST(PrefixIndex, PublishingAgainBringsWindowsBack) {
  Cache cache(16, 33);
  Writer late = cache.writer();
  cache.grow(late, 96);
  late.sequence.drop_behind(96);
  cache.index().publish("s", text(1, 96), late.sequence, 96, KvOrigin::kPrefill, late.cursor);
  EXPECT_EQ(cache.match(text(1, 80)), 0);
  Writer writer = cache.writer();
  cache.write(writer, text(1, 80));
  EXPECT_EQ(cache.match(text(1, 80)), 80);
  EXPECT_EQ(cache.match(text(1, 32)), 32);
  cache.audit({&late, &writer}, true);
}

TEST(PrefixIndex, SlidingLayersOnly) {
  Cache cache(16, 33, false);
  Writer writer = cache.writer();
  for (int64_t length = 10; length <= 100; length += 10) {
    cache.write(writer, text(1, length));
  }
  EXPECT_EQ(cache.match(text(1, 100)), 96);
  EXPECT_EQ(cache.index().blocks_idle(), 4);
  EXPECT_EQ(cache.index().evict(4), 4);
  EXPECT_EQ(cache.match(text(1, 100)), 96);
  EXPECT_EQ(cache.match(text(1, 80)), 0);
  const PrefixIndex::Hit hit = cache.acquire(text(1, 100));
  EXPECT_EQ(hit.runs[0].first_page, 4);
  cache.index().clear();
  cache.write(writer, text(1, 112));  // again from the root: links without blocks, then pages
  EXPECT_EQ(cache.index().stats().pages, 7);
  EXPECT_EQ(cache.index().stats().blocks_pinned, 3);
  EXPECT_EQ(cache.match(text(1, 112)), 112);
  cache.index().drop_space("s");
  EXPECT_EQ(cache.index().stats().pages, 0);
  EXPECT_EQ(cache.index().stats().spaces, 0);
}

}  // namespace
}  // namespace pagezip
