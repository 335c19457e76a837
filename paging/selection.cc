#include "paging/selection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/error.h"

namespace pagezip {
namespace {

/// Where a list in descending order is cut: everything above `key` stays, and of the pairs equal to
/// it the first `ties` in order of memory.
struct Cut {
  uint32_t key = 0;
  int64_t ties = 0;
};

/// Maps finite floats to integers of the same order, both zeros to one.
uint32_t order_key(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 + 0 is +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Decides, for the pairs of a list in order, which lie on the near side of a cut.
class CutWalk {
 public:
  explicit CutWalk(Cut cut) : cut_(cut) {}
  bool keeps(uint32_t key) {
    if (key != cut_.key) {
      return key > cut_.key;
    }
    return cut_.ties-- > 0;
  }

 private:
  Cut cut_;
};

struct Digit {
  int shift;
  int bits;
};
constexpr std::array<Digit, 3> kDigits = {{{21, 11}, {10, 11}, {0, 10}}};
constexpr size_t kHistogramMax = size_t{1} << 11;

/// What selecting needs beside its input and output, carved from a workspace.
struct Workspace {
  std::span<int64_t> histogram;  // [kHistogramMax]
  std::span<Cut> floors;         // [layers * heads]

  Workspace(std::span<std::byte> memory, size_t lists)
      : histogram(reinterpret_cast<int64_t*>(memory.data()), kHistogramMax),
        floors(reinterpret_cast<Cut*>(histogram.data() + kHistogramMax), lists) {}
};

/// The cut that keeps `keep` of the keys which visit_keys(f) passes to f, the same on each call.
template <typename VisitKeys>
Cut find_cut(int64_t keep, std::span<int64_t> histogram_max, const VisitKeys& visit_keys) {
  if (keep == 0) {
    return {UINT32_MAX, 0};  // the key of a NaN: above all
  }
  Cut cut{0, keep};
  for (const auto& [shift, bits] : kDigits) {
    const int settled = shift + bits;  // bits from here up are known: those of cut.key
    const std::span<int64_t> histogram = histogram_max.first(size_t{1} << bits);
    std::fill(histogram.begin(), histogram.end(), 0);
    visit_keys([&, known = uint64_t{cut.key} >> settled, low = shift](uint32_t key) {
      if (uint64_t{key} >> settled == known) {
        ++histogram[(key >> low) & (histogram.size() - 1)];
      }
    });
    size_t digit = histogram.size() - 1;
    while (histogram[digit] < cut.ties) {
      cut.ties -= histogram[digit];
      CHECK_GT(digit, 0u);  // fewer than `keep` keys
      --digit;
    }
    cut.key |= static_cast<uint32_t>(digit) << shift;
  }
  return cut;
}

std::optional<BadScore> find_bad_score(const ScoreView& scores) {
  for (int layer = 0; layer < scores.layers; ++layer) {
    for (int head = 0; head < scores.heads; ++head) {
      const std::span<const float> list = scores.list(layer, head);
      const auto bad =
          std::find_if(list.begin(), list.end(), [](float score) { return !std::isfinite(score); });
      if (bad != list.end()) {
        return BadScore{layer, head, bad - list.begin(), *bad};
      }
    }
  }
  return std::nullopt;
}

std::span<const float> scores_of_list(const ScoreView& scores, size_t list) {
  const auto heads = static_cast<size_t>(scores.heads);
  return scores.list(static_cast<int>(list / heads), static_cast<int>(list % heads));
}

/// The cut of each (layer, head) alone.
void find_floors(const ScoreView& scores, int64_t keep_per_list, const Workspace& workspace) {
  for (size_t list = 0; list < workspace.floors.size(); ++list) {
    workspace.floors[list] = find_cut(keep_per_list, workspace.histogram, [&](const auto& visit) {
      for (float score : scores_of_list(scores, list)) {
        visit(order_key(score));
      }
    });
  }
}

/// The cut through all pairs that their list's floor doesn't keep already.
Cut find_global_cut(const ScoreView& scores, int64_t keep, const Workspace& workspace) {
  return find_cut(keep, workspace.histogram, [&](const auto& visit) {
    for (size_t list = 0; list < workspace.floors.size(); ++list) {
      CutWalk floor(workspace.floors[list]);
      for (float score : scores_of_list(scores, list)) {
        const uint32_t key = order_key(score);
        if (!floor.keeps(key)) {
          visit(key);
        }
      }
    }
  });
}

void emit(const ScoreView& scores, std::span<const Cut> floors, Cut cut, const KeptSpans& kept) {
  CutWalk rest(cut);
  size_t count = 0;
  kept.first[0] = 0;
  for (size_t list = 0; list < floors.size(); ++list) {
    CutWalk floor(floors[list]);
    uint32_t position = 0;
    for (float score : scores_of_list(scores, list)) {
      const uint32_t key = order_key(score);
      if (floor.keeps(key) || rest.keeps(key)) {
        kept.pairs[count++] = position;
      }
      ++position;
    }
    kept.first[list + 1] = count;
  }
}

}  // namespace

std::string BadScore::message() const {
  return "score " + std::to_string(value) + " at layer " + std::to_string(layer) + ", head " +
         std::to_string(head) + ", position " + std::to_string(position);
}

void validate_keep_ratio(int64_t tokens, double keep_ratio) {
  if (tokens <= 0) {
    throw Error(ErrorKind::kUsage, "the document is empty: there is nothing to compress");
  }
  if (!(keep_ratio > 0 && keep_ratio <= 1)) {  // also NaN
    throw Error(ErrorKind::kUsage,
                "keep ratio " + std::to_string(keep_ratio) + " is not above 0 and at most 1");
  }
}

int64_t keep_count(int64_t pairs, double keep_ratio) {
  CHECK_GT(keep_ratio, 0.0);
  CHECK_LE(keep_ratio, 1.0);
  return static_cast<int64_t>(static_cast<double>(pairs) * keep_ratio);
}

int64_t selected_pairs(const ScoreView& scores, int64_t keep, int64_t min_per_head) {
  return std::max(keep, std::min(min_per_head, scores.tokens) * scores.lists());
}

size_t select_workspace_bytes(int64_t lists) {
  return kHistogramMax * sizeof(int64_t) + static_cast<size_t>(lists) * sizeof(Cut);
}

std::optional<BadScore> select_global(const ScoreView& scores, int64_t keep, int64_t min_per_head,
                                      std::span<std::byte> workspace, const KeptSpans& kept) {
  CHECK_LE(scores.tokens, int64_t{UINT32_MAX});
  CHECK_GE(keep, 0);
  CHECK_LE(keep, scores.pairs());
  CHECK_GE(min_per_head, 0);
  CHECK_GE(workspace.size(), select_workspace_bytes(scores.lists()));
  const auto lists = static_cast<size_t>(scores.lists());
  const auto count = static_cast<size_t>(selected_pairs(scores, keep, min_per_head));
  CHECK_EQ(kept.first.size(), lists + 1);
  CHECK_EQ(kept.pairs.size(), count);
  if (const std::optional<BadScore> bad = find_bad_score(scores)) {
    return bad;
  }
  const Workspace memory(workspace, lists);
  const int64_t floor = std::min(min_per_head, scores.tokens);
  find_floors(scores, floor, memory);
  const Cut cut =
      find_global_cut(scores, static_cast<int64_t>(count) - floor * scores.lists(), memory);
  emit(scores, memory.floors, cut, kept);
  CHECK_EQ(kept.first.back(), count);
  return std::nullopt;
}

Selection select_global(const ScoreSet& scores, int64_t keep, int64_t min_per_head) {
  CHECK_EQ(static_cast<int64_t>(scores.scores.size()), scores.pairs());
  const ScoreView view = scores.view();
  std::vector<std::byte> workspace(select_workspace_bytes(view.lists()));
  KeptSets kept{scores.layers, scores.heads, {}, {}};
  kept.first.resize(static_cast<size_t>(view.lists()) + 1);
  kept.pairs.resize(static_cast<size_t>(selected_pairs(view, keep, min_per_head)));
  if (auto bad = select_global(view, keep, min_per_head, workspace, {kept.first, kept.pairs})) {
    return *bad;
  }
  return kept;
}

Selection select_uniform(const ScoreSet& scores, double keep_ratio) {
  return select_global(scores, 0, keep_count(scores.tokens, keep_ratio));
}

Selection select(const ScoreSet& scores, const VersionSpec& version) {
  return version.uniform ? select_uniform(scores, version.keep_ratio)
                         : select_global(scores, keep_count(scores.pairs(), version.keep_ratio),
                                         version.min_per_head);
}

}  // namespace pagezip
