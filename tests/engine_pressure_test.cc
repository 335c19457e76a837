// An engine with little memory and much to do: everything ends, and nothing is left behind.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/prng.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

std::vector<TokenId> tokens(const Model& model, Prng& prng, int64_t count) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (TokenId& id : ids) {
    id = static_cast<TokenId>(prng.below(static_cast<uint64_t>(model.config().vocab)));
  }
  return ids;
}

GenerateRequest request(std::vector<TokenId> prompt, int64_t output_max) {
  GenerateRequest r;
  r.tenant = "a";
  r.prompt = std::move(prompt);
  r.output_max = output_max;
  r.ignore_end = true;
  return r;
}

DocumentRequest document(const std::string& id, std::vector<TokenId> context) {
  DocumentRequest d;
  d.tenant = "a";
  d.listing.id = id;
  d.context = std::move(context);
  d.prompts = {{1, 2, 3}, {4, 5, 6}, {7, 8}};
  d.versions = {{0.3, false, 0}};
  return d;
}

// Half-done documents that hold every block would end this.
TEST(EnginePressure, DocumentsAndChatsThatDontFitTogetherAllFinish) {
  TinyWorld world("llama-gqa3");
  Prng prng(1);
  constexpr int64_t kDocument = 320;  // tokens: 20 blocks
  world.options.pool_blocks = 64;     // 3.2 of them
  const auto engine = world.engine();
  std::vector<std::shared_ptr<DocumentTask>> tasks;
  std::vector<std::shared_ptr<OutputStream>> chats;
  for (int i = 0; i < 20; ++i) {
    tasks.push_back(engine->create_document(
        document("doc" + std::to_string(i), tokens(world.model, prng, kDocument))));
    if (i < 8) {
      chats.push_back(engine->submit(request(tokens(world.model, prng, 30), 60)));
    }
  }
  TinyWorld::drive(*engine);
  for (const auto& task : tasks) {
    EXPECT_EQ(task->status().state, DocumentTask::State::kDone) << task->status().error;
  }
  for (const auto& chat : chats) {
    const auto events = TinyWorld::read(*chat);
    ASSERT_EQ(events.size(), 61u);
    EXPECT_EQ(events.back().finish, FinishReason::kLength);
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.work.jobs_done, 20);
  EXPECT_EQ(stats.documents.published, 40) << "with every pair, then compressed";
  EXPECT_EQ(stats.histograms.queue_us.count(), 8);
  EXPECT_EQ(stats.histograms.first_token_us.count(), 8);
  EXPECT_GT(stats.histograms.step(StepKind::kScore).count(), 0);
  EXPECT_GT(stats.histograms.step(StepKind::kCompact).count(), 0);
  EXPECT_GT(stats.histograms.delay_us.max(), 0);
  EXPECT_EQ(stats.blocks_total, 64);
}

/// Random work, so much that the pool is always full.
class Soak {
 public:
  explicit Soak(const std::string& model) : world_(model) {
    world_.options.pool_blocks = 48 * static_cast<int64_t>(world_.model.kv_groups().size());
    world_.options.scheduler.output_min = 2;  // so that memory runs out later
    engine_ = world_.engine();
  }

  void run(int64_t requests) {
    // Far more at a time than fit, but not ever more: then most of a long run would be queueing.
    for (int64_t sent = 0; sent < requests || !open_.empty();) {
      if (sent < requests && open_.size() < 100) {
        submit(sent++);
      }
      for (int64_t steps = prng_.range(0, 1); steps > 0; --steps) {
        engine_->step();
      }
      if (prng_.chance(0.1) && !open_.empty()) {
        engine_->cancel(open_[prng_.below(open_.size())]->id());
      }
      std::erase_if(open_, [&](const auto& stream) {
        for (const OutputEvent& event : TinyWorld::read(*stream)) {
          refused_ += event.refusal.has_value() ? 1 : 0;
          tokens_ += event.token.has_value() ? 1 : 0;
        }
        return stream->done();
      });
    }
    TinyWorld::drive(*engine_);
  }
  void expect_as_it_began() {
    for (int64_t i = 0; i < documents_; ++i) {
      engine_->drop_document({"a", {}}, "doc" + std::to_string(i));
    }
    TinyWorld::drive(*engine_);
    engine_->index().clear();
    EXPECT_TRUE(engine_->scheduler().idle());
    EXPECT_EQ(engine_->pool().blocks_free(), engine_->pool().blocks_total());
    EXPECT_EQ(engine_->pool().blocks_reserved(), 0);
    EXPECT_EQ(engine_->pool().audit(), "");
  }

  int64_t refused() const { return refused_; }
  int64_t tokens() const { return tokens_; }
  Stats stats() { return engine_->stats().work; }

 private:
  void submit(int64_t number) {
    if (prng_.chance(0.03)) {
      engine_->create_document(document("doc" + std::to_string(documents_++),
                                        pagezip::tokens(world_.model, prng_, prng_.range(1, 200))));
    }
    if (prng_.chance(0.02) && documents_ > 0) {
      engine_->drop_document({"a", {}}, recent_document());
    }
    std::vector<TokenId> prompt = pagezip::tokens(world_.model, prng_, prng_.range(1, 60));
    if (prng_.chance(0.5)) {
      prompt.insert(prompt.begin(), shared_.begin(), shared_.end());
    }
    GenerateRequest r = request(std::move(prompt), prng_.range(1, 40));
    r.choices = prng_.chance(0.1) ? 3 : 1;
    r.ignore_end = prng_.chance(0.5);
    r.sampling.temperature = prng_.chance(0.5) ? 1 : 0;
    r.sampling.seed = static_cast<uint64_t>(number);
    if (prng_.chance(0.4) && documents_ > 0) {
      r.document = recent_document();
    }
    if (auto stream = engine_->submit(std::move(r))) {
      open_.push_back(std::move(stream));
    }
  }

  /// Maybe not there any more. Of all that ever were most aren't.
  std::string recent_document() {
    const int64_t age = prng_.range(0, std::min<int64_t>(documents_, 20) - 1);
    return "doc" + std::to_string(documents_ - 1 - age);
  }

  TinyWorld world_;
  Prng prng_{7};
  std::vector<TokenId> shared_ = pagezip::tokens(world_.model, prng_, 40);
  std::unique_ptr<Engine> engine_;
  std::vector<std::shared_ptr<OutputStream>> open_;
  int64_t documents_ = 0;
  int64_t refused_ = 0;
  int64_t tokens_ = 0;
};

// PAGEZIP_SOAK=n: that many requests.
TEST(EnginePressure, ASoakLeavesThePoolAsItBegan) {
  const char* wanted = std::getenv("PAGEZIP_SOAK");
  const int64_t requests = wanted == nullptr ? 400 : std::strtoll(wanted, nullptr, 10);
  for (const char* model : {"llama-gqa3", "gemma3-plain"}) {
    SCOPED_TRACE(model);
    Soak soak(model);
    soak.run(requests / 2);
    soak.expect_as_it_began();
    const Stats stats = soak.stats();
    std::printf(
        "%s: %lld requests finished, %lld cancelled, %lld refused, %lld tokens, %lld jobs, "
        "%lld preemptions, %lld sent back\n",
        model, static_cast<long long>(stats.requests_finished),
        static_cast<long long>(stats.requests_cancelled), static_cast<long long>(soak.refused()),
        static_cast<long long>(soak.tokens()), static_cast<long long>(stats.jobs_done),
        static_cast<long long>(stats.preemptions), static_cast<long long>(stats.jobs_sent_back));
    EXPECT_GT(stats.requests_finished, requests / 8);
    EXPECT_GT(stats.jobs_done, 0);
    EXPECT_GT(stats.preemptions, 0);
  }
}

}  // namespace
}  // namespace pagezip
