#include "paging/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/prng.h"

namespace pagezip {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

ScoreSet score_set(int layers, int heads, int64_t tokens, std::vector<float> scores) {
  return {layers, heads, tokens, std::move(scores)};
}

/// What select_global promises, by a stable sort of everything.
KeptSets sorted_selection(const ScoreSet& scores, int64_t keep, int64_t min_per_head) {
  const int64_t lists = int64_t{scores.layers} * scores.heads;
  std::vector<int64_t> order(scores.scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return scores.scores[static_cast<size_t>(a)] > scores.scores[static_cast<size_t>(b)];
  });
  std::vector<bool> kept(order.size(), false);
  std::vector<int64_t> per_list(static_cast<size_t>(lists), 0);
  int64_t count = 0;
  for (int64_t pair : order) {
    if (per_list[static_cast<size_t>(pair / scores.tokens)]++ < min_per_head) {
      kept[static_cast<size_t>(pair)] = true;
      ++count;
    }
  }
  for (int64_t pair : order) {
    if (count < keep && !kept[static_cast<size_t>(pair)]) {
      kept[static_cast<size_t>(pair)] = true;
      ++count;
    }
  }
  KeptSets sets{scores.layers, scores.heads, {0}, {}};
  for (int64_t list = 0; list < lists; ++list) {
    for (int64_t token = 0; token < scores.tokens; ++token) {
      if (kept[static_cast<size_t>(list * scores.tokens + token)]) {
        sets.pairs.push_back(static_cast<uint32_t>(token));
      }
    }
    sets.first.push_back(sets.pairs.size());
  }
  return sets;
}

void expect_sorted_selection(const ScoreSet& scores, int64_t keep, int64_t min_per_head) {
  const Selection selection = select_global(scores, keep, min_per_head);
  ASSERT_TRUE(std::holds_alternative<KeptSets>(selection));
  const KeptSets& kept = std::get<KeptSets>(selection);
  const KeptSets expected = sorted_selection(scores, keep, min_per_head);
  ASSERT_EQ(kept.first, expected.first) << "keep " << keep << " floor " << min_per_head;
  ASSERT_EQ(kept.pairs, expected.pairs) << "keep " << keep << " floor " << min_per_head;
}

enum class Kind { kFewValues, kEqual, kNormal, kHugeRange, kDenormal, kZeros, kLastBits, kCount };

float random_score(Kind kind, Prng& prng) {
  switch (kind) {
    case Kind::kFewValues:
      return -0.5f * static_cast<float>(prng.below(4));
    case Kind::kEqual:
      return -3.25f;
    case Kind::kNormal:
      return static_cast<float>(prng.uniform() * 40 - 35);
    case Kind::kHugeRange:  // any finite bit pattern
      return std::bit_cast<float>(
          static_cast<uint32_t>(prng.below(2) << 31 | prng.below(0x7f800000)));
    case Kind::kDenormal:
      return std::bit_cast<float>(static_cast<uint32_t>(prng.below(2) << 31 | prng.below(0x40)));
    case Kind::kZeros:
      return prng.chance(0.5) ? 0.0f : -0.0f;
    default:  // differ in the last histogram digit only
      return std::bit_cast<float>(0xc0400000u + static_cast<uint32_t>(prng.below(8)));
  }
}

ScoreSet random_scores(Kind kind, Prng& prng) {
  ScoreSet scores;
  scores.layers = static_cast<int>(prng.range(1, 3));
  scores.heads = static_cast<int>(prng.range(1, 3));
  scores.tokens = prng.range(1, 20);
  for (int64_t i = 0; i < scores.pairs(); ++i) {
    scores.scores.push_back(random_score(kind, prng));
  }
  return scores;
}

TEST(Selection, EqualsAFullSort) {
  Prng prng(1);
  for (int round = 0; round < 10; ++round) {
    for (int kind = 0; kind < static_cast<int>(Kind::kCount); ++kind) {
      const ScoreSet scores = random_scores(static_cast<Kind>(kind), prng);
      for (int64_t keep = 0; keep <= scores.pairs(); ++keep) {
        ASSERT_NO_FATAL_FAILURE(expect_sorted_selection(scores, keep, 0));
      }
    }
  }
}

TEST(Selection, FloorsEqualAFullSort) {
  Prng prng(2);
  for (int round = 0; round < 5; ++round) {
    for (int kind = 0; kind < static_cast<int>(Kind::kCount); ++kind) {
      const ScoreSet scores = random_scores(static_cast<Kind>(kind), prng);
      for (int64_t floor = 0; floor <= scores.tokens + 1; ++floor) {
        for (int64_t keep = 0; keep <= scores.pairs(); keep += prng.range(1, 9)) {
          ASSERT_NO_FATAL_FAILURE(expect_sorted_selection(scores, keep, floor));
        }
      }
    }
  }
}

TEST(Selection, TiesGoToTheFirstLayerHeadAndPosition) {
  const Selection selection = select_global(score_set(2, 2, 2, std::vector<float>(8, 1.0f)), 3, 0);
  const KeptSets& kept = std::get<KeptSets>(selection);
  EXPECT_EQ(kept.first, (std::vector<uint64_t>{0, 2, 3, 3, 3}));
  EXPECT_EQ(kept.pairs, (std::vector<uint32_t>{0, 1, 0}));
  EXPECT_EQ(kept.head(0, 1).size(), 1u);
  EXPECT_TRUE(kept.head(1, 1).empty());
}

TEST(Selection, FloorsAboveTheBudgetRaiseIt) {
  const ScoreSet scores = score_set(1, 2, 3, {5, 6, 7, 1, 3, 2});
  const KeptSets kept = std::get<KeptSets>(select_global(scores, 1, 2));
  EXPECT_EQ(kept.count(), 4);
  EXPECT_EQ(kept.pairs, (std::vector<uint32_t>{1, 2, 1, 2}));
}

TEST(Selection, UniformKeepsTheSameNumberEverywhere) {
  const ScoreSet scores = score_set(2, 1, 5, {9, 8, 7, 6, 5, 1, 2, 2, 2, 0});
  const KeptSets kept = std::get<KeptSets>(select_uniform(scores, 0.5));
  EXPECT_EQ(kept.first, (std::vector<uint64_t>{0, 2, 4}));
  EXPECT_EQ(kept.pairs, (std::vector<uint32_t>{0, 1, 1, 2}));
}

TEST(Selection, CountIsTheReferencesProductRoundedDown) {
  EXPECT_EQ(keep_count(10, 0.3), 3);
  EXPECT_EQ(keep_count(100, 0.29), 28);  // 28.999999999999996 in double
  EXPECT_EQ(keep_count(1000, 0.001), 1);
  EXPECT_EQ(keep_count(3, 0.3), 0);
  EXPECT_EQ(keep_count(0, 0.3), 0);
  EXPECT_EQ(keep_count(33554432, 1.0), 33554432);
  EXPECT_EQ(keep_count((int64_t{1} << 40) + 1, 1.0), (int64_t{1} << 40) + 1);
}

TEST(Selection, NamesTheFirstBadScore) {
  for (float value : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    ScoreSet scores = score_set(3, 2, 4, std::vector<float>(24, -1.0f));
    scores.scores[(2 * 2 + 1) * 4 + 3] = value;
    scores.scores[(1 * 2 + 0) * 4 + 2] = value;
    const Selection selection = select_global(scores, 5, 1);
    ASSERT_TRUE(std::holds_alternative<BadScore>(selection));
    const BadScore& bad = std::get<BadScore>(selection);
    EXPECT_EQ(bad.layer, 1);
    EXPECT_EQ(bad.head, 0);
    EXPECT_EQ(bad.position, 2);
    EXPECT_TRUE(std::holds_alternative<BadScore>(select_uniform(scores, 0.5)));
  }
  EXPECT_EQ((BadScore{3, 1, 17, -kInfinity}.message()),
            "score -inf at layer 3, head 1, position 17");
}

TEST(Selection, RatiosOutsideTheRangeAreUsageErrors) {
  validate_keep_ratio(1, 1.0);
  validate_keep_ratio(1, 1e-9);
  for (double ratio : {0.0, -0.1, 1.0000001, std::nan(""), double{kInfinity}}) {
    EXPECT_THROW(validate_keep_ratio(10, ratio), Error) << ratio;
  }
  try {
    validate_keep_ratio(0, 0.5);
    FAIL() << "an empty document was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  }
}

}  // namespace
}  // namespace pagezip
