// Invariants, beyond those of the tree (audit() checks them all):
// - a page has the blocks of all global groups; a page without any block has children (links of a
//   chain in a model of sliding layers only);
// - leaves_near counts the leaves that are at most a window below a page, so that stripping never
//   takes what a leaf needs, but in evict_out_of_order();
// - queue_ holds exactly the leaves and the pages that can be stripped.
#include "paging/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/math.h"

namespace pagezip {

PrefixIndex::PrefixIndex(BlockPool& pool, std::span<const KvGroup> groups,
                         PrefixTree::Hasher hasher)
    : pool_(&pool),
      page_tokens_(pool.geometry().page.page_tokens),
      tree_(pool.geometry().page.page_tokens, hasher) {
  CHECK(!groups.empty());
  for (const KvGroup& group : groups) {
    // Row r sees pairs from r - window + 1 on; behind a page, r is a multiple of page_tokens.
    const int64_t window_pages =
        group.window == 0 ? 0 : ceil_div(int64_t{group.window} - 1, page_tokens_);
    groups_.push_back({group.window, window_pages});
    global_groups_ += group.window == 0 ? 1 : 0;
    window_pages_max_ = std::max(window_pages_max_, window_pages);
  }
}

// ---- look-up ------------------------------------------------------------------------------------

// The first page that a hit of `pages` pages reads: BlockTable::first_page_needed in pages.
int64_t PrefixIndex::first_page(int group, int64_t pages) const {
  const Group& own = groups_[static_cast<size_t>(group)];
  return own.window == 0 ? 0 : std::max<int64_t>(pages - own.window_pages, 0);
}

// The least number of pages at which a hit can end in spite of the blocks that `node` lacks.
int64_t PrefixIndex::earliest_end_behind(NodeId node) const {
  if (entries_[node].blocks == groups()) {
    return 0;
  }
  int64_t earliest = 0;
  const std::span<const BlockRef> blocks = blocks_of(node);
  for (size_t group = 0; group < blocks.size(); ++group) {
    if (blocks[group].empty()) {
      earliest = std::max(earliest, tree_.pages(node) + groups_[group].window_pages);
    }
  }
  return earliest;
}

// The nodes of the longest prefix at which a hit can end.
std::vector<PrefixTree::NodeId> PrefixIndex::longest_path(std::string_view space,
                                                          std::span<const TokenId> tokens,
                                                          int64_t length_max,
                                                          bool prefill_only) const {
  const int64_t length = std::min(length_max, static_cast<int64_t>(tokens.size()));
  const auto pages_max = static_cast<size_t>(std::max<int64_t>(length / page_tokens_, 0));
  std::vector<NodeId> path;
  size_t pages = 0;
  int64_t earliest_end = 0;
  NodeId node = tree_.root(space);
  while (node != PrefixTree::kNone && path.size() < pages_max) {
    node = tree_.child(node, tokens.data() + static_cast<int64_t>(path.size()) * page_tokens_);
    if (node == PrefixTree::kNone || (prefill_only && !entries_[node].is_prefill)) {
      break;
    }
    path.push_back(node);
    earliest_end = std::max(earliest_end, earliest_end_behind(node));
    if (static_cast<int64_t>(path.size()) >= earliest_end) {
      pages = path.size();
    }
  }
  path.resize(pages);
  return path;
}

int64_t PrefixIndex::match(std::string_view space, std::span<const TokenId> tokens,
                           int64_t length_max, bool prefill_only) const {
  const auto pages = longest_path(space, tokens, length_max, prefill_only).size();
  return static_cast<int64_t>(pages) * page_tokens_;
}

PrefixIndex::Hit PrefixIndex::acquire(std::string_view space, std::span<const TokenId> tokens,
                                      int64_t length_max, bool prefill_only) {
  const std::vector<NodeId> path = longest_path(space, tokens, length_max, prefill_only);
  const int64_t asked = std::min(length_max, static_cast<int64_t>(tokens.size()));
  Hit hit;
  hit.length = static_cast<int64_t>(path.size()) * page_tokens_;
  ++stats_.lookups;
  stats_.lookup_tokens += std::max<int64_t>(asked, 0);
  stats_.hit_tokens += hit.length;
  if (path.empty()) {
    return hit;
  }
  hit.runs.reserve(groups_.size());
  for (int group = 0; group < groups(); ++group) {
    hit.runs.push_back(run(group, path));
  }
  for (const NodeId node : path) {
    tree_.make_recent(node);
    if (entries_[node].is_prefill && hit.cursor.prefill_pages == hit.cursor.pages) {
      ++hit.cursor.prefill_pages;
    }
    ++hit.cursor.pages;
    count_use(node);
  }
  count_window_use(path.back());
  hit.cursor.node = path.back();
  hit.cursor.birth = tree_.birth(path.back());
  hit.cursor.decoded = hit.cursor.prefill_pages < hit.cursor.pages;
  return hit;
}

BlockRun PrefixIndex::run(int group, std::span<const NodeId> path) const {
  const auto pages = static_cast<int64_t>(path.size());
  const int64_t first = first_page(group, pages);
  BlockRun found{first, pages * page_tokens_, BlockList(*pool_)};
  found.blocks.reserve(pages - first);
  for (const NodeId node : path.subspan(static_cast<size_t>(first))) {
    found.blocks.push(blocks_of(node)[static_cast<size_t>(group)].share());
  }
  return found;
}

void PrefixIndex::count_use(NodeId node) {
  Entry& entry = entries_[node];
  ++entry.uses;
  entry.clock = clock_;
  if (tree_.is_leaf(node)) {
    update(node);
  }
}

// Of the sliding blocks of the pages that the row behind `node` sees.
void PrefixIndex::count_window_use(NodeId node) {
  for (int64_t i = 0; i < window_pages_max_ && !tree_.is_root(node); ++i) {
    Entry& entry = entries_[node];
    ++entry.window_uses;
    entry.window_clock = clock_;
    if (!tree_.is_leaf(node)) {
      update(node);
    }
    node = tree_.parent(node);
  }
}

// ---- publishing ---------------------------------------------------------------------------------

void PrefixIndex::publish(std::string_view space, std::span<const TokenId> tokens,
                          Sequence& sequence, int64_t length, KvOrigin origin, Cursor& cursor) {
  CHECK(&sequence.pool() == pool_);
  CHECK_EQ(sequence.groups(), groups());
  CHECK_LE(length, sequence.length());
  CHECK_LE(length, static_cast<int64_t>(tokens.size()));
  const int64_t pages = length / page_tokens_;
  cursor.decoded |= origin == KvOrigin::kDecode;
  bool has_last_page = false;  // in some group; if not, it has no page at all
  for (int group = 0; group < groups(); ++group) {
    has_last_page |= sequence.table(group).first_page() < pages;
  }
  if (pages <= cursor.pages || !has_last_page) {
    return;
  }
  cursor.prefill_pages = cursor.decoded ? cursor.prefill_pages : pages;

  NodeId node = tree_.root(space);
  if (node == PrefixTree::kNone) {
    node = tree_.add_root(space);
    make_room();
  }
  if (tree_.is_alive(cursor.node, cursor.birth)) {
    CHECK_EQ(tree_.root_of(cursor.node), node);
    CHECK_EQ(tree_.pages(cursor.node), cursor.pages);
    node = cursor.node;
  }
  while (tree_.pages(node) < pages) {
    const int64_t page = tree_.pages(node);
    const NodeId child = tree_.child(node, tokens.data() + page * page_tokens_);
    if (child == PrefixTree::kNone) {
      node = append(node, tokens, sequence, pages, cursor.prefill_pages);
      break;
    }
    tree_.make_recent(child);
    take_blocks(child, sequence, page < cursor.prefill_pages);
    if (page >= cursor.pages) {  // else the sequence only finds its own page again
      count_use(child);
    }
    update(child);
    node = child;
  }
  cursor.node = node;
  cursor.birth = tree_.birth(node);
  cursor.pages = pages;
}

// Adds the sequence's pages behind `node`, up to `pages`. Returns the last one.
PrefixTree::NodeId PrefixIndex::append(NodeId node, std::span<const TokenId> tokens,
                                       Sequence& sequence, int64_t pages, int64_t prefill_pages) {
  const NodeId fork = node;
  const bool was_leaf = tree_.is_leaf(fork);
  while (tree_.pages(node) < pages) {
    const int64_t page = tree_.pages(node);
    node = tree_.add_child(node, tokens.data() + page * page_tokens_);
    make_room();
    Entry& entry = entries_[node];
    entry.uses = 1;
    entry.clock = clock_;
    entry.window_clock = clock_;
    take_blocks(node, sequence, page < prefill_pages);
    ++stats_.pages_added;
  }
  count_leaf(node, 1);  // first, lest pages near both leaves be queued in between
  if (was_leaf) {
    count_leaf(fork, -1);
    update(fork);
  } else {
    count_window_use(fork);
  }
  for (NodeId added = node; added != fork; added = tree_.parent(added)) {
    update(added);
  }
  return node;
}

// Gives a page the blocks of a sequence that it lacks or that are better.
void PrefixIndex::take_blocks(NodeId node, Sequence& sequence, bool is_prefill) {
  Entry& entry = entries_[node];
  const int64_t page = tree_.pages(node) - 1;
  bool has_all = true;
  for (int group = 0; group < groups(); ++group) {
    has_all &= sequence.table(group).first_page() <= page;
  }
  const bool is_better = is_prefill && !entry.is_prefill;
  if (entry.blocks > 0 && is_prefill != entry.is_prefill && !(is_better && has_all)) {
    return;  // a page is written by one kind of kernel
  }
  for (int group = 0; group < groups(); ++group) {
    BlockRef& block = blocks_of(node)[static_cast<size_t>(group)];
    if (sequence.table(group).first_page() > page) {
      continue;
    }
    if (block.empty()) {
      ++entry.blocks;
      ++stats_.blocks_pinned;
    } else if (!is_better && pool_->pins(block.id()) > 1) {
      continue;
    }
    block = sequence.share_page(group, page);
  }
  entry.is_prefill = is_prefill;
}

void PrefixIndex::make_room() {
  entries_.resize(std::max<size_t>(entries_.size(), tree_.ids_end()));
  blocks_.resize(entries_.size() * groups_.size());
}

// ---- books --------------------------------------------------------------------------------------

PrefixIndex::Stats PrefixIndex::stats() const {
  Stats stats = stats_;
  stats.spaces = tree_.spaces();
  stats.pages = tree_.size() - tree_.spaces();
  return stats;
}

int64_t PrefixIndex::blocks_idle() const {
  return std::count_if(blocks_.begin(), blocks_.end(), [&](const BlockRef& block) {
    return !block.empty() && pool_->pins(block.id()) == 1;
  });
}

void PrefixIndex::count_refs(std::span<uint32_t> refs) const {
  for (const BlockRef& block : blocks_) {
    if (!block.empty()) {
      ++refs[block.id().value];
    }
  }
}

std::string PrefixIndex::audit() const {
  std::string violation = tree_.audit();
  if (!violation.empty()) {
    return violation;
  }
  std::vector<uint32_t> pins(static_cast<size_t>(pool_->blocks_total()), 0);
  count_refs(pins);
  int64_t pinned = 0;
  for (size_t id = 0; id < pins.size(); ++id) {
    pinned += pins[id];
    if (pins[id] > 1) {
      return "block " + std::to_string(id) + " belongs to two pages";
    }
  }
  if (pinned != stats_.blocks_pinned) {
    return std::to_string(pinned) + " blocks pinned, not " + std::to_string(stats_.blocks_pinned);
  }
  std::vector<int> leaves_near(tree_.ids_end(), 0);
  size_t queued = 0;
  for (NodeId leaf = 0; leaf < tree_.ids_end(); ++leaf) {
    queued += entries_[leaf].is_queued ? 1 : 0;
    const bool is_live = tree_.birth(leaf) != 0;
    NodeId node = is_live && tree_.is_leaf(leaf) ? leaf : PrefixTree::kNone;
    for (int64_t i = 0; i < window_pages_max_ && node != PrefixTree::kNone; ++i) {
      ++leaves_near[node];
      node = tree_.parent(node);
    }
  }
  if (queued != queue_.size()) {
    return std::to_string(queue_.size()) + " candidates, not " + std::to_string(queued);
  }
  for (NodeId node = 0; node < tree_.ids_end() && violation.empty(); ++node) {
    violation = audit_entry(node, leaves_near[node]);
  }
  return violation;
}

std::string PrefixIndex::audit_entry(NodeId node, int leaves_near) const {
  const Entry& entry = entries_[node];
  const std::string name = "page node " + std::to_string(node);
  const std::span<const BlockRef> blocks = blocks_of(node);
  const auto held = std::count_if(blocks.begin(), blocks.end(),
                                  [](const BlockRef& block) { return !block.empty(); });
  if (held != entry.blocks) {
    return name + " counts its blocks wrongly";
  }
  if (tree_.birth(node) == 0 || tree_.is_root(node)) {
    return held == 0 && !entry.is_queued ? "" : name + " is none but has blocks or a place";
  }
  for (int group = 0; group < groups(); ++group) {
    if (!is_sliding(group) && blocks[static_cast<size_t>(group)].empty()) {
      return name + " lacks a global block";
    }
  }
  if (tree_.is_leaf(node) && held == 0) {
    return name + " is a leaf without blocks";
  }
  if (entry.leaves_near != leaves_near) {
    return name + " counts " + std::to_string(entry.leaves_near) + " leaves near, not " +
           std::to_string(leaves_near);
  }
  if (entry.is_queued != is_candidate(node)) {
    return name + " is queued wrongly";
  }
  const bool has_place = queue_.contains({entry.value, tree_.birth(node), node});
  if (entry.is_queued && !(has_place && (entry.value == value(node) || entry.value < 0))) {
    return name + " has a wrong place";
  }
  return "";
}

}  // namespace pagezip
