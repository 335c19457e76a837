// Distinct types for the numbers that cross folder borders, so that no block is taken for a page.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>

namespace pagezip {

/// Index into a model's vocabulary.
using TokenId = int32_t;

/// An integer that only compares with its own kind. `value` is the raw index.
template <typename Tag>
struct Id {
  uint32_t value = 0;
  friend auto operator<=>(const Id&, const Id&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Id& id) { return out << id.value; }
};

/// A block of the pool: `page_tokens` positions of K and V for every layer and head of a KV group.
using BlockId = Id<struct BlockTag>;
/// A page: one (layer, head) slice of a block. Page p lies in block p / pages_per_block.
using PageId = Id<struct PageTag>;

}  // namespace pagezip

template <typename Tag>
struct std::hash<pagezip::Id<Tag>> {
  size_t operator()(const pagezip::Id<Tag>& id) const noexcept { return id.value; }
};
