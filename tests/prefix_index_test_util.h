// A small vocabulary for tests of the prefix index: texts of one token, sequences that write them.
#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

#include "paging/prefix_index.h"

namespace pagezip {

using Tokens = std::vector<TokenId>;

inline constexpr bool kPrefillOnly = true;
inline constexpr bool kAnyOrigin = false;

inline KvGeometry one_layer(int page_tokens) {
  KvGeometry geometry;
  geometry.page = {KvType::kF16, KvType::kF16, page_tokens, 16};
  geometry.kv_heads = 1;
  geometry.layers_per_block = 1;
  return geometry;
}

/// `length` tokens of one kind.
inline Tokens text(TokenId fill, int64_t length) {
  return Tokens(static_cast<size_t>(length), fill);
}

inline Tokens operator+(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// A sequence with its tokens and its place in the index.
struct Writer {
  Sequence sequence;
  PrefixIndex::Cursor cursor;
};

/// An index over groups of one layer: a global one and two with a window, if there is a window.
class Cache {
 public:
  explicit Cache(int page_tokens = 16, int window = 0, bool has_global = true,
                 PrefixTree::Hasher hasher = hash_page)
      : pool_(one_layer(page_tokens), 64),
        groups_(window == 0  ? make_kv_groups({true}, 0)
                : has_global ? make_kv_groups({true, false, false}, window)
                             : make_kv_groups({false}, window)),
        index_(pool_, groups_, hasher) {}

  PrefixIndex& index() { return index_; }
  BlockPool& pool() { return pool_; }

  int64_t match(const Tokens& tokens, bool prefill_only = kAnyOrigin,
                std::string_view space = "s") const {
    return index_.match(space, tokens, static_cast<int64_t>(tokens.size()), prefill_only);
  }
  PrefixIndex::Hit acquire(const Tokens& tokens, bool prefill_only = kAnyOrigin) {
    return index_.acquire("s", tokens, static_cast<int64_t>(tokens.size()), prefill_only);
  }

  Writer writer() { return {Sequence(pool_, groups_, 0), {}}; }
  /// A sequence that starts with what is cached of `tokens`.
  Writer reader(const Tokens& tokens, bool prefill_only = kAnyOrigin) {
    Writer reader = writer();
    PrefixIndex::Hit hit = acquire(tokens, prefill_only);
    if (hit.length > 0) {
      reader.sequence.adopt(std::move(hit.runs));
    }
    reader.cursor = hit.cursor;
    return reader;
  }
  void grow(Writer& writer, int64_t length) {
    auto reservation = pool_.reserve(writer.sequence.blocks_needed(length));
    ASSERT_TRUE(reservation.has_value());
    writer.sequence.grow(length, *reservation);
  }
  /// Grows a sequence to all of `tokens`, publishes it, then lets its windows move on.
  void write(Writer& writer, const Tokens& tokens, KvOrigin origin = KvOrigin::kPrefill,
             std::string_view space = "s") {
    const auto length = static_cast<int64_t>(tokens.size());
    grow(writer, length);
    index_.publish(space, tokens, writer.sequence, length, origin, writer.cursor);
    writer.sequence.drop_behind(length);
    audit({&writer});
  }
  /// Leaves the pages of `tokens` in the index, read by nobody.
  void cache(const Tokens& tokens, KvOrigin origin = KvOrigin::kPrefill,
             std::string_view space = "s") {
    Writer once = writer();
    write(once, tokens, origin, space);
  }

  /// All pins of the pool, if the index and `writers` are its only owners.
  void audit(const std::vector<const Writer*>& writers, bool is_complete = false) {
    EXPECT_EQ(index_.audit(), "");
    std::vector<uint32_t> pins(static_cast<size_t>(pool_.blocks_total()), 0);
    index_.count_refs(pins);
    for (const Writer* writer : writers) {
      writer->sequence.count_refs(pins);
    }
    EXPECT_EQ(is_complete ? pool_.audit_owners(pins, 0) : pool_.audit(), "");
  }

 private:
  BlockPool pool_;
  std::vector<KvGroup> groups_;
  PrefixIndex index_;
};

}  // namespace pagezip
