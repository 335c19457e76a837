// The token-prefix cache: KV blocks that outlive the sequences that wrote them, found by their
// tokens.
//
// A *page* of page_tokens tokens, behind all the pages before it, is a node of a tree
// (paging/prefix_tree.h). Its node pins up to one block for every KV group: of a global group
// always, of a sliding-window group only while there is one (the publishing sequence may have
// dropped it, and eviction may strip it). A hit may end behind a page if every sliding group still
// has all pages that the next row sees.
//
// Chains start from a *space*, an opaque byte string that the caller composes (tenant salt, model
// identity, document identity). Spaces are compared whole and never share.
//
// Eviction is GreedyDual-Size-Frequency (Cherkasova 1998): what goes first has the lowest
//   clock at its last use + uses * cost to recompute its page / blocks that would come free,
// and the clock follows the highest value that went. Two kinds of things go:
// - a *leaf*, the last page of a chain, with all its blocks. A leaf where no hit can end serves
//   nobody and goes before anything else.
// - the sliding-window blocks of a page inside a chain (*stripping*), where no leaf needs them.
//   Their uses are the hits that ended near, and the chains that forked near.
// What others pin as well frees nothing and is passed over; it counts as just used.
// Benefits: deep pages (dear to recompute) and popular ones stay, one long chain that nobody asks
// for again can't flush many short ones, old fame fades with the clock, and nothing is scanned.
// Costs: a set of all candidates, O(log n) a change; a page that was very popular lingers; the
// first request that forks inside a stripped stretch recomputes it; the cost of a page is a guess
// from its depth and not measured.
//
// Engine thread only. Not for compressed pages, which depend on more than their tokens.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/ids.h"
#include "paging/block_pool.h"
#include "paging/block_table.h"
#include "paging/prefix_tree.h"

namespace pagezip {

/// Which kernels wrote a page: their roundings differ.
enum class KvOrigin : uint8_t { kPrefill, kDecode };

class PrefixIndex {
 public:
  /// Where a sequence stands in the chain of its space. By default at the root. Opaque to callers,
  /// but for pages.
  struct Cursor {
    uint64_t birth = 0;         // of the node
    int64_t pages = 0;          // from the root to the end of the node
    int64_t prefill_pages = 0;  // how many of them prefill wrote, on nothing but prefill's pages
    PrefixTree::NodeId node = PrefixTree::kNone;
    bool decoded = false;  // whether decode has written since the start
  };
  struct Hit {
    int64_t length = 0;          // pairs, a multiple of page_tokens
    std::vector<BlockRun> runs;  // [groups], for Sequence::adopt(); empty if length == 0
    Cursor cursor;               // for publish()
  };

  /// `groups` are those of every sequence to come. The pool outlives the index. Tests pass a
  /// `hasher` that collides.
  PrefixIndex(BlockPool& pool, std::span<const KvGroup> groups,
              PrefixTree::Hasher hasher = hash_page);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  /// Finds and pins, in one step, the longest cached prefix of `tokens` of at most `length_max`
  /// pairs. Counts as a use. `prefill_only`: read no page that decode wrote, or that was computed
  /// from one (for the build of a document).
  Hit acquire(std::string_view space, std::span<const TokenId> tokens, int64_t length_max,
              bool prefill_only);
  /// The length that acquire() would find, without a pin or a use.
  int64_t match(std::string_view space, std::span<const TokenId> tokens, int64_t length_max,
                bool prefill_only) const;

  /// Caches the whole pages of pairs [0, length) of a sequence, from the cursor on, and moves the
  /// cursor behind them. Freezes them in the sequence. Pair i of the sequence is tokens[i]; the
  /// pairs behind cursor.pages were written by `origin` (kDecode if by both). If the cursor's node
  /// is gone, the chain is made again from the root.
  ///
  /// A page that is there already stays, and the sequence keeps its duplicate; but blocks that it
  /// lacks, blocks that nobody else reads, and blocks of decode where prefill has now written, are
  /// replaced by the sequence's.
  ///
  /// Best called before Sequence::drop_behind(): a hit can only end where the blocks of its window
  /// were published. REQUIRES: the cursor came from an acquire() or publish() for this sequence and
  /// space, or is new; length <= sequence.length() and tokens.size().
  void publish(std::string_view space, std::span<const TokenId> tokens, Sequence& sequence,
               int64_t length, KvOrigin origin, Cursor& cursor);

  /// Unpins until `blocks` blocks came free, or as many as nobody else pins. Returns how many did.
  int64_t evict(int64_t blocks);
  /// Forgets all chains of a space.
  void drop_space(std::string_view space);
  void clear();

  struct Stats {
    int64_t spaces = 0;
    int64_t pages = 0;
    int64_t blocks_pinned = 0;
    // Since the start:
    int64_t lookups = 0;        // calls of acquire()
    int64_t lookup_tokens = 0;  // that they asked for
    int64_t hit_tokens = 0;     // that they got
    int64_t pages_added = 0;
    int64_t pages_removed = 0;
    int64_t pages_stripped = 0;
  };
  Stats stats() const;
  /// Blocks that only the index pins: what evict() can free. Looks at every block of the index.
  int64_t blocks_idle() const;
  /// For BlockPool::audit_owners.
  void count_refs(std::span<uint32_t> refs) const;
  /// Recomputes every invariant. Returns the first violation, or "".
  std::string audit() const;

 private:
  using NodeId = PrefixTree::NodeId;

  // What the index knows of a page. Of roots, nothing is used.
  struct Entry {
    double clock = 0;         // of the index, when `uses` grew last
    double window_clock = 0;  // when `window_uses` did
    double value = 0;         // its place in queue_
    uint32_t uses = 0;
    uint32_t window_uses = 0;
    int32_t leaves_near = 0;  // leaves, itself included, whose window has this page
    int32_t blocks = 0;       // that it pins
    bool is_prefill = false;  // written by prefill, computed from nothing but pages of prefill
    bool is_queued = false;
  };
  struct Candidate {
    double value;
    uint64_t birth;  // settles ties: the older goes first
    NodeId node;
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return std::tie(a.value, a.birth) < std::tie(b.value, b.birth);
    }
  };

  // ---- look-up and publishing (prefix_index.cc) ----
  std::vector<NodeId> longest_path(std::string_view space, std::span<const TokenId> tokens,
                                   int64_t length_max, bool prefill_only) const;
  BlockRun run(int group, std::span<const NodeId> path) const;
  int64_t first_page(int group, int64_t pages) const;
  int64_t earliest_end_behind(NodeId node) const;
  NodeId append(NodeId node, std::span<const TokenId> tokens, Sequence& sequence, int64_t pages,
                int64_t prefill_pages);
  void make_room();
  void take_blocks(NodeId node, Sequence& sequence, bool is_prefill);
  void count_use(NodeId node);
  void count_window_use(NodeId node);

  // ---- eviction (prefix_index_eviction.cc) ----
  bool can_end(NodeId node) const;
  bool is_candidate(NodeId node) const;
  double value(NodeId node) const;
  void update(NodeId node);
  void dequeue(NodeId node);
  void count_leaf(NodeId leaf, int change);
  bool has_idle_block(NodeId node, bool is_sliding_only) const;
  void strip(NodeId node);
  void release(NodeId node, bool is_sliding_only);
  void remove_leaf(NodeId node);
  void remove_with_chains(NodeId top);
  void evict_in_order(int64_t blocks_free);
  void evict_out_of_order(int64_t blocks_free);
  std::string audit_entry(NodeId node, int leaves_near) const;

  int groups() const { return static_cast<int>(groups_.size()); }
  int sliding_blocks(const Entry& entry) const { return entry.blocks - global_groups_; }
  bool is_sliding(int group) const { return groups_[static_cast<size_t>(group)].window > 0; }
  std::span<BlockRef> blocks_of(NodeId node) {
    return std::span(blocks_).subspan(node * groups_.size(), groups_.size());
  }
  std::span<const BlockRef> blocks_of(NodeId node) const {
    return std::span(blocks_).subspan(node * groups_.size(), groups_.size());
  }

  struct Group {
    int window = 0;            // 0: global
    int64_t window_pages = 0;  // whole pages that the first row behind a page sees, if sliding
  };

  BlockPool* pool_;
  int64_t page_tokens_;
  std::vector<Group> groups_;
  int global_groups_ = 0;
  int64_t window_pages_max_ = 0;
  PrefixTree tree_;
  std::vector<Entry> entries_;    // [ids of tree_]
  std::vector<BlockRef> blocks_;  // [ids of tree_, groups]
  std::set<Candidate> queue_;
  double clock_ = 0;
  Stats stats_;
};

}  // namespace pagezip
