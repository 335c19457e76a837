// What goes from the prefix index, and in which order. The policy is in the header.
#include <algorithm>

#include "base/check.h"
#include "paging/prefix_index.h"

namespace pagezip {
namespace {

// The value of a leaf where no hit can end. Others have values >= 0.
constexpr double kUseless = -1;

// The cost to recompute a page, in units of its share of the dense layers: those cost the same at
// any depth, attention grows with the keys before it. In a small model (0.5 to 7 billion weights) a
// token's attention to 8,000 to 27,000 keys costs as much as its dense layers.
constexpr double kKeysPerDense = 8192;

}  // namespace

// ---- candidates ---------------------------------------------------------------------------------

// Whether the windows of the row behind `node` are there.
bool PrefixIndex::can_end(NodeId node) const {
  const int64_t pages = tree_.pages(node);
  for (int64_t i = 0; i < window_pages_max_ && !tree_.is_root(node); ++i) {
    if (earliest_end_behind(node) > pages) {
      return false;
    }
    node = tree_.parent(node);
  }
  return true;
}

bool PrefixIndex::is_candidate(NodeId node) const {
  const Entry& entry = entries_[node];
  return tree_.is_leaf(node) || (entry.leaves_near == 0 && sliding_blocks(entry) > 0);
}

double PrefixIndex::value(NodeId node) const {
  const Entry& entry = entries_[node];
  int64_t keys = (tree_.pages(node) - 1) * page_tokens_;
  if (global_groups_ == 0) {
    keys = std::min(keys, window_pages_max_ * page_tokens_);
  }
  const double cost = 1 + static_cast<double>(keys) / kKeysPerDense;
  if (!tree_.is_leaf(node)) {
    return entry.window_clock + entry.window_uses * cost / sliding_blocks(entry);
  }
  return can_end(node) ? entry.clock + entry.uses * cost / entry.blocks : kUseless;
}

// Puts a page where it now belongs in the queue. To be called when anything changed on which that
// depends, but for can_end() (evict_in_order() looks again).
void PrefixIndex::update(NodeId node) {
  dequeue(node);
  Entry& entry = entries_[node];
  entry.is_queued = !tree_.is_root(node) && is_candidate(node);
  if (entry.is_queued) {
    entry.value = value(node);
    queue_.insert({entry.value, tree_.birth(node), node});
  }
}

void PrefixIndex::dequeue(NodeId node) {
  Entry& entry = entries_[node];
  if (entry.is_queued) {
    queue_.erase({entry.value, tree_.birth(node), node});
    entry.is_queued = false;
  }
}

// Tells the pages in the window behind `leaf` that it came (1) or went (-1).
void PrefixIndex::count_leaf(NodeId leaf, int change) {
  NodeId node = leaf;
  for (int64_t i = 0; i < window_pages_max_ && !tree_.is_root(node); ++i) {
    Entry& entry = entries_[node];
    const bool was_needed = entry.leaves_near > 0;
    entry.leaves_near += change;
    if (was_needed != (entry.leaves_near > 0)) {
      update(node);
    }
    node = tree_.parent(node);
  }
}

// ---- removal ------------------------------------------------------------------------------------

// Whether a block comes free when the page goes, or when it is stripped.
bool PrefixIndex::has_idle_block(NodeId node, bool is_sliding_only) const {
  const std::span<const BlockRef> blocks = blocks_of(node);
  for (size_t group = 0; group < blocks.size(); ++group) {
    if (!blocks[group].empty() && (groups_[group].window > 0 || !is_sliding_only) &&
        pool_->pins(blocks[group].id()) == 1) {
      return true;
    }
  }
  return false;
}

void PrefixIndex::strip(NodeId node) {
  release(node, /*is_sliding_only=*/true);
  update(node);
  ++stats_.pages_stripped;
}

void PrefixIndex::release(NodeId node, bool is_sliding_only) {
  const std::span<BlockRef> blocks = blocks_of(node);
  for (size_t group = 0; group < blocks.size(); ++group) {
    if (!blocks[group].empty() && (groups_[group].window > 0 || !is_sliding_only)) {
      blocks[group] = BlockRef();
      --entries_[node].blocks;
      --stats_.blocks_pinned;
    }
  }
}

// With it go the links above it that then hold nothing together, and an empty space's root.
void PrefixIndex::remove_leaf(NodeId leaf) {
  NodeId parent = tree_.parent(leaf);
  while (parent != PrefixTree::kNone && tree_.has_one_child(parent) &&
         entries_[parent].blocks == 0) {
    parent = tree_.parent(parent);
  }
  const bool is_new_leaf = parent != PrefixTree::kNone && tree_.has_one_child(parent);
  if (is_new_leaf) {
    count_leaf(parent, 1);  // first, lest pages near both leaves be queued in between
  }
  count_leaf(leaf, -1);
  for (NodeId node = leaf; node != parent;) {
    const NodeId next = tree_.parent(node);
    stats_.pages_removed += tree_.is_root(node) ? 0 : 1;
    dequeue(node);
    release(node, /*is_sliding_only=*/false);
    entries_[node] = Entry();
    tree_.remove(node);
    node = next;
  }
  if (is_new_leaf) {
    update(parent);
  }
}

// Removes `top` and all chains behind it.
void PrefixIndex::remove_with_chains(NodeId top) {
  const uint64_t birth = tree_.birth(top);
  NodeId node = top;
  while (tree_.is_alive(top, birth)) {
    const NodeId leaf = tree_.leaf_below(node);
    const NodeId parent = tree_.parent(leaf);
    const uint64_t parent_birth = parent == PrefixTree::kNone ? 0 : tree_.birth(parent);
    remove_leaf(leaf);
    node = tree_.is_alive(parent, parent_birth) ? parent : top;
  }
}

void PrefixIndex::drop_space(std::string_view space) {
  const NodeId root = tree_.root(space);
  if (root != PrefixTree::kNone) {
    remove_with_chains(root);
  }
}

void PrefixIndex::clear() {
  stats_.pages_removed += tree_.size() - tree_.spaces();
  stats_.blocks_pinned = 0;
  queue_.clear();
  tree_.clear();
  entries_.clear();
  blocks_.clear();
}

// ---- eviction -----------------------------------------------------------------------------------

int64_t PrefixIndex::evict(int64_t blocks) {
  const int64_t free_before = pool_->blocks_free();
  const int64_t target = free_before + std::min(blocks, stats_.blocks_pinned);
  evict_in_order(target);
  evict_out_of_order(target);
  return pool_->blocks_free() - free_before;
}

void PrefixIndex::evict_in_order(int64_t blocks_free) {
  std::vector<Candidate> in_use;
  while (pool_->blocks_free() < blocks_free && !queue_.empty()) {
    const Candidate lowest = *queue_.begin();
    const NodeId node = lowest.node;
    if (lowest.value == kUseless && can_end(node)) {
      update(node);  // its window is back
    } else if (!has_idle_block(node, !tree_.is_leaf(node))) {
      dequeue(node);
      in_use.push_back(lowest);
    } else {
      clock_ = std::max(clock_, lowest.value);
      tree_.is_leaf(node) ? remove_leaf(node) : strip(node);
    }
  }
  for (const Candidate& passed_over : in_use) {
    const NodeId node = passed_over.node;
    if (tree_.is_alive(node, passed_over.birth)) {
      entries_[node].clock = clock_;
      entries_[node].window_clock = clock_;
      update(node);
    }
  }
}

// For blocks that nobody else pins but that the order doesn't reach: those before a leaf that is in
// use (its reader has duplicates of them), and windows that such a leaf would need. Deepest first:
// then the least of the index is lost.
void PrefixIndex::evict_out_of_order(int64_t blocks_free) {
  if (pool_->blocks_free() >= blocks_free) {
    return;
  }
  std::vector<Candidate> found;
  for (NodeId node = 0; node < tree_.ids_end(); ++node) {
    if (tree_.birth(node) != 0 && has_idle_block(node, false)) {
      found.push_back({-static_cast<double>(tree_.pages(node)), tree_.birth(node), node});
    }
  }
  std::sort(found.begin(), found.end());
  for (const Candidate& deepest : found) {
    const NodeId node = deepest.node;
    if (pool_->blocks_free() >= blocks_free) {
      break;
    }
    if (!tree_.is_alive(node, deepest.birth)) {
      continue;
    }
    if (!tree_.is_leaf(node) && has_idle_block(node, true)) {
      strip(node);
    }
    if (pool_->blocks_free() < blocks_free && has_idle_block(node, false)) {
      remove_with_chains(node);
    }
  }
  for (NodeId node = 0; node < tree_.ids_end(); ++node) {
    if (tree_.birth(node) != 0 && tree_.is_leaf(node)) {
      update(node);  // it may have lost its window
    }
  }
}

}  // namespace pagezip
