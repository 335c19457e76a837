// What both kinds of tokenizer share: their interface, merging of neighbours by priority, and a
// cache of whole words.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace pagezip {

/// Remembers where in the output of this call a word was encoded before: text repeats its words,
/// so most need no merging. Direct-mapped, so its size is bounded; lives for one call.
class WordCache {
 public:
  /// `text_bytes`: of the whole call. `ids`: the output that the words are appended to.
  WordCache(size_t text_bytes, std::vector<TokenId>& ids)
      : ids_(ids), entries_(std::bit_ceil(std::clamp<size_t>(text_bytes / 16, 1, 16384))) {}

  std::vector<TokenId>& ids() { return ids_; }
  /// Appends the ids of `word`: copied, or by calling `encode()`, which appends them.
  template <typename Encode>
  void append(std::string_view word, const Encode& encode) {
    if (word.size() > kMaxWordBytes) return encode();
    Entry& entry = entries_[std::hash<std::string_view>()(word) & (entries_.size() - 1)];
    if (word == std::string_view(entry.word.data(), entry.bytes)) {
      for (uint32_t i = 0; i < entry.count; ++i) ids_.push_back(ids_[entry.first + i]);
      return;
    }
    const size_t first = ids_.size();
    encode();
    std::copy(word.begin(), word.end(), entry.word.begin());
    entry.bytes = static_cast<uint32_t>(word.size());
    entry.count = static_cast<uint32_t>(ids_.size() - first);
    entry.first = first;
  }

 private:
  static constexpr size_t kMaxWordBytes = 48;
  struct Entry {
    std::array<char, kMaxWordBytes> word{};
    uint32_t bytes = 0;
    uint32_t count = 0;
    size_t first = 0;  // index into ids_
  };
  std::vector<TokenId>& ids_;
  std::vector<Entry> entries_;
};

/// Encodes text that holds no special token. Const methods from any thread.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Appends to words.ids(). Any bytes. `at_start`: nothing or a special token comes before.
  virtual void encode(std::string_view text, bool at_start, WordCache& words) const = 0;
};

/// A piece of a word, in a doubly linked list that lives in a vector.
struct Symbol {
  uint32_t begin;    // bytes of the word, [begin, begin + length)
  uint32_t length;   // 0: merged into the one before
  TokenId id;        // -1: no token
  int32_t previous;  // indices, -1 at the ends
  int32_t next;
};

struct Merge {
  double priority;  // the lowest goes first; of equals the leftmost
  TokenId id;
};

/// Makes a list of `symbols` that lie side by side in this order.
inline void link_symbols(std::vector<Symbol>& symbols) {
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].previous = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

/// Merges until no neighbours can: O(n log n). `lookup(left, right)` gives std::optional<Merge>.
/// Afterwards the live symbols are those reached by `next` from symbols[0].
template <typename Lookup>
void merge_symbols(std::vector<Symbol>& symbols, const Lookup& lookup) {
  struct Candidate {
    double priority;
    int32_t left;
    int32_t right;
    uint32_t length;  // of both together: if it no longer holds, one of them has changed
    TokenId id;
    bool operator>(const Candidate& other) const {
      return priority != other.priority ? priority > other.priority : left > other.left;
    }
  };
  const auto at = [&symbols](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue({},
                                                                               std::move(storage));
  const auto try_pair = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const std::optional<Merge> merge = lookup(at(left), at(right));
    if (!merge) return;
    queue.push({merge->priority, left, right, at(left).length + at(right).length, merge->id});
  };
  for (size_t i = 1; i < symbols.size(); ++i) {
    try_pair(static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
  }
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.left);
    Symbol& right = at(best.right);
    if (left.length == 0 || right.length == 0 || left.length + right.length != best.length) {
      continue;
    }
    left.length = best.length;
    left.id = best.id;
    left.next = right.next;
    if (right.next >= 0) at(right.next).previous = best.left;
    right.length = 0;
    try_pair(left.previous, best.left);
    try_pair(best.left, left.next);
  }
}

}  // namespace pagezip
