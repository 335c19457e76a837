// A small model in numbers, documents of it with pairs that can be recognised, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "paging/document.h"
#include "paging/document_file.h"
#include "tests/fingerprint.h"

namespace pagezip {

inline constexpr ModelIdentity kTestModel{0x0123456789abcdef, 0x1111, 0x2222, 0x3333};

/// The error that `action` ends with; fails the test if there is none.
inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorKind::kRuntime, ""};
}

/// A model of `global` global and `sliding` sliding layers, and its pool.
struct World {
  World(const PageLayout& page, int kv_heads, int global, int sliding, int window,
        int64_t blocks = 4096)
      : groups(make_kv_groups(layers_of(global, sliding), window)),
        pool(KvGeometry{page, kv_heads, static_cast<int>(groups[0].layers.size())}, blocks),
        shape(make_kv_shape(kTestModel, groups, pool.geometry())) {}

  static std::vector<bool> layers_of(int global, int sliding) {
    std::vector<bool> layers(static_cast<size_t>(global), true);
    layers.resize(layers.size() + static_cast<size_t>(sliding), false);
    return layers;
  }

  std::vector<KvGroup> groups;
  BlockPool pool;
  KvShape shape;
};

inline uint64_t print_of(int group, int layer, int head, int64_t pair) {
  return Prng((static_cast<uint64_t>(pair) << 24) + static_cast<uint64_t>(layer << 16) +
              static_cast<uint64_t>(head << 8) + static_cast<uint64_t>(group))
      .next();
}

inline std::shared_ptr<const Document> make_full(World& world, int64_t length,
                                                 int64_t prefix_length) {
  Sequence sequence(world.pool, world.groups, 0);
  auto reservation = world.pool.reserve(sequence.blocks_needed(length));
  EXPECT_TRUE(reservation.has_value());
  sequence.grow(length, *reservation);
  for (size_t group = 0; group < world.groups.size(); ++group) {
    const Segment segment = sequence.segment(static_cast<int>(group));
    for (int layer = 0; layer < world.shape.groups[group].layers; ++layer) {
      for (int head = 0; head < world.shape.kv_heads; ++head) {
        for (int64_t pair = 0; pair < length; ++pair) {
          write_pair(world.shape.page, segment, layer, head, pair,
                     print_of(static_cast<int>(group), layer, head, pair));
        }
      }
    }
  }
  sequence.drop_behind(length);
  return Document::full(sequence, prefix_length);
}

inline std::shared_ptr<const Document> compress(World& world,
                                                const std::shared_ptr<const Document>& full,
                                                const KeptSets& kept) {
  DocumentBuilder builder(full, kept);
  auto reservation = world.pool.reserve(builder.blocks_needed());
  EXPECT_TRUE(reservation.has_value());
  builder.take_blocks(*reservation);
  for (int layer = 0; layer < kept.layers; ++layer) {
    for (int head = 0; head < kept.heads; ++head) {
      int64_t to = builder.target_first();
      for (uint32_t from : builder.source_pairs(layer, head)) {
        copy_pair(world.shape.page, builder.source(), builder.target(), layer, head, from, to++);
      }
    }
  }
  return builder.finish();
}

/// Every list keeps a share of its own; some keep nothing, some everything.
inline KeptSets random_kept(const World& world, int64_t own_length, Prng& prng) {
  KeptSets kept{world.shape.groups[0].layers, world.shape.kv_heads, {0}, {}};
  for (int list = 0; list < kept.layers * kept.heads; ++list) {
    const double share = std::clamp(prng.uniform() * 2 - 0.5, 0.0, 1.0);
    for (int64_t pair = 0; pair < own_length; ++pair) {
      if (prng.chance(share)) kept.pairs.push_back(static_cast<uint32_t>(pair));
    }
    kept.first.push_back(kept.pairs.size());
  }
  return kept;
}

inline DocumentIdentity identity_of(const World& world, const Document& document) {
  DocumentIdentity identity;
  identity.shape = world.shape;
  for (int64_t i = 0; i < document.logical_length(); ++i) {
    (i < document.prefix_length() ? identity.prefix_ids : identity.context_ids)
        .push_back(static_cast<TokenId>(1000 + i));
  }
  identity.scorer = "kvzip";
  identity.scorer_version = 3;
  identity.chunk_tokens = 2048;
  identity.version = {false, "global", 0.3, 2};
  if (!document.compressed()) identity.version = {true, "", 1, 0};
  identity.provenance = "caf\u00e9, test";
  return identity;
}

inline std::shared_ptr<const ScoreSet> make_scores(const World& world, const Document& document) {
  ScoreSet scores{document.global_layers(),
                  world.shape.kv_heads,
                  document.logical_length() - document.prefix_length(),
                  {}};
  Prng prng(static_cast<uint64_t>(scores.tokens));
  for (int64_t i = scores.pairs(); i > 0; --i) {
    scores.scores.push_back(-static_cast<float>(prng.uniform()));
  }
  return std::make_shared<const ScoreSet>(std::move(scores));
}

inline void expect_same_pairs(const PageLayout& layout, const Segment& a, const Segment& b,
                              int layers) {
  EXPECT_EQ(a.first_page, b.first_page);
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; head < a.heads; ++head) {
      ASSERT_EQ(a.length(layer, head), b.length(layer, head));
      std::vector<std::vector<std::byte>> bytes(2);
      for (int64_t pair = a.first_page * layout.page_tokens; pair < a.length(layer, head); ++pair) {
        for (int side = 0; side < 2; ++side) {
          visit_elements(layout, side == 0 ? a : b, layer, head, pair,
                         [&](const std::byte* at, int64_t size, int) {
                           bytes[static_cast<size_t>(side)].insert(
                               bytes[static_cast<size_t>(side)].end(), at, at + size);
                         });
        }
      }
      ASSERT_TRUE(bytes[0] == bytes[1]) << "layer " << layer << ", head " << head;
    }
  }
}

inline void expect_same_document(const World& world, const Document& a, const Document& b) {
  EXPECT_EQ(a.logical_length(), b.logical_length());
  EXPECT_EQ(a.prefix_length(), b.prefix_length());
  EXPECT_EQ(a.compressed(), b.compressed());
  EXPECT_EQ(a.global_layers(), b.global_layers());
  EXPECT_EQ(a.pages_used(), b.pages_used());
  EXPECT_EQ(a.blocks_held(), b.blocks_held());
  EXPECT_EQ(a.kv_bytes(), b.kv_bytes());
  ASSERT_EQ(a.groups(), b.groups());
  for (int group = 0; group < a.groups(); ++group) {
    expect_same_pairs(world.shape.page, a.segment(group), b.segment(group),
                      world.shape.groups[static_cast<size_t>(group)].layers);
  }
}

/// Reads a file into the world's pool, in slices, and compares what it holds.
inline void expect_reads(World& world, DocumentFileReader& reader, int64_t slice,
                         const Document& expected) {
  const DocumentShape shape = reader.header().shape();
  auto blocks = world.pool.reserve(Document::blocks_for(world.pool.geometry(), shape));
  ASSERT_TRUE(blocks.has_value());
  const auto loaded = Document::blank(world.pool, shape, *blocks);
  reader.fill(*loaded);
  while (reader.step(slice)) {
  }
  expect_same_document(world, expected, *loaded);
}

}  // namespace pagezip
