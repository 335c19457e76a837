#include "paging/document.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "paging/selection.h"

namespace pagezip {
namespace {

constexpr int kLayers = 2;
constexpr int kHeads = 2;
constexpr int kPageTokens = 16;
constexpr int kWindow = 20;

KvGeometry small_geometry() {
  KvGeometry geometry;
  geometry.page = {KvType::kF16, KvType::kF16, kPageTokens, 16};
  geometry.kv_heads = kHeads;
  geometry.layers_per_block = kLayers;
  return geometry;
}

/// Marks the first bytes of a pair's V; enough to see which pair lies where.
std::byte* mark_of(const PageLayout& page, const Segment& segment, int layer, int head,
                   int64_t pair) {
  return segment.page(layer, head, pair / page.page_tokens) + page.k_bytes() +
         pair % page.page_tokens * page.head_dim * bytes_of(page.v_type);
}

class DocumentTest : public ::testing::Test {
 protected:
  /// A sequence of one global and two sliding groups, every pair of the global group marked.
  Sequence sequence_of(int64_t length) {
    Sequence sequence(pool_, make_kv_groups({true, true, false, false, false}, kWindow), 0);
    auto reservation = pool_.reserve(sequence.blocks_needed(length));
    EXPECT_TRUE(reservation.has_value());
    sequence.grow(length, *reservation);
    sequence.drop_behind(length);
    const Segment segment = sequence.segment(0);
    for (int64_t pair = 0; pair < length; ++pair) {
      for (int list = 0; list < kLayers * kHeads; ++list) {
        const int64_t mark = pair * 100 + list;
        std::memcpy(mark_of(page_, segment, list / kHeads, list % kHeads, pair), &mark,
                    sizeof(mark));
      }
    }
    return sequence;
  }

  std::vector<int64_t> marks(const Segment& segment, int layer, int head) const {
    std::vector<int64_t> pairs;
    for (int64_t pair = 0; pair < segment.length(layer, head); ++pair) {
      int64_t mark = 0;
      std::memcpy(&mark, mark_of(page_, segment, layer, head, pair), sizeof(mark));
      EXPECT_EQ(mark % 100, layer * kHeads + head);
      pairs.push_back(mark / 100);
    }
    return pairs;
  }

  void copy_marks(const DocumentBuilder& builder, int layer, int head) const {
    int64_t to = builder.target_first();
    for (uint32_t from : builder.source_pairs(layer, head)) {
      std::memcpy(mark_of(page_, builder.target(), layer, head, to++),
                  mark_of(page_, builder.source(), layer, head, from), sizeof(int64_t));
    }
  }

  std::shared_ptr<const Document> compress(const std::shared_ptr<const Document>& full,
                                           KeptSets kept) {
    DocumentBuilder builder(full, std::move(kept));
    auto reservation = pool_.reserve(builder.blocks_needed());
    EXPECT_TRUE(reservation.has_value());
    builder.take_blocks(*reservation);
    EXPECT_EQ(reservation->blocks(), 0);
    for (int list = 0; list < kLayers * kHeads; ++list) {
      copy_marks(builder, list / kHeads, list % kHeads);
    }
    return builder.finish();
  }

  static KeptSets kept_sets(const std::vector<std::vector<uint32_t>>& lists) {
    KeptSets kept{kLayers, kHeads, {0}, {}};
    for (const auto& list : lists) {
      kept.pairs.insert(kept.pairs.end(), list.begin(), list.end());
      kept.first.push_back(kept.pairs.size());
    }
    return kept;
  }
  static std::vector<uint32_t> all(int64_t count) {
    std::vector<uint32_t> pairs(static_cast<size_t>(count));
    std::iota(pairs.begin(), pairs.end(), 0);
    return pairs;
  }

  BlockPool pool_{small_geometry(), 64};
  PageLayout page_ = small_geometry().page;
};

TEST_F(DocumentTest, FullBorrowsTheBlocksOfItsSequence) {
  std::shared_ptr<const Document> full;
  {
    Sequence sequence = sequence_of(70);
    const int64_t in_use = pool_.blocks_in_use();
    full = Document::full(sequence, 10);
    EXPECT_EQ(pool_.blocks_in_use(), in_use);
    EXPECT_EQ(full->segment(0).page(1, 1, 4), sequence.segment(0).page(1, 1, 4));
  }
  EXPECT_FALSE(full->compressed());
  EXPECT_EQ(full->logical_length(), 70);
  EXPECT_EQ(full->retained(1, 0), 70);
  EXPECT_EQ(full->retained_own(1, 0), 60);
  // Row 70 sees 51..70, so of the five blocks of a sliding group two are left.
  EXPECT_EQ(full->blocks_held(), 5 + 2 + 2);
  EXPECT_EQ(pool_.blocks_in_use(), 9);
  EXPECT_EQ(full->kv_bytes(), 9 * pool_.geometry().block_bytes());
  EXPECT_EQ(full->pages_used(), 5 * kLayers * kHeads);
  EXPECT_EQ(full->segment(2).first_page, 3);
  EXPECT_EQ(full->view(0).count, 1);
  full.reset();
  EXPECT_EQ(pool_.blocks_in_use(), 0);
}

TEST_F(DocumentTest, SequenceGoesOnBehindItsDocument) {
  Sequence sequence = sequence_of(40);
  const auto full = Document::full(sequence, 0);
  auto reservation = pool_.reserve(sequence.blocks_needed(60));
  sequence.grow(60, *reservation);
  EXPECT_EQ(full->segment(0).uniform_length, 40);
  EXPECT_EQ(full->blocks_held(), 3 + 2 + 2) << "row 40 sees 21..40";
  EXPECT_DEATH(sequence.truncate(39), "frozen_");
}

TEST_F(DocumentTest, KeepsPrefixAndKeptPairsInOrder) {
  Sequence sequence = sequence_of(70);
  const auto full = Document::full(sequence, 21);
  const auto document = compress(full, kept_sets({{0, 7, 48}, {}, all(49), {5}}));
  std::vector<int64_t> expected = marks(full->segment(0), 0, 0);
  EXPECT_EQ(marks(document->segment(0), 1, 0), expected) << "all pairs kept";
  expected.resize(21);
  EXPECT_EQ(marks(document->segment(0), 0, 1), expected) << "the prefix alone";
  expected.insert(expected.end(), {21, 28, 69});
  EXPECT_EQ(marks(document->segment(0), 0, 0), expected);
  EXPECT_EQ(document->retained(0, 0), 24);
  EXPECT_EQ(document->retained_own(0, 1), 0);
  EXPECT_EQ(document->logical_length(), 70);
  EXPECT_TRUE(document->compressed());
}

TEST_F(DocumentTest, SharesWholePrefixBlocksAndWindows) {
  Sequence sequence = sequence_of(70);
  const auto full = Document::full(sequence, 37);
  const int64_t before = pool_.blocks_in_use();
  const auto document = compress(full, kept_sets({{0}, {1}, {2}, {}}));
  const Segment source = full->segment(0);
  const Segment target = document->segment(0);
  for (int list = 0; list < kLayers * kHeads; ++list) {
    const int layer = list / kHeads;
    const int head = list % kHeads;
    EXPECT_EQ(target.page(layer, head, 0), source.page(layer, head, 0));
    EXPECT_EQ(target.page(layer, head, 1), source.page(layer, head, 1));
    EXPECT_NE(target.page(layer, head, 2), source.page(layer, head, 2)) << "a partial block";
  }
  EXPECT_EQ(pool_.blocks_in_use(), before + 1) << "one page a list, four pages a block";
  EXPECT_EQ(document->blocks_held(), 2 + 1 + 2 + 2);
  EXPECT_EQ(document->pages_used(), 3 * kLayers * kHeads);
  EXPECT_EQ(document->segment(1).page(0, 0, 4), full->segment(1).page(0, 0, 4));
  EXPECT_EQ(document->segment(1).first_page, 3);
}

TEST_F(DocumentTest, PacksThePagesOfAllListsWithoutOverlap) {
  Sequence sequence = sequence_of(70);
  const auto full = Document::full(sequence, 0);
  const auto document = compress(full, kept_sets({all(17), all(1), {}, all(40)}));
  std::set<const std::byte*> pages;
  for (int list = 0; list < kLayers * kHeads; ++list) {
    const int64_t length = document->retained(list / kHeads, list % kHeads);
    for (int64_t page = 0; page < pool_.geometry().pages_for(length); ++page) {
      pages.insert(document->segment(0).page(list / kHeads, list % kHeads, page));
    }
  }
  EXPECT_EQ(pages.size(), 2u + 1 + 0 + 3);
  EXPECT_EQ(document->pages_used(), 6);
  EXPECT_EQ(document->blocks_held(), 2 + 2 + 2);
}

TEST_F(DocumentTest, NothingKeptOfNoPrefixIsEmptyLists) {
  Sequence sequence = sequence_of(70);
  DocumentBuilder builder(Document::full(sequence, 0), kept_sets({{}, {}, {}, {}}));
  EXPECT_EQ(builder.blocks_needed(), 0);
  BlockReservation nothing;
  builder.take_blocks(nothing);
  const auto document = builder.finish();
  EXPECT_EQ(document->retained(1, 1), 0);
  EXPECT_EQ(document->pages_used(), 0);
}

TEST_F(DocumentTest, FullVersionMayGoFirst) {
  std::shared_ptr<const Document> document;
  {
    Sequence sequence = sequence_of(70);
    document = compress(Document::full(sequence, 16), kept_sets({{3}, {4}, {5}, {6}}));
  }
  EXPECT_EQ(pool_.blocks_in_use(), document->blocks_held());
  const std::shared_ptr<const Document> reader = document;
  document.reset();
  EXPECT_EQ(marks(reader->segment(0), 1, 1).back(), 16 + 6);
  std::vector<uint32_t> pins(64, 0);
  reader->count_refs(pins);
  EXPECT_EQ(pool_.audit_owners(pins, 0), "");
}

TEST_F(DocumentTest, AbandonedBuilderGivesItsBlocksBack) {
  Sequence sequence = sequence_of(70);
  const int64_t before = pool_.blocks_in_use();
  {
    DocumentBuilder builder(Document::full(sequence, 16), kept_sets({all(54), {}, {}, all(54)}));
    auto reservation = pool_.reserve(builder.blocks_needed());
    builder.take_blocks(*reservation);
    EXPECT_EQ(pool_.blocks_in_use(), before + 2);
  }
  EXPECT_EQ(pool_.blocks_in_use(), before);
}

TEST_F(DocumentTest, BuilderRefusesWhatDoesNotFit) {
  Sequence sequence = sequence_of(70);
  const auto full = Document::full(sequence, 16);
  EXPECT_DEATH(DocumentBuilder(full, kept_sets({{54}, {}, {}, {}})), "previous < own_length");
  EXPECT_DEATH(DocumentBuilder(full, kept_sets({{2, 2}, {}, {}, {}})), "previous < int64_t");
  const auto document = compress(full, kept_sets({{}, {}, {}, {}}));
  EXPECT_DEATH(DocumentBuilder(document, kept_sets({{}, {}, {}, {}})), "compressed_");
  const KeptSets nothing = kept_sets({{}, {}, {}, {}});
  EXPECT_DEATH(DocumentBuilder(full, nothing, nothing), "compressed");
  EXPECT_DEATH(DocumentBuilder(document, nothing, kept_sets({{1}, {}, {}, {}})), "at != outer");
  EXPECT_DEATH(DocumentBuilder(document, kept_sets({{1}, {}, {}, {}}), nothing), "retained_own");
}

TEST_F(DocumentTest, AVersionOfFewerPairsComesFromAnother) {
  Sequence sequence = sequence_of(70);
  const auto full = Document::full(sequence, 20);
  const KeptSets more = kept_sets({all(50), {1, 3, 4, 17, 40, 49}, {}, {0, 2, 4, 6}});
  const KeptSets fewer = kept_sets({{0, 20, 49}, {3, 17, 49}, {}, {}});
  const auto direct = compress(full, fewer);
  const auto source = compress(full, more);
  DocumentBuilder builder(source, more, fewer);
  auto reservation = pool_.reserve(builder.blocks_needed());
  builder.take_blocks(*reservation);
  for (int list = 0; list < kLayers * kHeads; ++list) {
    copy_marks(builder, list / kHeads, list % kHeads);
  }
  const auto document = builder.finish();
  EXPECT_EQ(document->blocks_held(), direct->blocks_held());
  for (int list = 0; list < kLayers * kHeads; ++list) {
    EXPECT_EQ(marks(document->segment(0), list / kHeads, list % kHeads),
              marks(direct->segment(0), list / kHeads, list % kHeads));
  }
  EXPECT_EQ(document->segment(1).page(0, 0, 3), full->segment(1).page(0, 0, 3));
}

TEST_F(DocumentTest, ModelOfSlidingLayersHasOnlyWindows) {
  Sequence sequence(pool_, make_kv_groups({false, false}, kWindow), 0);
  auto reservation = pool_.reserve(sequence.blocks_needed(70));
  sequence.grow(70, *reservation);
  const auto full = Document::full(sequence, 5);
  EXPECT_EQ(full->global_layers(), 0);
  EXPECT_EQ(full->pages_used(), 0);
  EXPECT_EQ(full->blocks_held(), 2);
  EXPECT_DEATH(DocumentBuilder(full, {}), "global_layers_ > 0");
}

}  // namespace
}  // namespace pagezip
