// The C ABI: what it adds to what it calls. Structs of other versions, arguments that can't be,
// errors as text, and results that agree with the C++ functions or naive loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "api/pagezip.h"
#include "base/prng.h"
#include "kernels/kernels.h"
#include "paging/selection.h"

extern "C" pagezip_status select_from_c(const float* scores, int64_t tokens, int64_t keep,
                                        uint64_t first[2], uint32_t* pairs);

namespace pagezip {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(CAbi, SelectsFromC) {
  const float scores[] = {1, 3, 2, 3, 0};
  uint64_t first[2] = {};
  uint32_t pairs[3] = {};
  ASSERT_EQ(select_from_c(scores, 5, 3, first, pairs), PAGEZIP_OK) << pagezip_last_error();
  EXPECT_THAT(first, ElementsAre(0, 3));
  EXPECT_THAT(pairs, ElementsAre(1, 2, 3));
}

TEST(CAbi, ErrorsAreTextOfTheirThread) {
  const float scores[] = {1, NAN};
  uint64_t first[2] = {};
  uint32_t pairs[2] = {};
  EXPECT_EQ(select_from_c(scores, 2, 1, first, pairs), PAGEZIP_FAILED);
  EXPECT_THAT(pagezip_last_error(), HasSubstr("at layer 0, head 0, position 1"));
  std::thread([] { EXPECT_STREQ(pagezip_last_error(), ""); }).join();
  EXPECT_EQ(select_from_c(scores, 2, 3, first, pairs), PAGEZIP_INVALID);
  EXPECT_THAT(pagezip_last_error(), HasSubstr("keep"));
}

// ---- versions of structs ----

struct SelectFixture {
  SelectFixture() {
    args.size = sizeof args;
    args.scores = scores.data();
    args.tokens = 4;
    args.layers = 1;
    args.heads = 1;
    args.keep = 2;
    args.first = first;
    args.pairs = pairs;
    args.pairs_max = 4;
  }
  pagezip_status run(const void* as) {
    return pagezip_select(static_cast<const pagezip_select_args*>(as), workspace.data(),
                          workspace.size());
  }

  std::vector<float> scores = {4, 1, 3, 2};
  uint64_t first[2] = {};
  uint32_t pairs[4] = {};
  AlignedBytes memory{1 << 16};
  std::span<std::byte> workspace{memory.data(), memory.size()};
  pagezip_select_args args{};
};

TEST(CAbi, ReadsStructsOfOtherVersions) {
  SelectFixture select;
  struct Newer {
    pagezip_select_args args;
    int64_t unknown;
  } newer = {select.args, 0};
  newer.args.size = sizeof newer;
  EXPECT_EQ(select.run(&newer), PAGEZIP_OK) << "fields from the future count as absent while 0";
  newer.unknown = 1;
  EXPECT_EQ(select.run(&newer), PAGEZIP_INVALID);
  EXPECT_THAT(pagezip_last_error(), HasSubstr("doesn't know"));
  select.args.size = offsetof(pagezip_select_args, pairs_max);
  EXPECT_EQ(select.run(&select.args), PAGEZIP_INVALID) << "a field that is cut off is 0";
  EXPECT_THAT(pagezip_last_error(), HasSubstr("less room"));
  select.args.size = 0;
  EXPECT_EQ(select.run(&select.args), PAGEZIP_INVALID);
  EXPECT_EQ(select.run(nullptr), PAGEZIP_INVALID);
  EXPECT_EQ(pagezip_select_workspace_bytes(nullptr), 0U);
}

// ---- select ----

TEST(CAbi, SelectsAsTheEngineDoesOnForeignStrides) {
  Prng prng(1);
  for (int round = 0; round < 200; ++round) {
    ScoreSet set{static_cast<int>(prng.range(1, 4)),
                 static_cast<int>(prng.range(1, 4)),
                 prng.range(1, 60),
                 {}};
    for (int64_t i = 0; i < set.pairs(); ++i) {
      set.scores.push_back(static_cast<float>(prng.range(-5, 5)));  // with many ties
    }
    const int64_t keep = prng.range(0, set.pairs());
    const int64_t floor = prng.range(0, 3);
    const auto expected = std::get<KeptSets>(select_global(set, keep, floor));

    // [heads, layers, tokens + padding], the padding larger than any score.
    const int64_t padded = set.tokens + prng.range(0, 5);
    std::vector<float> foreign(static_cast<size_t>(padded * set.layers * set.heads), 99.0F);
    for (int layer = 0; layer < set.layers; ++layer) {
      for (int head = 0; head < set.heads; ++head) {
        std::copy_n(set.scores.begin() + (layer * set.heads + head) * set.tokens, set.tokens,
                    foreign.begin() + (head * set.layers + layer) * padded);
      }
    }
    pagezip_select_args args{};
    args.size = sizeof args;
    args.scores = foreign.data();
    args.layer_stride = padded;
    args.head_stride = padded * set.layers;
    args.tokens = set.tokens;
    args.layers = set.layers;
    args.heads = set.heads;
    args.keep = keep;
    args.min_per_head = floor;
    std::vector<uint64_t> first(expected.first.size());
    std::vector<uint32_t> pairs(expected.pairs.size());
    args.first = first.data();
    args.pairs = pairs.data();
    args.pairs_max = static_cast<int64_t>(pairs.size());
    const AlignedBytes workspace(pagezip_select_workspace_bytes(&args));
    ASSERT_EQ(pagezip_select(&args, workspace.data(), workspace.size()), PAGEZIP_OK)
        << pagezip_last_error();
    EXPECT_THAT(first, ElementsAreArray(expected.first));
    EXPECT_THAT(pairs, ElementsAreArray(expected.pairs));
  }
}

TEST(CAbi, SelectRefusesWhatCantBe) {
  SelectFixture select;
  const auto refuses = [&](auto change, const char* why) {
    SelectFixture changed;
    change(changed);
    EXPECT_EQ(changed.run(&changed.args), PAGEZIP_INVALID);
    EXPECT_THAT(pagezip_last_error(), HasSubstr(why));
  };
  refuses([](SelectFixture& s) { s.args.keep = -1; }, "keep");
  refuses([](SelectFixture& s) { s.args.min_per_head = -1; }, "min_per_head");
  refuses([](SelectFixture& s) { s.args.layers = -1; }, "range");
  refuses([](SelectFixture& s) { s.args.tokens = INT64_MAX; }, "range");
  refuses([](SelectFixture& s) { s.args.layers = s.args.heads = INT32_MAX; }, "range");
  refuses([](SelectFixture& s) { s.args.scores = nullptr; }, "scores");
  refuses([](SelectFixture& s) { s.args.first = nullptr; }, "first");
  refuses([](SelectFixture& s) { s.args.pairs = nullptr; }, "pairs");
  refuses([](SelectFixture& s) { s.args.pairs_max = 1; }, "less room");
  refuses([](SelectFixture& s) { s.args.head_stride = -1; }, "stride");
  refuses([](SelectFixture& s) { s.workspace = s.workspace.subspan(4); }, "aligned");
  refuses([](SelectFixture& s) { s.workspace = s.workspace.first(64); }, "too small");
}

TEST(CAbi, CountsWhatIsKept) {
  EXPECT_EQ(pagezip_keep_count(10, 0.3), 3);
  EXPECT_EQ(pagezip_keep_count(10, 1), 10);
  EXPECT_EQ(pagezip_keep_count(10, 0), 0);
  EXPECT_EQ(pagezip_keep_count(10, NAN), 0);
  EXPECT_EQ(pagezip_keep_count(-10, 0.5), 0);
}

// ---- merge ----

TEST(CAbi, MergesAttentionOverTwoSetsOfPairs) {
  // One query, logits and values of five pairs; attention over the first `cut` and over the rest.
  const double logits[] = {0.5, -2, 3, 80, 79};
  const double values[] = {1, 2, 3, 4, 5};
  const auto attend = [&](int begin, int end, float& lse) {
    double max = -kInfinity;
    for (int i = begin; i < end; ++i) max = std::max(max, logits[i]);
    double sum = 0;
    double out = 0;
    for (int i = begin; i < end; ++i) {
      sum += std::exp(logits[i] - max);
      out += std::exp(logits[i] - max) * values[i];
    }
    lse = static_cast<float>(sum == 0 ? -kInfinity : max + std::log(sum));
    return static_cast<float>(sum == 0 ? NAN : out / sum);  // garbage where there is nothing
  };
  float whole_lse = 0;
  const float whole = attend(0, 5, whole_lse);
  for (int cut = 0; cut <= 5; ++cut) {
    float into_lse = 0;
    float from_lse = 0;
    float into = attend(0, cut, into_lse);
    const float from = attend(cut, 5, from_lse);
    pagezip_merge_args args{};
    args.size = sizeof args;
    args.rows = 1;
    args.heads = 1;
    args.head_dim = 1;
    args.into_out = &into;
    args.into_lse = &into_lse;
    args.from_out = &from;
    args.from_lse = &from_lse;
    ASSERT_EQ(pagezip_merge(&args), PAGEZIP_OK);
    EXPECT_NEAR(into, whole, 1e-5) << cut;
    EXPECT_NEAR(into_lse, whole_lse, 1e-5) << cut;
  }
}

TEST(CAbi, MergeWalksRowsAndHeadsByTheirStrides) {
  // Rows of 2 heads with head_dim 2, kept 5 floats apart; equal LSEs, so outputs are averaged.
  std::vector<float> into = {0, 0, 0, 0, -1, 0, 0, 0, 0, -1};
  const std::vector<float> from = {2, 4, 6, 8, 10, 12, 14, 16};
  std::vector<float> into_lse = {1, 1, -1, 1, 1, -1};
  const std::vector<float> from_lse = {1, 1, 1, -kInfinity};
  pagezip_merge_args args{};
  args.size = sizeof args;
  args.rows = 2;
  args.heads = 2;
  args.head_dim = 2;
  args.into_out = into.data();
  args.into_out_stride = 5;
  args.into_lse = into_lse.data();
  args.into_lse_stride = 3;
  args.from_out = from.data();
  args.from_out_stride = 4;
  args.from_lse = from_lse.data();
  args.from_lse_stride = 2;
  ASSERT_EQ(pagezip_merge(&args), PAGEZIP_OK);
  EXPECT_THAT(into, ElementsAre(1, 2, 3, 4, -1, 5, 6, 0, 0, -1));
  EXPECT_FLOAT_EQ(into_lse[2], -1);
  EXPECT_FLOAT_EQ(into_lse[0], 1 + std::log(2.0F));
  EXPECT_FLOAT_EQ(into_lse[4], 1);
  args.rows = -1;
  EXPECT_EQ(pagezip_merge(&args), PAGEZIP_INVALID);
}

}  // namespace
}  // namespace pagezip
