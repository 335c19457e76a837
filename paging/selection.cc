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

/// The cut that keeps `keep` of the keys which visit_keys(f) passes to f, the same on each call.
template <typename VisitKeys>
Cut find_cut(int64_t keep, const VisitKeys& visit_keys) {
  if (keep == 0) {
    return {UINT32_MAX, 0};  // the key of a NaN: above all
  }
  struct Digit {
    int shift;
    int bits;
  };
  constexpr std::array<Digit, 3> kDigits = {{{21, 11}, {10, 11}, {0, 10}}};
  Cut cut{0, keep};
  std::vector<int64_t> histogram;
  for (const auto& [shift, bits] : kDigits) {
    const int settled = shift + bits;  // bits from here up are known: those of cut.key
    histogram.assign(size_t{1} << bits, 0);
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

std::optional<BadScore> find_bad_score(const ScoreSet& scores) {
  const auto bad = std::find_if(scores.scores.begin(), scores.scores.end(),
                                [](float score) { return !std::isfinite(score); });
  if (bad == scores.scores.end()) {
    return std::nullopt;
  }
  const int64_t index = bad - scores.scores.begin();
  const int64_t list = index / scores.tokens;
  return BadScore{static_cast<int>(list / scores.heads), static_cast<int>(list % scores.heads),
                  index % scores.tokens, *bad};
}

std::span<const float> scores_of_list(const ScoreSet& scores, size_t list) {
  const auto tokens = static_cast<size_t>(scores.tokens);
  return std::span(scores.scores).subspan(list * tokens, tokens);
}

/// The cut of each (layer, head) alone.
std::vector<Cut> find_floors(const ScoreSet& scores, size_t lists, int64_t keep_per_list) {
  std::vector<Cut> floors(lists);
  for (size_t list = 0; list < lists; ++list) {
    floors[list] = find_cut(keep_per_list, [&](const auto& visit) {
      for (float score : scores_of_list(scores, list)) {
        visit(order_key(score));
      }
    });
  }
  return floors;
}

/// The cut through all pairs that their list's floor doesn't keep already.
Cut find_global_cut(const ScoreSet& scores, const std::vector<Cut>& floors, int64_t keep) {
  return find_cut(keep, [&](const auto& visit) {
    for (size_t list = 0; list < floors.size(); ++list) {
      CutWalk floor(floors[list]);
      for (float score : scores_of_list(scores, list)) {
        const uint32_t key = order_key(score);
        if (!floor.keeps(key)) {
          visit(key);
        }
      }
    }
  });
}

KeptSets emit(const ScoreSet& scores, const std::vector<Cut>& floors, Cut cut, int64_t count) {
  KeptSets kept{scores.layers, scores.heads, {0}, {}};
  kept.first.reserve(floors.size() + 1);
  kept.pairs.reserve(static_cast<size_t>(count));
  CutWalk rest(cut);
  for (size_t list = 0; list < floors.size(); ++list) {
    CutWalk floor(floors[list]);
    uint32_t position = 0;
    for (float score : scores_of_list(scores, list)) {
      const uint32_t key = order_key(score);
      if (floor.keeps(key) || rest.keeps(key)) {
        kept.pairs.push_back(position);
      }
      ++position;
    }
    kept.first.push_back(kept.pairs.size());
  }
  CHECK_EQ(kept.count(), count);
  return kept;
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

Selection select_global(const ScoreSet& scores, int64_t keep, int64_t min_per_head) {
  CHECK_EQ(static_cast<int64_t>(scores.scores.size()), scores.pairs());
  CHECK_LE(scores.tokens, int64_t{UINT32_MAX});
  CHECK_GE(keep, 0);
  CHECK_LE(keep, scores.pairs());
  CHECK_GE(min_per_head, 0);
  if (const std::optional<BadScore> bad = find_bad_score(scores)) {
    return *bad;
  }
  const int64_t lists = int64_t{scores.layers} * scores.heads;
  const int64_t floor = std::min(min_per_head, scores.tokens);
  const int64_t rest = std::max<int64_t>(keep - floor * lists, 0);
  const std::vector<Cut> floors = find_floors(scores, static_cast<size_t>(lists), floor);
  const Cut cut = find_global_cut(scores, floors, rest);
  return emit(scores, floors, cut, floor * lists + rest);
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
