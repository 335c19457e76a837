// Log-probabilities of a prompt's own tokens: what the model says, whatever runs beside the
// request, and each of them once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "engine/pipeline.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

constexpr int kTops = 4;

/// What came out of a stream.
struct Answered {
  std::vector<TokenLogprob> prompt;
  std::vector<TokenId> tokens;  // of all choices
  std::vector<FinishReason> finishes;
};

class PromptLogprobsTest : public testing::TestWithParam<const char*>, protected TinyWorld {
 protected:
  PromptLogprobsTest() : TinyWorld(GetParam()) {}

  GenerateRequest request(std::vector<TokenId> prompt, int64_t output_max) const {
    GenerateRequest r;
    r.tenant = "a";
    r.prompt = std::move(prompt);
    r.output_max = output_max;
    r.ignore_end = true;
    r.prompt_logprobs = kTops;
    return r;
  }
  GenerateRequest plain(std::vector<TokenId> prompt, int64_t output_max) const {
    GenerateRequest r = request(std::move(prompt), output_max);
    r.prompt_logprobs = -1;
    return r;
  }
  DocumentRequest full_document() const {
    DocumentRequest document;
    document.tenant = "a";
    document.listing.id = "doc";
    document.prefix = tokens(5, 1);
    document.context = tokens(40, 2);
    return document;
  }
  static Answered answered(OutputStream& stream) {
    Answered a;
    for (const OutputEvent& event : read(stream)) {
      EXPECT_FALSE(event.refusal.has_value()) << event.refusal->message;
      if (!event.prompt.empty()) {
        EXPECT_TRUE(a.tokens.empty() && a.finishes.empty()) << "after the first output";
        a.prompt.insert(a.prompt.end(), event.prompt.begin(), event.prompt.end());
      } else if (event.token.has_value()) {
        a.tokens.push_back(*event.token);
      } else if (event.finish.has_value()) {
        a.finishes.push_back(*event.finish);
      }
    }
    return a;
  }
  Answered alone(const GenerateRequest& r) {
    const auto e = engine();
    const auto stream = e->submit(r);
    drive(*e);
    return answered(*stream);
  }
  /// `logits`: behind the tokens before `token`.
  static void expect_of(const TokenLogprob& found, std::span<const float> logits, TokenId token) {
    const double sum = std::accumulate(logits.begin(), logits.end(), 0.0,
                                       [](double s, float x) { return s + std::exp(double{x}); });
    const auto logprob = [&](TokenId id) {
      return logits[static_cast<size_t>(id)] - std::log(sum);
    };
    EXPECT_EQ(found.token, token);
    EXPECT_NEAR(found.logprob, logprob(token), 1e-4);
    std::vector<float> sorted(logits.begin(), logits.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    ASSERT_EQ(found.tops.size(), size_t{kTops});
    for (size_t i = 0; i < kTops; ++i) {
      EXPECT_NEAR(found.tops[i].logprob, logprob(found.tops[i].token), 1e-4);
      EXPECT_NEAR(found.tops[i].logprob, sorted[i] - std::log(sum), 1e-4);
    }
  }
  std::unique_ptr<Pipeline> pipeline() {
    PipelineOptions o;
    o.chunk_tokens = options.chunk_tokens;
    return std::make_unique<Pipeline>(model, cpu_kernels(), ActivationType::kF32, threads, o, 128);
  }
};

bool go_on(Stage, int64_t, int64_t) { return true; }

TEST_P(PromptLogprobsTest, AreThoseOfEachTokenBehindTheOnesBeforeIt) {
  const std::vector<TokenId> prompt = tokens(45, 1);
  const Answered a = alone(request(prompt, 2));
  ASSERT_EQ(a.prompt.size(), prompt.size() - 1);
  EXPECT_EQ(a.tokens.size(), 2u);
  const auto p = pipeline();
  for (size_t i = 1; i < prompt.size(); ++i) {
    SCOPED_TRACE(i);
    p->prefill({}, std::span(prompt).first(i), go_on);
    expect_of(a.prompt[i - 1], p->prefill_logits(), prompt[i]);
  }
}

TEST_P(PromptLogprobsTest, BehindADocumentTheyAreOfTheRequestsOwnTokens) {
  const DocumentRequest document = full_document();
  const auto e = engine();
  e->create_document(document);
  drive(*e);
  GenerateRequest question = request(tokens(20, 3), 1);
  question.document = "doc";
  const auto stream = e->submit(question);
  drive(*e);
  const Answered a = answered(*stream);
  ASSERT_EQ(a.prompt.size(), question.prompt.size() - 1);
  const auto p = pipeline();
  const auto full = p->prefill(document.prefix, document.context, go_on);
  Question own(*p, full, 20);
  for (size_t i = 1; i < question.prompt.size(); ++i) {
    SCOPED_TRACE(i);
    expect_of(a.prompt[i - 1], own.append({&question.prompt[i - 1], 1}), question.prompt[i]);
  }
}

TEST_P(PromptLogprobsTest, AreTheSameHoweverThePromptIsCut) {
  const GenerateRequest r = request(tokens(100, 1), 3);
  const Answered whole = alone(r);
  for (const int64_t rows : {1, 7, 16, 33}) {
    SCOPED_TRACE(rows);
    options.scheduler.rows_max = rows;
    const Answered cut = alone(r);
    EXPECT_EQ(cut.prompt, whole.prompt);
    EXPECT_EQ(cut.tokens, whole.tokens);
  }
}

TEST_P(PromptLogprobsTest, AreTheSameBesideOthers) {
  const GenerateRequest r = request(tokens(60, 1), 3);
  const Answered by_itself = alone(r);
  options.scheduler.rows_max = 24;
  const auto e = engine();
  std::vector<std::shared_ptr<OutputStream>> others;
  for (uint64_t seed = 10; seed < 15; ++seed) {
    others.push_back(e->submit(plain(tokens(20, seed), 30)));
    e->step();
  }
  const auto first = e->submit(r);
  const auto same_prompt = e->submit(plain(r.prompt, 3));
  const auto second = e->submit(r);
  drive(*e);
  for (OutputStream* stream : {first.get(), second.get()}) {
    EXPECT_EQ(stream->usage().cached_tokens, 0);
    const Answered a = answered(*stream);
    EXPECT_EQ(a.prompt, by_itself.prompt);
    EXPECT_EQ(a.tokens, by_itself.tokens);
  }
  EXPECT_EQ(answered(*same_prompt).tokens, by_itself.tokens);
}

TEST_P(PromptLogprobsTest, ReadNothingFromThePrefixCacheAndFillIt) {
  const GenerateRequest r = request(tokens(60, 1), 3);
  const Answered by_itself = alone(r);
  const auto e = engine();
  const auto ask = [&](const GenerateRequest& asked) {
    const auto stream = e->submit(asked);
    drive(*e);
    return stream;
  };
  for (int i = 0; i < 2; ++i) {
    const auto stream = ask(r);
    EXPECT_EQ(stream->usage().cached_tokens, 0);
    EXPECT_EQ(answered(*stream).prompt, by_itself.prompt);
  }
  const auto later = ask(plain(r.prompt, 3));
  EXPECT_GT(later->usage().cached_tokens, 0);
  const Answered a = answered(*later);
  EXPECT_TRUE(a.prompt.empty());
  EXPECT_EQ(a.tokens, by_itself.tokens);
}

TEST_P(PromptLogprobsTest, ChoicesShareThem) {
  GenerateRequest r = request(tokens(40, 1), 3);
  const Answered one = alone(r);
  r.choices = 2;
  const Answered two = alone(r);
  EXPECT_EQ(two.prompt, one.prompt);
  EXPECT_EQ(two.tokens.size(), 6u);
  EXPECT_EQ(two.finishes.size(), 2u);
}

TEST_P(PromptLogprobsTest, WithoutOutputOnlyThePromptIsComputed) {
  GenerateRequest r = request(tokens(40, 1), 0);
  const Answered scored = alone(r);
  EXPECT_EQ(scored.prompt, alone(request(r.prompt, 3)).prompt);
  EXPECT_TRUE(scored.tokens.empty());
  EXPECT_EQ(scored.finishes, std::vector{FinishReason::kLength});
  r.choices = 3;
  EXPECT_EQ(alone(r).finishes.size(), 3u);
  const Answered nothing = alone(request(tokens(1, 1), 0));
  EXPECT_TRUE(nothing.prompt.empty());
  EXPECT_EQ(nothing.finishes.size(), 1u);
  EXPECT_EQ(alone(plain(r.prompt, 0)).finishes.size(), 1u);
  r.output_max = -1;
  EXPECT_THROW(engine()->submit(r), Error);
}

TEST_P(PromptLogprobsTest, ACancelLeavesNothingBehind) {
  const GenerateRequest r = request(tokens(100, 1), 3);
  const Answered whole = alone(r);
  options.scheduler.rows_max = 16;
  const auto e = engine();
  const auto stream = e->submit(r);
  for (int i = 0; i < 3; ++i) {
    e->step();
  }
  e->cancel(stream->id());
  drive(*e);
  const Answered a = answered(*stream);
  EXPECT_EQ(a.finishes, std::vector{FinishReason::kCancelled});
  ASSERT_EQ(a.prompt.size(), 48u);
  EXPECT_TRUE(std::equal(a.prompt.begin(), a.prompt.end(), whole.prompt.begin()));
  e->index().clear();
  EXPECT_EQ(e->pool().blocks_in_use(), 0);
  EXPECT_EQ(e->pool().blocks_reserved(), 0);
}

TEST_P(PromptLogprobsTest, LogitsThatAreNotNumbersEndTheRequest) {
  const auto e = engine();
  e->create_document(full_document());
  drive(*e);
  constexpr int kNan = 0x7e;  // both bytes of an f16
  const auto info = e->store().info("doc");
  ASSERT_TRUE(info.has_value());
  const auto pages = e->store().pages({"doc", info->versions.back().number});
  std::memset(pages->segment(0).page(0, 0, 0), kNan,
              static_cast<size_t>(e->pool().geometry().page.page_bytes()));
  for (const int64_t output_max : {0, 3}) {
    GenerateRequest question = request(tokens(20, 3), output_max);
    question.document = "doc";
    question.choices = 2;
    const auto stream = e->submit(question);
    drive(*e);
    const Answered a = answered(*stream);
    EXPECT_TRUE(a.prompt.empty() && a.tokens.empty());
    EXPECT_EQ(a.finishes, (std::vector{FinishReason::kFailed, FinishReason::kFailed}));
  }
}

TEST_P(PromptLogprobsTest, AnEndTokenIsToldToo) {
  GenerateRequest r = request(tokens(10, 1), 8);
  r.ignore_end = false;
  r.choices = 8;
  r.top_logprobs = kTops;
  r.sampling.temperature = 100;  // about as good as any other token
  const auto e = engine();
  std::optional<OutputEvent> end;
  for (int i = 0; i < 200 && !end.has_value(); ++i) {
    r.sampling.seed += 1000;
    const auto stream = e->submit(r);
    drive(*e);
    for (const OutputEvent& event : read(*stream)) {
      EXPECT_EQ(event.end_token.has_value(), event.finish == FinishReason::kEnd);
      end = event.end_token.has_value() ? event : end;
    }
  }
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(tokenizer.is_end_of_generation(*end->end_token));
  EXPECT_LT(end->logprob, 0);
  EXPECT_EQ(end->tops.size(), size_t{kTops});
}

INSTANTIATE_TEST_SUITE_P(Models, PromptLogprobsTest, tiny_models(), tiny_model_name);

// The older request needs a block while the younger one's prompt is half done.
TEST(PromptLogprobs, NoneIsToldTwiceAfterAPreemption) {
  TinyWorld world("llama-gqa3");
  world.options.documents_share = 0;
  world.options.scheduler.output_min = 1;
  world.options.scheduler.rows_max = 8;
  GenerateRequest r;
  r.tenant = "a";
  r.prompt = world.tokens(96, 1);
  r.output_max = 5;
  r.ignore_end = true;
  r.prompt_logprobs = kTops;
  std::vector<TokenLogprob> results[2];
  for (const bool beside : {false, true}) {
    world.options.pool_blocks = beside ? 9 : 600;
    const auto e = world.engine();
    GenerateRequest older = r;
    older.prompt = world.tokens(26, 2);
    older.output_max = 60;
    older.prompt_logprobs = -1;
    const auto first = beside ? e->submit(older) : nullptr;
    for (int i = 0; i < 4; ++i) {
      e->step();
    }
    const auto stream = e->submit(r);
    TinyWorld::drive(*e);
    size_t outputs = 0;
    for (const OutputEvent& event : TinyWorld::read(*stream)) {
      ASSERT_FALSE(event.refusal.has_value()) << event.refusal->message;
      auto& result = results[beside ? 1 : 0];
      result.insert(result.end(), event.prompt.begin(), event.prompt.end());
      outputs += event.token.has_value() ? 1 : 0;
    }
    EXPECT_EQ(outputs, 5u);
    EXPECT_EQ(e->scheduler().stats().preemptions > 0, beside);
  }
  EXPECT_EQ(results[0].size(), 95u);
  EXPECT_EQ(results[1], results[0]);
}

}  // namespace
}  // namespace pagezip
