// What must not change a single bit: how the work is cut, on how many threads, in which page size,
// and whether pairs lie in uniform blocks or compacted pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "tests/golden_tests/pipeline_fixture.h"

namespace pagezip {
namespace {

constexpr ActivationType kQ8 = ActivationType::kQ8;

struct Outcome {
  std::vector<float> logits;   // after prefill
  std::vector<uint32_t> full;  // payload of the full document
  ScoreSet scores;
  std::vector<uint32_t> kept;       // pairs kept at 0.3
  std::vector<uint32_t> compacted;  // payload at 0.3
  std::vector<float> answer;        // logits of a question on the compacted document
};

struct Cut {
  int threads = 2;
  int page_tokens = 16;
  int64_t prefill_rows = 512;
  int64_t tile_rows = 256;
  bool chunks_reversed = false;
};

// Two chunks and a part, so that borders fall into units and pages.
Outcome run(const GoldenModel& golden, const Cut& cut) {
  const Model& model = load_model(golden, kQ8);
  const nlohmann::json json = golden_json(golden, "json");
  const GoldenText text(json);
  ThreadPool threads(cut.threads);
  PipelineOptions options;
  options.page_tokens = cut.page_tokens;
  options.prefill_rows = cut.prefill_rows;
  options.chunk_tokens = 200;
  Pipeline pipeline(model, cpu_kernels(), kQ8, threads, options, 1024);
  const auto full = pipeline.prefill(text.prefix, text.context, go_on);
  const PageLayout page = pipeline.pool().geometry().page;
  Outcome result;
  result.logits.assign(pipeline.prefill_logits().begin(), pipeline.prefill_logits().end());
  result.full = payload(*full, page);

  Transformer transformer(model, cpu_kernels(), kQ8, page, cut.tile_rows, threads);
  const auto tokens = static_cast<int64_t>(text.context.size());
  ScoreSlot slot(transformer, ScoreFunction::kProbability,
                 text.prompts.rows_max(tokens, options.chunk_tokens));
  ScoreJob job(transformer, slot, full, text.context, text.prompts, options.chunk_tokens);
  for (int64_t i = 0; i < job.chunks(); ++i) {
    job.run_chunk(cut.chunks_reversed ? job.chunks() - 1 - i : i);
  }
  result.scores = job.take();
  const KeptSets kept = Pipeline::select(result.scores, {0.3, Selector::kGlobal, 0});
  result.kept = kept.pairs;
  const auto compacted = pipeline.compact(full, kept, go_on);
  result.compacted = payload(*compacted, page);
  const auto question_ids = ids(json["ratios"]["0.3"]["answers"][0]["ids"]);
  Question question(pipeline, compacted, static_cast<int64_t>(question_ids.size()));
  const auto logits = question.append(question_ids);
  result.answer.assign(logits.begin(), logits.end());
  return result;
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.logits, b.logits);
  EXPECT_EQ(a.full == b.full, true);
  EXPECT_EQ(a.scores.scores == b.scores.scores, true);
  EXPECT_EQ(a.kept == b.kept, true);
  EXPECT_EQ(a.compacted == b.compacted, true);
  EXPECT_EQ(a.answer, b.answer);
}

class Invariance : public testing::TestWithParam<GoldenModel> {};

TEST_P(Invariance, CutsThreadsAndPageSizeChangeNoBit) {
  const Outcome base = run(GetParam(), {});
  EXPECT_FALSE(base.full.empty());
  const Cut cuts[] = {{.threads = 1},
                      {.threads = 3, .page_tokens = 32, .prefill_rows = 37, .tile_rows = 31},
                      {.threads = 1,
                       .page_tokens = 64,
                       .prefill_rows = 100,
                       .tile_rows = 100,
                       .chunks_reversed = true}};
  for (const Cut& cut : cuts) {
    SCOPED_TRACE(testing::Message() << "threads " << cut.threads << ", page " << cut.page_tokens
                                    << ", prefill rows " << cut.prefill_rows << ", tile rows "
                                    << cut.tile_rows << ", reversed " << cut.chunks_reversed);
    expect_same(base, run(GetParam(), cut));
  }
}

TEST_P(Invariance, RatioOneIsTheFullVersionBitForBit) {
  const Model& model = load_model(GetParam(), kQ8);
  const nlohmann::json json = golden_json(GetParam(), "json");
  const GoldenText text(json);
  ThreadPool threads(2);
  Pipeline pipeline(model, cpu_kernels(), kQ8, threads, {}, 2048);
  const auto full = pipeline.prefill(text.prefix, text.context, go_on);
  const ScoreSet scores = pipeline.score(full, text.context, text.prompts, go_on);
  const auto compacted =
      pipeline.compact(full, Pipeline::select(scores, {1.0, Selector::kGlobal, 0}), go_on);
  EXPECT_TRUE(compacted->compressed());
  for (const auto& row : json["ratios"]["1.0"]["answers"]) {
    const auto question_ids = ids(row["ids"]);
    Question on_full(pipeline, full, static_cast<int64_t>(question_ids.size()) + 8);
    Question on_compacted(pipeline, compacted, static_cast<int64_t>(question_ids.size()) + 8);
    std::vector<TokenId> next = question_ids;
    for (int token = 0; token < 8; ++token) {
      const auto view = on_full.append(next);
      const std::vector<float> expected(view.begin(), view.end());
      const auto logits = on_compacted.append(next);
      ASSERT_TRUE(std::equal(logits.begin(), logits.end(), expected.begin()));
      next = {best_token(expected)};
    }
  }
}

// A question of n tokens at once gives the bits of n tokens one by one: decode is prefill.
TEST_P(Invariance, OneByOneIsAllAtOnce) {
  const Model& model = load_model(GetParam(), kQ8);
  const nlohmann::json json = golden_json(GetParam(), "json");
  const GoldenText text(json);
  ThreadPool threads(2);
  Pipeline pipeline(model, cpu_kernels(), kQ8, threads, {}, 2048);
  const auto full = pipeline.prefill(text.prefix, text.context, go_on);
  const auto question_ids = ids(json["ratios"]["1.0"]["answers"][0]["ids"]);
  Question at_once(pipeline, full, static_cast<int64_t>(question_ids.size()));
  Question one_by_one(pipeline, full, static_cast<int64_t>(question_ids.size()));
  const auto view = at_once.append(question_ids);
  const std::vector<float> expected(view.begin(), view.end());
  std::span<const float> logits;
  for (const TokenId id : question_ids) {
    logits = one_by_one.append({&id, 1});
  }
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), expected.begin()));
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, testing::Values(kSmolLm2, kGemma3Long),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace pagezip
