// Mutable, uniform KV: which blocks hold the pairs of a sequence, for every KV group.
//
// A *KV group* is a set of layers with the same span; each has a block table of its own. A table
// grows by whole blocks, may be cut back (a question that is rolled back), and in a sliding-window
// group loses the blocks that no later row can see. Pairs that were shared (with a document, or as
// the prefix of another sequence) are frozen: the sequence may go on behind them, into the same
// last block, but can't cut them off and write others there.
//
// Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kv_view.h"
#include "paging/block_pool.h"

namespace pagezip {

/// Layers of one span. `layers` are the model's layer numbers; their place in the list is the layer
/// number within the group's blocks.
struct KvGroup {
  std::vector<int> layers;
  int window = 0;  // positions that a row sees, itself included; 0: all (a global group)
};

/// Cuts a model's layers into KV groups: the global layers, if there are any, form group 0; the
/// others are cut into groups of as many layers as that, the last one smaller. A model without
/// global layers has one group. The largest group, the first, gives KvGeometry::layers_per_block.
/// REQUIRES: window > 0 if some layer isn't global.
std::vector<KvGroup> make_kv_groups(const std::vector<bool>& is_global, int window);

/// Blocks of one KV group that hold pairs [first_page * page_tokens, length).
struct BlockRun {
  int64_t first_page = 0;
  int64_t length = 0;  // pairs, counted from pair 0
  BlockList blocks;

  /// Pins the same blocks once more.
  BlockRun share() const { return {first_page, length, blocks.share(0, blocks.size())}; }
};

/// The uniform segment of a run; borrows the run's ids.
Segment uniform_segment(const BlockPool& pool, const BlockRun& run, int64_t first_position);

/// The blocks of one KV group of one sequence. Pair i is the token at logical position
/// first_position + i.
class BlockTable {
 public:
  BlockTable(BlockPool& pool, int window, int64_t first_position);

  int window() const { return window_; }
  int64_t length() const { return run_.length; }
  int64_t first_page() const { return run_.first_page; }
  int64_t blocks_held() const { return run_.blocks.size(); }
  /// The first page that row `row` (a pair index) or any later row reads.
  int64_t first_page_needed(int64_t row) const;

  /// Pairs that the table can hold without another block.
  int64_t room() const { return end_page() * pool_->geometry().page.page_tokens; }
  /// Blocks to take before the table can hold `length` pairs.
  int64_t blocks_needed(int64_t length) const;
  /// Makes room for pairs [length(), length). REQUIRES: length >= length(), and the reservation
  /// holds blocks_needed(length).
  void grow(int64_t length, BlockReservation& reservation);
  /// Cuts off the pairs from `length` on. REQUIRES: none of them is frozen, and the window of row
  /// `length` is still there.
  void truncate(int64_t length);
  /// Unpins the blocks that lie wholly behind the window of row `row`. REQUIRES: row <= length(),
  /// and no row before it runs any more.
  void drop_behind(int64_t row);

  /// Pins the blocks of pairs [0, length) that row `length` or a later one needs, and freezes those
  /// pairs. REQUIRES: length <= length(), and the window of row `length` is still there.
  BlockRun share(int64_t length);
  /// Pins the block of page `page` and freezes the pairs up to its end. REQUIRES: the page is full,
  /// and not dropped.
  BlockRef share_page(int64_t page);
  /// A table of the same pairs [0, length) that goes on by itself: whole blocks are shared, and a
  /// partly filled last one is a new block, whose pairs the caller copies. REQUIRES: as share();
  /// the reservation holds a block if length is no multiple of page_tokens.
  BlockTable fork(int64_t length, BlockReservation& reservation);
  /// Starts an empty table with shared blocks. REQUIRES: run.length is a multiple of page_tokens
  /// (a partly filled block belongs to its writer).
  void adopt(BlockRun run);

  /// Room for the ids of so many pages, so that a list that grows keeps its place in memory.
  void reserve_pages(int64_t pages) { run_.blocks.reserve(pages - run_.first_page); }

  /// Borrows the table's ids until it changes.
  Segment segment() const;
  void count_refs(std::span<uint32_t> refs) const { run_.blocks.count_refs(refs); }

 private:
  int64_t end_page() const { return run_.first_page + run_.blocks.size(); }

  BlockPool* pool_;
  int window_;
  int64_t first_position_;
  int64_t frozen_ = 0;  // pairs [0, frozen_) are read by others
  BlockRun run_;
};

/// All block tables of one sequence; they have the same length.
class Sequence {
 public:
  /// An empty sequence; pair 0 will be the token at `first_position` (a question on a document
  /// starts at the document's logical length).
  Sequence(BlockPool& pool, std::span<const KvGroup> groups, int64_t first_position);

  BlockPool& pool() const { return *pool_; }
  int groups() const { return static_cast<int>(tables_.size()); }
  const BlockTable& table(int group) const { return tables_[static_cast<size_t>(group)]; }
  int64_t first_position() const { return first_position_; }
  int64_t length() const { return tables_.front().length(); }
  int64_t blocks_held() const;
  int64_t room() const { return tables_.front().room(); }  // of every table
  /// Asks for what segment() and grow() will read.
  void prefetch() const {
    __builtin_prefetch(tables_.data());
    __builtin_prefetch(reinterpret_cast<const std::byte*>(tables_.data()) + sizeof(BlockTable) - 1);
  }

  // As in BlockTable, for all groups.
  int64_t blocks_needed(int64_t length) const;
  void grow(int64_t length, BlockReservation& reservation);
  void truncate(int64_t length);
  void drop_behind(int64_t row);
  std::vector<BlockRun> share(int64_t length);
  BlockRef share_page(int group, int64_t page) {
    return tables_[static_cast<size_t>(group)].share_page(page);
  }
  Sequence fork(int64_t length, BlockReservation& reservation);
  void adopt(std::vector<BlockRun> runs);
  Segment segment(int group) const { return table(group).segment(); }
  /// Room for the ids of `length` pairs: while the sequence grows up to there and drops blocks,
  /// segments that were taken earlier still find the blocks that they read.
  void reserve_pages(int64_t length) {
    for (BlockTable& table : tables_) {
      table.reserve_pages(pool_->geometry().pages_for(length));
    }
  }
  void count_refs(std::span<uint32_t> refs) const;

 private:
  Sequence(BlockPool& pool, int64_t first_position, std::vector<BlockTable> tables)
      : pool_(&pool), first_position_(first_position), tables_(std::move(tables)) {}

  BlockPool* pool_;
  int64_t first_position_;
  std::vector<BlockTable> tables_;  // [groups]
};

}  // namespace pagezip
