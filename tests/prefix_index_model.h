// What the prefix index should do, written for a reader and not for speed: one record for every
// cached page, under all its tokens, and every question answered by looking at all of them.
//
// It reads the pins of the pool, so each change is made in the model before it is made in the
// index.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "paging/block_pool.h"
#include "paging/block_table.h"

namespace pagezip {

class PrefixModel {
 public:
  using Tokens = std::vector<TokenId>;
  using Key = std::pair<std::string, Tokens>;  // space, all tokens up to the end of the page
  using Blocks = std::vector<std::optional<uint32_t>>;  // [groups]

  /// Where a sequence stands.
  struct Cursor {
    int64_t pages = 0;
    int64_t prefill_pages = 0;
    uint64_t birth = 0;
    bool decoded = false;
  };

  PrefixModel(const BlockPool& pool, std::vector<KvGroup> groups)
      : pool_(pool), groups_(std::move(groups)), page_(pool.geometry().page.page_tokens) {}

  int64_t match(const std::string& space, const Tokens& tokens, int64_t length_max,
                bool prefill_only) const {
    const int64_t length = std::min(length_max, static_cast<int64_t>(tokens.size()));
    int64_t best = 0;
    for (int64_t end = page_; end <= length; end += page_) {
      const auto found = pages_.find(key(space, tokens, end));
      if (found == pages_.end() || (prefill_only && !found->second.is_prefill)) {
        break;
      }
      best = can_end(found->first) ? end : best;
    }
    return best;
  }

  Cursor use(const std::string& space, const Tokens& tokens, int64_t length) {
    Cursor cursor;
    for (int64_t end = page_; end <= length; end += page_) {
      Page& page = pages_.at(key(space, tokens, end));
      touch(page);
      cursor.birth = page.birth;
      if (page.is_prefill && cursor.prefill_pages == cursor.pages) {
        ++cursor.prefill_pages;
      }
      ++cursor.pages;
    }
    use_window(key(space, tokens, length));
    cursor.decoded = cursor.prefill_pages < cursor.pages;
    return cursor;
  }

  /// blocks: [pages], what the sequence holds.
  void publish(const std::string& space, const Tokens& tokens, const std::vector<Blocks>& blocks,
               bool is_decode, Cursor& cursor) {
    const auto pages = static_cast<int64_t>(blocks.size());
    cursor.decoded |= is_decode;
    if (pages <= cursor.pages || count(blocks.back()) == 0) {
      return;
    }
    cursor.prefill_pages = cursor.decoded ? cursor.prefill_pages : pages;
    const auto at_cursor = pages_.find(key(space, tokens, cursor.pages * page_));
    const bool is_alive = at_cursor != pages_.end() && at_cursor->second.birth == cursor.birth;
    bool is_appending = false;
    for (int64_t i = is_alive ? cursor.pages : 0; i < pages; ++i) {
      const auto [place, is_new] = pages_.try_emplace(key(space, tokens, (i + 1) * page_));
      Page& page = place->second;
      const Key parent = key(space, tokens, i * page_);
      if (is_new && !is_appending && !has_only_child(parent, place->first)) {
        use_window(parent);
      }
      is_appending |= is_new;
      if (is_new) {
        page.birth = ++births_;
        page.clock = page.window_clock = clock_;
        page.uses = 1;
        page.blocks.resize(groups_.size());
      } else if (i >= cursor.pages) {
        touch(page);
      }
      take_blocks(page, blocks[static_cast<size_t>(i)], i < cursor.prefill_pages);
      cursor.birth = page.birth;
    }
    cursor.pages = pages;
  }

  int64_t evict(int64_t blocks) {
    freed_ = 0;
    evict_in_order(blocks);
    evict_out_of_order(blocks);
    return freed_;
  }

  void drop_space(const std::string& space) {
    std::erase_if(pages_, [&](const auto& page) { return page.first.first == space; });
  }
  void clear() { pages_.clear(); }

  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
  void count_refs(std::vector<uint32_t>& refs) const {
    for (const auto& [key, page] : pages_) {
      for (const std::optional<uint32_t>& block : page.blocks) {
        refs[block.value_or(0)] += block.has_value() ? 1 : 0;
      }
    }
  }
  /// How often rare paths ran.
  std::map<std::string, int> reached;

 private:
  struct Page {
    uint64_t birth = 0;
    double clock = 0;
    double window_clock = 0;
    uint32_t uses = 0;
    uint32_t window_uses = 0;
    bool is_prefill = false;
    Blocks blocks;
  };

  static Key key(const std::string& space, const Tokens& tokens, int64_t length) {
    return {space, Tokens(tokens.begin(), tokens.begin() + length)};
  }
  Key shortened(const Key& key, int64_t pages) const {
    Key result = key;
    result.second.resize(key.second.size() - static_cast<size_t>(pages * page_));
    return result;
  }
  int64_t depth(const Key& key) const { return static_cast<int64_t>(key.second.size()) / page_; }
  static bool is_below(const Key& key, const Key& top) {
    return key.first == top.first && key.second.size() > top.second.size() &&
           std::equal(top.second.begin(), top.second.end(), key.second.begin());
  }
  bool is_leaf(const Key& key) const {
    const auto next = pages_.upper_bound(key);  // what is below a page follows it
    return next == pages_.end() || !is_below(next->first, key);
  }
  bool has_only_child(const Key& parent, const Key& child) const {
    return std::none_of(pages_.begin(), pages_.end(), [&](const auto& page) {
      return is_below(page.first, parent) && page.first != child;
    });
  }
  static int64_t count(const Blocks& blocks) {
    return std::count_if(blocks.begin(), blocks.end(), [](const auto& b) { return b.has_value(); });
  }

  // Whether every pair that row `length` sees is there, in every sliding group.
  bool can_end(const Key& key) const {
    const auto length = static_cast<int64_t>(key.second.size());
    for (size_t group = 0; group < groups_.size(); ++group) {
      const int window = groups_[group].window;
      for (int64_t pair = std::max<int64_t>(length - window + 1, 0); window > 0 && pair < length;
           ++pair) {
        const Key end = shortened(key, depth(key) - pair / page_ - 1);
        if (!pages_.at(end).blocks[group].has_value()) {
          return false;
        }
      }
    }
    return true;
  }
  // Pages before the first row behind a page that the widest window reaches.
  int64_t window_pages() const {
    int window = 1;
    for (const KvGroup& group : groups_) {
      window = std::max(window, group.window);
    }
    return (window - 1 + page_ - 1) / page_;
  }
  bool is_near_a_leaf(const Key& key) const {
    return std::any_of(pages_.begin(), pages_.end(), [&](const auto& page) {
      return (page.first == key || is_below(page.first, key)) && is_leaf(page.first) &&
             depth(page.first) - depth(key) < window_pages();
    });
  }

  void touch(Page& page) const {
    ++page.uses;
    page.clock = clock_;
  }
  void use_window(Key end) {
    for (int64_t i = 0; i < window_pages() && !end.second.empty(); ++i) {
      Page& page = pages_.at(end);
      ++page.window_uses;
      page.window_clock = clock_;
      end = shortened(end, 1);
    }
  }

  void take_blocks(Page& page, const Blocks& blocks, bool is_prefill) {
    const bool is_better = is_prefill && !page.is_prefill;
    const bool is_mixed = count(page.blocks) > 0 && is_prefill != page.is_prefill;
    if (is_mixed && !(is_better && count(blocks) == count(Blocks(groups_.size(), 0)))) {
      ++reached["left"];
      return;
    }
    reached["upgraded"] += is_mixed ? 1 : 0;
    for (size_t group = 0; group < groups_.size(); ++group) {
      std::optional<uint32_t>& own = page.blocks[group];
      if (blocks[group].has_value() && (is_better || !own || pool_.pins({*own}) == 1)) {
        reached["replaced_idle"] += own && pool_.pins({*own}) == 1 ? 1 : 0;
        own = blocks[group];
      }
    }
    page.is_prefill = is_prefill;
  }

  double value(const Key& key) const {
    const Page& page = pages_.at(key);
    auto keys = (depth(key) - 1) * page_;
    if (sliding_groups() == static_cast<int64_t>(groups_.size())) {
      keys = std::min(keys, window_pages() * page_);
    }
    const double cost = 1 + static_cast<double>(keys) / 8192;
    const auto blocks = static_cast<double>(count(page.blocks));
    if (!is_leaf(key)) {
      const auto globals = static_cast<double>(groups_.size()) - sliding_groups();
      return page.window_clock + page.window_uses * cost / (blocks - globals);
    }
    return can_end(key) ? page.clock + page.uses * cost / blocks : -1;
  }
  int64_t sliding_groups() const {
    return std::count_if(groups_.begin(), groups_.end(),
                         [](const auto& g) { return g.window > 0; });
  }

  bool is_idle(const Page& page, bool is_sliding_only) const {
    for (size_t group = 0; group < groups_.size(); ++group) {
      const std::optional<uint32_t>& block = page.blocks[group];
      if (block && (groups_[group].window > 0 || !is_sliding_only) && pool_.pins({*block}) == 1) {
        return true;
      }
    }
    return false;
  }
  bool has_sliding(const Page& page) const {
    bool has = false;
    for (size_t group = 0; group < groups_.size(); ++group) {
      has |= groups_[group].window > 0 && page.blocks[group].has_value();
    }
    return has;
  }
  void release(Page& page, bool is_sliding_only) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      std::optional<uint32_t>& block = page.blocks[group];
      if (block && (groups_[group].window > 0 || !is_sliding_only)) {
        freed_ += pool_.pins({*block}) == 1 ? 1 : 0;
        block.reset();
      }
    }
  }
  void remove_leaf(Key key) {
    release(pages_.at(key), false);
    pages_.erase(key);
    for (key = shortened(key, 1); !key.second.empty(); key = shortened(key, 1)) {
      if (!is_leaf(key) || count(pages_.at(key).blocks) > 0) {
        return;
      }
      ++reached["removed_link"];
      pages_.erase(key);
    }
  }

  void evict_in_order(int64_t blocks) {
    using Candidate = std::tuple<double, uint64_t, Key>;
    std::set<std::pair<uint64_t, bool>> passed_over;  // birth, as a leaf
    while (freed_ < blocks) {
      std::optional<Candidate> lowest;
      for (const auto& [key, page] : pages_) {
        const bool is_candidate = is_leaf(key) || (has_sliding(page) && !is_near_a_leaf(key));
        if (is_candidate && !passed_over.contains({page.birth, is_leaf(key)})) {
          Candidate candidate{value(key), page.birth, key};
          lowest = lowest ? std::min(*lowest, candidate) : candidate;
        }
      }
      if (!lowest.has_value()) {
        break;
      }
      const auto& [value, birth, key] = *lowest;
      const bool leaf = is_leaf(key);
      if (!is_idle(pages_.at(key), !leaf)) {
        passed_over.insert({birth, leaf});
        continue;
      }
      clock_ = std::max(clock_, value);
      ++reached[value < 0 ? "useless" : leaf ? "leaf" : "stripped"];
      if (leaf) {
        remove_leaf(key);
      } else {
        release(pages_.at(key), true);
      }
    }
    for (auto& [key, page] : pages_) {
      if (passed_over.contains({page.birth, false}) || passed_over.contains({page.birth, true})) {
        page.clock = page.window_clock = clock_;
        ++reached["passed_over"];
      }
    }
  }

  void evict_out_of_order(int64_t blocks) {
    std::set<std::tuple<int64_t, uint64_t, Key>> order;
    for (const auto& [key, page] : pages_) {
      if (is_idle(page, false)) {
        order.insert({-depth(key), page.birth, key});
      }
    }
    for (const auto& [depth, birth, key] : order) {
      const auto found = pages_.find(key);
      if (freed_ >= blocks || found == pages_.end()) {
        continue;
      }
      ++reached["out_of_order"];
      if (!is_leaf(key) && is_idle(found->second, true)) {
        release(found->second, true);
      }
      while (freed_ < blocks && pages_.contains(key) && is_idle(pages_.at(key), false)) {
        remove_below(key);
      }
    }
  }
  void remove_below(const Key& top) {
    while (pages_.contains(top)) {
      auto leaf = pages_.find(top);
      while (!is_leaf(leaf->first)) {
        ++leaf;
      }
      remove_leaf(leaf->first);
    }
  }

  const BlockPool& pool_;
  std::vector<KvGroup> groups_;
  int64_t page_;
  std::map<Key, Page> pages_;
  uint64_t births_ = 0;
  double clock_ = 0;
  int64_t freed_ = 0;
};

}  // namespace pagezip
