// Scores and a budget in, kept pairs out. Pure functions on plain data; no pool, no pages.
//
// The order of pairs is (score descending, layer, head, position), so the same scores give the same
// kept set on every machine. A kept set is exact: the reference code keeps what is strictly greater
// than a threshold, which drops every pair of a tie at the threshold, and all pairs if all scores
// are equal.
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace pagezip {

/// Scores wherever they lie: those of (layer, head) begin at data + layer * layer_stride + head *
/// head_stride.
struct ScoreView {
  int layers = 0;
  int heads = 0;
  int64_t tokens = 0;
  const float* data = nullptr;
  int64_t layer_stride = 0;  // in floats
  int64_t head_stride = 0;

  int64_t lists() const { return int64_t{layers} * heads; }
  int64_t pairs() const { return lists() * tokens; }
  std::span<const float> list(int layer, int head) const {
    return {data + layer * layer_stride + head * head_stride, static_cast<size_t>(tokens)};
  }
};

/// How important each of a document's own pairs is. Natural logarithms; only their order matters
/// here. `tokens` doesn't count the system prefix.
struct ScoreSet {
  int layers = 0;  // of the global KV group
  int heads = 0;   // KV heads
  int64_t tokens = 0;
  std::vector<float> scores;  // [layers, heads, tokens]

  int64_t pairs() const { return int64_t{layers} * heads * tokens; }
  ScoreView view() const { return {layers, heads, tokens, scores.data(), heads * tokens, tokens}; }
};

/// Which pairs stay, for every (layer, head): a CSR list of token indexes, counted from the first
/// token behind the system prefix.
struct KeptSets {
  int layers = 0;
  int heads = 0;
  std::vector<uint64_t> first;  // [layers * heads + 1]
  std::vector<uint32_t> pairs;  // [first.back()], ascending for each (layer, head)

  int64_t count() const { return static_cast<int64_t>(pairs.size()); }
  std::span<const uint32_t> head(int layer, int head) const {
    const size_t list =
        static_cast<size_t>(layer) * static_cast<size_t>(heads) + static_cast<size_t>(head);
    return std::span(pairs).subspan(first[list], first[list + 1] - first[list]);
  }
};

/// The lists of a KeptSets in the caller's memory.
struct KeptSpans {
  std::span<uint64_t> first;  // [layers * heads + 1]
  std::span<uint32_t> pairs;  // [selected_pairs()]
};

/// The first score, in the order (layer, head, position), that is NaN or infinite. The job that
/// made it fails.
struct BadScore {
  int layer = 0;
  int head = 0;
  int64_t position = 0;  // token index, as in KeptSets
  float value = 0;

  /// "score -inf at layer 3, head 1, position 17"
  std::string message() const;
};

using Selection = std::variant<KeptSets, BadScore>;

/// How one compressed version is cut.
struct VersionSpec {
  double keep_ratio = 1;  // of the document's own pairs
  bool uniform = false;   // the same number for every (layer, head)
  int64_t min_per_head = 0;
  friend bool operator==(const VersionSpec&, const VersionSpec&) = default;
};

/// Throws Error(kUsage) unless 0 < keep_ratio <= 1 and there are tokens to keep.
void validate_keep_ratio(int64_t tokens, double keep_ratio);

/// floor(pairs * keep_ratio), the product rounded to double as Python's int(pairs * keep_ratio).
/// REQUIRES: 0 < keep_ratio <= 1.
int64_t keep_count(int64_t pairs, double keep_ratio);

/// Keeps the best min_per_head pairs of every (layer, head), and then the best of all others until
/// `keep` are kept. If the floors alone are more than `keep`, they are kept and nothing else: the
/// result's count() is what was kept. REQUIRES: 0 <= keep <= scores.pairs(), min_per_head >= 0.
/// O(pairs): a radix select on histograms of 11, 11 and 10 bits, then one pass that emits.
Selection select_global(const ScoreSet& scores, int64_t keep, int64_t min_per_head);

/// The same without any allocation: max(keep, what the floors take) pairs into `kept`. REQUIRES:
/// the workspace is aligned to 8 bytes and has select_workspace_bytes(layers * heads).
std::optional<BadScore> select_global(const ScoreView& scores, int64_t keep, int64_t min_per_head,
                                      std::span<std::byte> workspace, const KeptSpans& kept);
int64_t selected_pairs(const ScoreView& scores, int64_t keep, int64_t min_per_head);
size_t select_workspace_bytes(int64_t lists);

/// Keeps the best keep_count(tokens, keep_ratio) pairs of every (layer, head).
Selection select_uniform(const ScoreSet& scores, double keep_ratio);

/// One of the two, as the version says.
Selection select(const ScoreSet& scores, const VersionSpec& version);

}  // namespace pagezip
