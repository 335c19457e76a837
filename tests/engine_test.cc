// The engine on tiny models: mixes of everything give what each request gets alone, and what comes
// out of streams and tasks is as their headers say.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "base/error.h"
#include "tests/engine_mix.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class EngineTest : public testing::TestWithParam<const char*>, protected TinyWorld {
 protected:
  EngineTest() : TinyWorld(GetParam()) {}
  GenerateRequest request(int64_t output_max) const {
    GenerateRequest r;
    r.tenant = "a";
    r.prompt = tokenizer.encode("abc 123 abc", false);
    r.output_max = output_max;
    r.ignore_end = true;
    return r;
  }
  DocumentRequest document() const {
    DocumentRequest d;
    d.tenant = "a";
    d.listing.id = "doc";
    d.prefix = tokenizer.encode("a b c", false);
    d.context = tokenizer.encode("one two three abc abc 123 four five six seven", false);
    d.prompts = {d.prefix, d.prefix, d.prefix};
    d.versions = {{0.5, false, 0}};
    return d;
  }
};

TEST_P(EngineTest, MixesGiveWhatEachRequestGetsAlone) {
  const MixModel on{model, tokenizer, ActivationType::kF32, threads};
  Stats all;
  int compared = 0;
  for (uint64_t seed = 1; seed <= 25 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    EngineMix mix(on, {}, seed);
    mix.run();
    compared += mix.compared;
    all.tokens_cached += mix.stats.tokens_cached;
    all.forks += mix.stats.forks;
    all.versions += mix.stats.versions;
  }
  EXPECT_GT(compared, 80);
  EXPECT_GT(all.tokens_cached, 0);
  EXPECT_GT(all.forks, 0);
  EXPECT_GT(all.versions, 25);
}

TEST_P(EngineTest, ADocumentIsMadeUsedAndDropped) {
  const auto e = engine();
  const auto task = e->create_document(document());
  drive(*e);
  const DocumentTask::Status status = task->status();
  ASSERT_EQ(status.state, DocumentTask::State::kDone) << status.error;
  ASSERT_EQ(status.versions.size(), 1u);
  EXPECT_LE(status.versions[0].kv_bytes, status.full_bytes);
  GenerateRequest question = request(5);
  question.document = "doc";
  const auto stream = e->submit(question);
  drive(*e);
  EXPECT_EQ(read(*stream).size(), 6u);
  EXPECT_EQ(stream->usage().keep_ratio, 0.5);
  EXPECT_EQ(stream->usage().document_tokens,
            static_cast<int64_t>(document().prefix.size() + document().context.size()));
  question.tenant = "b";
  const auto stranger = e->submit(question);
  drive(*e);
  ASSERT_TRUE(read(*stranger).at(0).refusal.has_value()) << "another tenant's";
  auto dropped = e->drop_document({"a", {}}, "doc");
  question.tenant = "a";
  const auto late = e->submit(question);
  drive(*e);
  EXPECT_EQ(read(*late).at(0).refusal->kind, RefusalKind::kNotFound);
  e->index().clear();
  EXPECT_EQ(e->pool().blocks_in_use(), 0);
}

TEST_P(EngineTest, StopStringsEndAChoice) {
  const auto e = engine();
  GenerateRequest plain = request(40);
  const auto first = e->submit(plain);
  drive(*e);
  std::string text;
  for (const OutputEvent& event : read(*first)) {
    text += event.text;
  }
  ASSERT_GT(text.size(), 4u);
  const std::string stop = text.substr(text.size() / 2, 2);
  plain.stops = {stop};
  const auto second = e->submit(plain);
  drive(*e);
  std::string stopped;
  std::optional<FinishReason> finish;
  for (const OutputEvent& event : read(*second)) {
    stopped += event.text;
    finish = event.finish;
  }
  EXPECT_EQ(stopped, text.substr(0, text.find(stop)));
  EXPECT_EQ(finish, FinishReason::kStopString);
  EXPECT_TRUE(second->done());
}

TEST_P(EngineTest, LogprobsAreThoseOfTheLogits) {
  const auto e = engine();
  GenerateRequest r = request(3);
  r.top_logprobs = 4;
  const auto stream = e->submit(r);
  drive(*e);
  for (const OutputEvent& event : read(*stream)) {
    if (!event.token.has_value()) {
      continue;
    }
    ASSERT_EQ(event.tops.size(), 4u);
    EXPECT_EQ(event.tops[0].token, *event.token) << "greedy";
    EXPECT_EQ(event.tops[0].logprob, event.logprob);
    EXPECT_LT(event.logprob, 0);
    EXPECT_GE(event.tops[0].logprob, event.tops[1].logprob);
  }
}

TEST_P(EngineTest, BadRequestsAreRefusedAndTheOthersGoOn) {
  const auto e = engine();
  GenerateRequest empty = request(3);
  empty.prompt.clear();
  EXPECT_THROW(e->submit(empty), Error);
  GenerateRequest foreign = request(3);
  foreign.prompt[0] = model.config().vocab;
  EXPECT_THROW(e->submit(foreign), Error);
  GenerateRequest cold = request(3);
  cold.sampling.temperature = -1;
  EXPECT_THROW(e->submit(cold), Error);
  GenerateRequest huge = request(3);
  huge.prompt.assign(static_cast<size_t>(e->context_max()), 1);
  const auto refused = e->submit(huge);
  const auto good = e->submit(request(3));
  drive(*e);
  EXPECT_THAT(read(*refused).at(0).refusal->message, HasSubstr("too long"));
  EXPECT_EQ(read(*good).size(), 4u);
}

TEST_P(EngineTest, RunsOnItsOwnThread) {
  const auto e = engine();
  e->start();
  const auto task = e->create_document(document());
  std::vector<std::shared_ptr<OutputStream>> streams;
  for (int i = 0; i < 10; ++i) {
    streams.push_back(e->submit(request(10)));
  }
  EXPECT_TRUE(task->wait(milliseconds(60'000)));
  for (const auto& stream : streams) {
    size_t tokens = 0;
    while (!stream->done()) {
      const auto event = stream->next(milliseconds(60'000));
      ASSERT_TRUE(event.has_value());
      tokens += event->token.has_value() ? 1 : 0;
    }
    EXPECT_EQ(tokens, 10u);
  }
  const auto endless = e->submit(request(1'000'000));
  ASSERT_TRUE(endless->next(milliseconds(60'000)).has_value());
  e->cancel(endless->id());
  std::optional<FinishReason> finish;
  while (!endless->done()) {
    if (const auto event = endless->next(milliseconds(60'000))) {
      finish = event->finish;
    }
  }
  EXPECT_EQ(finish, FinishReason::kCancelled);
  e->stop();
}

INSTANTIATE_TEST_SUITE_P(Models, EngineTest, tiny_models(), tiny_model_name);

}  // namespace
}  // namespace pagezip
