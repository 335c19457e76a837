// Tier 2 of the C ABI: documents in a host's arena, block by block compared with what the C++
// builder makes of the same scores, and a host that has to get every block back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "api/pagezip.h"
#include "tests/document_world.h"
#include "tests/host_arena.h"
#include "tests/temp_folder.h"

namespace pagezip {
namespace {

using ::testing::HasSubstr;

template <typename T>
T sized() {
  T made{};
  made.size = sizeof made;
  return made;
}

Segment cpp_segment(const pagezip_segment& c) {
  Segment segment;
  segment.base = static_cast<std::byte*>(c.base);
  segment.ids = c.ids;
  segment.first = c.first;
  segment.lengths = c.lengths;
  segment.uniform_length = c.uniform_length;
  segment.scale = c.scale;
  segment.offset = c.offset;
  segment.layer_stride = c.layer_stride;
  segment.head_stride = c.head_stride;
  segment.heads = c.heads;
  return segment;
}

pagezip_page c_page(const PageLayout& page) {
  auto c = sized<pagezip_page>();
  c.k_type = static_cast<pagezip_kv_type>(page.k_type);
  c.v_type = static_cast<pagezip_kv_type>(page.v_type);
  c.key_order = static_cast<pagezip_key_order>(page.key_order);
  c.page_tokens = page.page_tokens;
  c.head_dim = page.head_dim;
  return c;
}

/// A host's pool with a prompt in it, and a pool of the C ABI in the same arena.
struct Host {
  static constexpr int kLayers = 3;
  static constexpr int kHeads = 2;
  static constexpr uint64_t kModel[4] = {7, 8, 9, 10};

  explicit Host(uint64_t seed, int64_t blocks = 60, bool plain_source = true)
      : prng(seed),
        geometry{{KvType::kF16, KvType::kF32, 16, 32,
                  prng.chance(0.5) ? KeyOrder::kPlain : KeyOrder::kTransposed},
                 kHeads,
                 kLayers,
                 prng.chance(0.5) ? BlockOrder::kHeadMajor : BlockOrder::kLayerMajor},
        arena(geometry, blocks, seed),
        source_page(geometry.page),
        prefix(prng.range(0, 40)),
        length(prefix + prng.range(1, 150)) {
    source_page.key_order = plain_source ? KeyOrder::kPlain : KeyOrder::kTransposed;
    make_source();
    page = c_page(geometry.page);
    callbacks.user = &arena;
    callbacks.take = [](void* user, uint32_t* ids, size_t count) {
      return static_cast<HostArena*>(user)->take({ids, count}) ? 0 : 1;
    };
    callbacks.give_back = [](void* user, const uint32_t* ids, size_t count) {
      static_cast<HostArena*>(user)->give_back({ids, count});
    };
    options.page = &page;
    options.layers = kLayers;
    options.kv_heads = kHeads;
    options.order = static_cast<pagezip_block_order>(geometry.order);
    options.base = arena.arena().base;
    options.blocks = blocks;
    options.source = &callbacks;
    EXPECT_EQ(pagezip_pool_create(&options, &pool), PAGEZIP_OK) << pagezip_last_error();
    spec.source = &source;
    spec.source_page = &c_source_page;
    spec.prefix_length = prefix;
    spec.scores = scores.scores.data();
    spec.layer_stride = kHeads * scores.tokens;
    spec.head_stride = scores.tokens;
    spec.keep_ratio = 0.4;
    spec.tokens = tokens.data();
    std::copy(std::begin(kModel), std::end(kModel), spec.model);
  }
  ~Host() { pagezip_pool_destroy(pool); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Pairs with fingerprints in pages outside of the arena, and scores.
  void make_source() {
    const auto pages = static_cast<uint32_t>((length + 15) / 16);
    memory = AlignedBytes(pages * static_cast<size_t>(geometry.block_bytes()));
    source.base = memory.data();
    for (uint32_t id = 0; id < pages; ++id) {
      source_ids.push_back(pages - 1 - id);
    }
    source.ids = source_ids.data();
    source.uniform_length = length;
    const auto units = static_cast<uint64_t>(geometry.page.page_bytes() / PageLayout::kUnit);
    source.scale = units * kLayers * kHeads;
    source.layer_stride = units;
    source.head_stride = units * kLayers;
    source.heads = kHeads;
    scores = {kLayers, kHeads, length - prefix, {}};
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        for (int64_t pair = 0; pair < length; ++pair) {
          write_pair(source_page, cpp_segment(source), layer, head, pair,
                     print_of(0, layer, head, pair));
        }
        for (int64_t i = 0; i < scores.tokens; ++i) {
          scores.scores.push_back(static_cast<float>(prng.range(-9, 9)));
        }
      }
    }
    for (int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<int32_t>(i * 3));
    }
    c_source_page = c_page(source_page);
  }

  pagezip_document* create() {
    pagezip_document* document = nullptr;
    EXPECT_EQ(pagezip_document_create(pool, &spec, &document), PAGEZIP_OK) << pagezip_last_error();
    return document;
  }
  pagezip_status refusal() {
    pagezip_document* document = nullptr;
    const pagezip_status status = pagezip_document_create(pool, &spec, &document);
    EXPECT_EQ(document, nullptr);
    return status;
  }
  KeptSets kept() const {
    return std::get<KeptSets>(
        select(scores, {spec.keep_ratio, spec.uniform != 0, spec.min_per_head}));
  }
  /// All pairs of a document, bit for bit.
  void expect_holds(const pagezip_document* document, const KeptSets& expected) const {
    auto segment = sized<pagezip_segment>();
    ASSERT_EQ(pagezip_document_get_segment(document, &segment), PAGEZIP_OK);
    const Segment found = cpp_segment(segment);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        std::vector<int64_t> pairs;
        for (int64_t pair = 0; pair < prefix; ++pair) {
          pairs.push_back(pair);
        }
        for (const uint32_t pair : expected.head(layer, head)) {
          pairs.push_back(prefix + pair);
        }
        ASSERT_EQ(found.length(layer, head), static_cast<int64_t>(pairs.size()));
        for (size_t i = 0; i < pairs.size(); ++i) {
          ASSERT_TRUE(pair_is(geometry.page, found, layer, head, static_cast<int64_t>(i),
                              print_of(0, layer, head, pairs[i])));
        }
      }
    }
  }

  Prng prng;
  KvGeometry geometry;
  HostArena arena;
  PageLayout source_page;
  int64_t prefix;
  int64_t length;
  AlignedBytes memory;
  std::vector<uint32_t> source_ids;
  pagezip_segment source = sized<pagezip_segment>();
  ScoreSet scores;
  std::vector<int32_t> tokens;
  pagezip_page c_source_page{};
  pagezip_page page{};
  pagezip_block_source callbacks = sized<pagezip_block_source>();
  pagezip_pool_options options = sized<pagezip_pool_options>();
  pagezip_pool* pool = nullptr;
  pagezip_document_spec spec = sized<pagezip_document_spec>();
};

TEST(CDocuments, HoldWhatWasSelectedInBlocksOfTheHost) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Host host(seed, 60, seed % 2 == 0);
    host.spec.uniform = seed % 5 == 0 ? 1 : 0;
    host.spec.min_per_head = seed % 3 == 0 ? 2 : 0;
    pagezip_document* document = host.create();
    host.expect_holds(document, host.kept());
    auto info = sized<pagezip_document_info>();
    ASSERT_EQ(pagezip_document_get_info(document, &info), PAGEZIP_OK);
    EXPECT_EQ(info.length, host.length);
    EXPECT_EQ(info.prefix_length, host.prefix);
    EXPECT_EQ(info.pairs, host.kept().count() + host.prefix * Host::kLayers * Host::kHeads);
    EXPECT_EQ(info.blocks, static_cast<int64_t>(60 - host.arena.blocks_free()));
    EXPECT_EQ(info.bytes, info.blocks * host.geometry.block_bytes());
    EXPECT_EQ(std::vector<int32_t>(info.tokens, info.tokens + info.length), host.tokens);
    EXPECT_TRUE(host.arena.intact());
    pagezip_document_drop(document);
    EXPECT_EQ(host.arena.blocks_free(), 60U);
    EXPECT_TRUE(host.arena.intact());
  }
}

TEST(CDocuments, GoToAFileAndComeBack) {
  const TempFolder folder;
  const std::string path = folder.path("a.pgz");
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Host host(seed);
    pagezip_document* document = host.create();
    ASSERT_EQ(pagezip_document_save(document, path.c_str()), PAGEZIP_OK) << pagezip_last_error();
    pagezip_document_drop(document);
    ASSERT_EQ(pagezip_document_load(host.pool, path.c_str(), Host::kModel, &document), PAGEZIP_OK)
        << pagezip_last_error();
    host.expect_holds(document, host.kept());
    auto info = sized<pagezip_document_info>();
    ASSERT_EQ(pagezip_document_get_info(document, &info), PAGEZIP_OK);
    EXPECT_EQ(std::vector<int32_t>(info.tokens, info.tokens + info.length), host.tokens);
    // A loaded document is saved as the one that was made.
    ASSERT_EQ(pagezip_document_save(document, (path + "2").c_str()), PAGEZIP_OK);
    EXPECT_EQ(read_document_header(path).identity.version,
              read_document_header(path + "2").identity.version);
    pagezip_document_drop(document);

    const uint64_t other[4] = {7, 8, 9, 11};
    EXPECT_EQ(pagezip_document_load(host.pool, path.c_str(), other, &document), PAGEZIP_BAD_FILE);
    EXPECT_EQ(pagezip_document_load(host.pool, "/nowhere/x.pgz", Host::kModel, &document),
              PAGEZIP_BAD_FILE);
    EXPECT_EQ(host.arena.blocks_free(), 60U);
  }
}

TEST(CDocuments, OutliveTheHandleOfTheirPool) {
  Host host(1);
  pagezip_document* document = host.create();
  pagezip_pool_destroy(host.pool);
  host.pool = nullptr;
  host.expect_holds(document, host.kept());
  pagezip_document_drop(document);
  EXPECT_EQ(host.arena.blocks_free(), 60U);
}

TEST(CDocuments, TooFewBlocksChangeNothing) {
  Host host(2, 2);
  host.spec.keep_ratio = 1;
  EXPECT_EQ(host.refusal(), PAGEZIP_OUT_OF_MEMORY);
  EXPECT_THAT(pagezip_last_error(), HasSubstr("blocks"));
  EXPECT_EQ(host.arena.blocks_free(), 2U);
  EXPECT_TRUE(host.arena.intact());
}

TEST(CDocuments, MayHaveTheWholeArena) {
  Host host(3);
  pagezip_pool_destroy(host.pool);
  host.options.source = nullptr;
  ASSERT_EQ(pagezip_pool_create(&host.options, &host.pool), PAGEZIP_OK);
  pagezip_document* first = host.create();
  pagezip_document* second = host.create();
  pagezip_document_drop(first);
  host.expect_holds(second, host.kept());
  pagezip_document_drop(second);
}

TEST(CDocuments, DistrustTheirBlockSource) {
  Host host(4);
  pagezip_pool_destroy(host.pool);
  host.callbacks.take = [](void*, uint32_t* ids, size_t count) {
    std::fill(ids, ids + count, 1000U);
    return 0;
  };
  ASSERT_EQ(pagezip_pool_create(&host.options, &host.pool), PAGEZIP_OK);
  EXPECT_EQ(host.refusal(), PAGEZIP_INVALID);
  EXPECT_THAT(pagezip_last_error(), HasSubstr("block 1000"));
}

TEST(CDocuments, RefuseWhatCantBe) {
  Host host(5);
  const pagezip_document_spec good = host.spec;
  const auto refuses = [&](auto change, const char* why) {
    host.spec = good;
    change(host.spec);
    EXPECT_EQ(host.refusal(), PAGEZIP_INVALID) << why;
    EXPECT_THAT(pagezip_last_error(), HasSubstr(why));
  };
  refuses([](auto& s) { s.keep_ratio = 0; }, "ratio");
  refuses([](auto& s) { s.keep_ratio = NAN; }, "ratio");
  refuses([](auto& s) { s.prefix_length = -1; }, "prefix_length");
  refuses([&](auto& s) { s.prefix_length = host.length + 1; }, "prefix_length");
  refuses([&](auto& s) { s.prefix_length = host.length; }, "empty");
  refuses([](auto& s) { s.scores = nullptr; }, "scores");
  refuses([](auto& s) { s.min_per_head = -1; }, "min_per_head");
  refuses([](auto& s) { s.source = nullptr; }, "pagezip_segment");
  host.tokens[1] = -1;
  refuses([](auto& /*s*/) {}, "negative");
  host.source.first_position = 3;
  refuses([](auto& /*s*/) {}, "position 0");
  host.source.first_position = 0;
  host.c_source_page.head_dim = 64;
  refuses([](auto& /*s*/) {}, "head_dim");
  host.c_source_page.head_dim = 32;
  host.tokens[1] = 3;
  host.scores.scores[0] = INFINITY;
  host.spec = good;
  EXPECT_EQ(host.refusal(), PAGEZIP_FAILED);
  EXPECT_EQ(pagezip_document_create(nullptr, &host.spec, nullptr), PAGEZIP_INVALID);
  host.scores.scores[0] = 0;
  host.spec.tokens = nullptr;
  pagezip_document* document = host.create();
  EXPECT_EQ(pagezip_document_save(document, "x.pgz"), PAGEZIP_INVALID);
  EXPECT_THAT(pagezip_last_error(), HasSubstr("tokens"));
  pagezip_document_drop(document);
  pagezip_document_drop(nullptr);
}

TEST(CDocuments, PoolsRefuseWhatCantBe) {
  Host host(6);
  const auto refuses = [&](auto change, const char* why) {
    pagezip_pool_options options = host.options;
    change(options);
    pagezip_pool* pool = nullptr;
    EXPECT_EQ(pagezip_pool_create(&options, &pool), PAGEZIP_INVALID) << why;
    EXPECT_THAT(pagezip_last_error(), HasSubstr(why));
  };
  refuses([](auto& o) { o.page = nullptr; }, "pagezip_page");
  refuses([](auto& o) { o.layers = 0; }, "layers");
  refuses([](auto& o) { o.kv_heads = 5000; }, "kv_heads");
  refuses([](auto& o) { o.base = nullptr; }, "base");
  refuses([](auto& o) { o.base = static_cast<char*>(o.base) + 1; }, "base");
  refuses([](auto& o) { o.blocks = 0; }, "blocks");
  refuses([](auto& o) { o.blocks = int64_t{1} << 40; }, "blocks");
  refuses([](auto& o) { o.order = static_cast<pagezip_block_order>(2); }, "order");
  auto no_callbacks = sized<pagezip_block_source>();
  refuses([&](auto& o) { o.source = &no_callbacks; }, "callback");
}

}  // namespace
}  // namespace pagezip
