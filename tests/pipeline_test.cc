// The pipeline's edges, on tiny models: documents of one token, a last chunk of one, no prefix,
// heads that keep nothing, scores that are equal or not numbers, shortages and cancelling.
#include "engine/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/prng.h"

namespace pagezip {
namespace {

using testing::HasSubstr;

bool go_on(Stage, int64_t, int64_t) { return true; }

class PipelineTest : public testing::Test {
 protected:
  PipelineTest()
      : model_(GgufFile::open(std::string(PAGEZIP_SOURCE_DIR) + "/tests/data/tiny/llama-gqa3.gguf"),
               cpu_kernels(), ActivationType::kF32, threads_, [](int64_t, int64_t) {}) {
    options_.chunk_tokens = 16;
  }

  std::unique_ptr<Pipeline> pipeline(int64_t blocks = 128) {
    return std::make_unique<Pipeline>(model_, cpu_kernels(), ActivationType::kF32, threads_,
                                      options_, blocks);
  }
  std::vector<TokenId> tokens(int64_t count, uint64_t seed) const {
    Prng prng(seed);
    std::vector<TokenId> ids(static_cast<size_t>(count));
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(prng.below(static_cast<uint64_t>(model_.config().vocab)));
    }
    return ids;
  }
  RepeatPrompts prompts() const { return {tokens(5, 101), tokens(7, 102), tokens(3, 103)}; }

  ThreadPool threads_{2};
  Model model_;
  PipelineOptions options_;
};

TEST_F(PipelineTest, DocumentsOfFewTokensCompress) {
  const std::vector<TokenId> prefix = tokens(5, 1);
  for (const int64_t count : {1, 2, 15, 16, 17, 33}) {  // 17 and 33: a last chunk of one token
    SCOPED_TRACE(count);
    const auto p = pipeline();
    const std::vector<TokenId> context = tokens(count, 2);
    const RepeatPrompts repeat = prompts();
    p->check_fits(5, count, &repeat);
    const auto full = p->prefill(prefix, context, go_on);
    const ScoreSet scores = p->score(full, context, repeat, go_on);
    ASSERT_EQ(scores.tokens, count);
    for (const float score : scores.scores) {
      EXPECT_TRUE(std::isfinite(score));
      EXPECT_LE(score, 1e-6f);  // the logarithm of a probability
    }
    const KeptSets kept = Pipeline::select(scores, {0.5, Selector::kGlobal, 0});
    EXPECT_EQ(kept.count(), scores.pairs() / 2);
    const auto compacted = p->compact(full, kept, go_on);
    EXPECT_EQ(compacted->logical_length(), 5 + count);
    Question question(*p, compacted, 3);
    for (const float logit : question.append(tokens(3, 3))) {
      ASSERT_TRUE(std::isfinite(logit));
    }
  }
}

TEST_F(PipelineTest, WithoutPrefixAHeadMayKeepNothing) {
  const auto p = pipeline();
  const std::vector<TokenId> context = tokens(40, 2);
  const auto full = p->prefill({}, context, go_on);
  ScoreSet scores = p->score(full, context, prompts(), go_on);
  // Head 0 of layer 0 loses everything.
  std::fill(scores.scores.begin(), scores.scores.begin() + scores.tokens, -1000.0f);
  const auto compacted =
      p->compact(full, Pipeline::select(scores, {0.3, Selector::kGlobal, 0}), go_on);
  EXPECT_EQ(compacted->retained(0, 0), 0);
  Question question(*p, compacted, 2);
  for (int token = 0; token < 2; ++token) {
    for (const float logit : question.append(tokens(1, 4))) {
      ASSERT_TRUE(std::isfinite(logit));
    }
  }
}

TEST_F(PipelineTest, EqualScoresKeepExactlyTheShareInOrder) {
  const ScoreSet scores{2, 2, 10, std::vector<float>(40, -1.0f)};
  const KeptSets kept = Pipeline::select(scores, {0.3, Selector::kGlobal, 0});
  EXPECT_EQ(kept.count(), 12);
  EXPECT_EQ(kept.head(0, 0).size(), 10u);
  EXPECT_THAT(kept.head(0, 1), testing::ElementsAre(0u, 1u));
}

TEST_F(PipelineTest, ScoresThatAreNoNumbersFailTheJobAndLeaveTheFullVersion) {
  const auto p = pipeline();
  const std::vector<TokenId> context = tokens(20, 2);
  const auto full = p->prefill(tokens(5, 1), context, go_on);
  Question before(*p, full, 2);
  const auto logits = before.append(tokens(2, 3));
  const std::vector<float> expected(logits.begin(), logits.end());
  ScoreSet scores = p->score(full, context, prompts(), go_on);
  scores.scores[17] = std::numeric_limits<float>::quiet_NaN();
  try {
    Pipeline::select(scores, {0.3, Selector::kGlobal, 0});
    FAIL() << "NaN was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    EXPECT_THAT(error.what(), HasSubstr("nan"));
  }
  Question after(*p, full, 2);
  const auto again = after.append(tokens(2, 3));
  EXPECT_TRUE(std::equal(again.begin(), again.end(), expected.begin()));
}

// A weight that is NaN must not be smoothed over anywhere between there and the selection.
TEST_F(PipelineTest, NanInTheCacheReachesTheScores) {
  const auto p = pipeline();
  const std::vector<TokenId> context = tokens(20, 2);
  const auto full = p->prefill(tokens(5, 1), context, go_on);
  const Segment segment = full->segment(0);
  const PageLayout page = p->pool().geometry().page;
  // Channel 3 of the key of pair 9 in layer 0, head 0.
  const uint16_t nan = 0x7e00;
  std::memcpy(segment.page(0, 0, 0) + (3 * page.page_tokens + 9) * 2, &nan, 2);
  const ScoreSet scores = p->score(full, context, prompts(), go_on);
  EXPECT_THROW(Pipeline::select(scores, {0.3, Selector::kGlobal, 0}), Error);
}

TEST_F(PipelineTest, RefusesWhatDoesNotFitBeforeAnyWork) {
  const auto p = pipeline();
  const RepeatPrompts repeat = prompts();
  EXPECT_THROW(p->check_fits(5, 0, &repeat), Error);
  const int64_t limit = p->context_max();
  const int64_t repeat_rows = repeat.rows_max(limit, options_.chunk_tokens);
  EXPECT_NO_THROW(p->check_fits(0, limit - repeat_rows, &repeat));
  EXPECT_THROW(p->check_fits(1, limit - repeat_rows, &repeat), Error);
  EXPECT_NO_THROW(p->check_fits(0, limit, nullptr));
  for (const double ratio : {0.0, -1.0, 1.5, std::nan("")}) {
    const ScoreSet scores{1, 1, 4, std::vector<float>(4, -1.0f)};
    EXPECT_THROW(Pipeline::select(scores, {ratio, Selector::kGlobal, 0}), Error) << ratio;
  }
}

TEST_F(PipelineTest, AShortPoolIsOneErrorAndGivesEverythingBack) {
  const auto p = pipeline(3);  // blocks of 16 positions
  try {
    p->prefill(tokens(5, 1), tokens(60, 2), go_on);
    FAIL() << "65 positions fitted into 48";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("pool is too small"));
  }
  EXPECT_EQ(p->pool().blocks_free(), 3);
  EXPECT_EQ(p->pool().blocks_reserved(), 0);
  const auto full = p->prefill(tokens(5, 1), tokens(40, 2), go_on);
  EXPECT_THROW(Question(*p, full, 10), Error);
  EXPECT_EQ(p->pool().audit(), "");
}

TEST_F(PipelineTest, CancellingAnyStageGivesEverythingBack) {
  for (const Stage stage : {Stage::kPrefill, Stage::kScore, Stage::kCompact}) {
    options_.prefill_rows = 16;
    const auto p = pipeline();
    const auto stop_at = [&](Stage now, int64_t, int64_t) { return now != stage; };
    EXPECT_THROW(
        {
          const std::vector<TokenId> context = tokens(40, 2);
          const auto full = p->prefill(tokens(5, 1), context, stop_at);
          const ScoreSet scores = p->score(full, context, prompts(), stop_at);
          p->compact(full, Pipeline::select(scores, {0.3, Selector::kGlobal, 0}), stop_at);
        },
        Cancelled);
    EXPECT_EQ(p->pool().blocks_in_use(), 0);
    EXPECT_EQ(p->pool().blocks_reserved(), 0);
    EXPECT_EQ(p->pool().audit(), "");
  }
}

TEST_F(PipelineTest, QuestionsOnOneDocumentAreIndependent) {
  const auto p = pipeline();
  const std::vector<TokenId> context = tokens(50, 2);
  const auto full = p->prefill(tokens(5, 1), context, go_on);
  const auto ask = [&](uint64_t seed) {
    Question question(*p, full, 4);
    const auto logits = question.append(tokens(4, seed));
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> first = ask(7);
  const std::vector<float> other = ask(8);
  EXPECT_NE(first, other);
  EXPECT_EQ(ask(7), first);
}

// More rows than a batch: the scores of a chunk don't depend on the tiles, and a document's scores
// do depend on its text being in the cache.
TEST_F(PipelineTest, ScoresNeedTheDocument) {
  const auto p = pipeline();
  const std::vector<TokenId> context = tokens(48, 2);
  const auto full = p->prefill(tokens(5, 1), context, go_on);
  const ScoreSet scores = p->score(full, context, prompts(), go_on);
  const auto other = p->prefill(tokens(5, 1), tokens(48, 3), go_on);
  const ScoreSet without = p->score(other, context, prompts(), go_on);
  EXPECT_NE(scores.scores, without.scores);
}

}  // namespace
}  // namespace pagezip
