// Random mixes of requests and documents on one engine, and the same work alone: the tokens must be
// the same. Shared by the tests on tiny models and on real ones.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "engine/engine.h"

namespace pagezip {

/// A model to run mixes on. Borrows everything.
struct MixModel {
  const Model& model;
  const Tokenizer& tokenizer;
  ActivationType activations;
  ThreadPool& threads;
};

struct MixLimits {
  int64_t prompt_max = 60;
  int64_t output_max = 20;
  int64_t document_max = 120;
  int64_t chunk_tokens = 48;
};

class EngineMix {
 public:
  EngineMix(const MixModel& on, const MixLimits& limits, uint64_t seed)
      : on_(on), limits_(limits), prng_(seed) {}

  /// Expects every request to get the tokens that it gets alone.
  void run() {
    make_work();
    const std::vector<std::vector<TokenId>> mixed = run_together();
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (cancelled_[i]) {
        continue;
      }
      ASSERT_EQ(mixed[i], run_alone(requests_[i])) << "request " << i;
      ++compared;
    }
  }

  Stats stats;       // of the mixed run
  int compared = 0;  // requests

 private:
  using Stream = std::shared_ptr<OutputStream>;

  std::vector<TokenId> tokens(int64_t count) {
    std::vector<TokenId> ids(static_cast<size_t>(count));
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(prng_.below(static_cast<uint64_t>(on_.model.config().vocab)));
    }
    return ids;
  }

  EngineOptions options(int64_t blocks) const {
    EngineOptions o;
    o.pool_blocks = blocks;
    o.chunk_tokens = limits_.chunk_tokens;
    o.cost = CostCoefficients{};
    o.cost->layers = on_.model.config().layers;
    return o;
  }
  std::unique_ptr<Engine> engine(const EngineOptions& o) const {
    return std::make_unique<Engine>(on_.model, on_.tokenizer, cpu_kernels(), on_.activations,
                                    on_.threads, o, clock_);
  }
  int64_t blocks(int64_t tokens) const {
    return (tokens / 16 + 3) * static_cast<int64_t>(on_.model.kv_groups().size());
  }

  void make_work() {
    document_.tenant = "a";
    document_.listing.id = "doc";
    document_.prefix = tokens(prng_.range(0, 20));
    document_.context = tokens(prng_.range(1, limits_.document_max));
    document_.prompts = {tokens(5), tokens(7), tokens(3)};
    document_.versions = {{0.3, false, 0}, {0.6, true, 0}};
    document_.keep_full = true;
    const std::vector<TokenId> shared = tokens(limits_.prompt_max);
    const int64_t count = prng_.range(3, 8);
    for (int64_t i = 0; i < count; ++i) {
      GenerateRequest request;
      request.tenant = "a";
      request.prompt = tokens(prng_.range(1, limits_.prompt_max));
      const auto same = static_cast<int64_t>(request.prompt.size());
      std::copy_n(shared.begin(), prng_.range(0, same), request.prompt.begin());
      request.output_max = prng_.range(1, limits_.output_max);
      request.ignore_end = prng_.chance(0.5);
      request.choices = prng_.chance(0.2) ? 2 : 1;
      request.sampling.temperature = request.choices > 1 ? 0.8 : 0;
      request.sampling.seed = static_cast<uint64_t>(i);
      if (prng_.chance(0.5)) {
        request.document = "doc";
        request.keep_ratio = prng_.chance(0.3) ? 1.0 : prng_.chance(0.5) ? 0.3 : 0.6;
      }
      requests_.push_back(request);
    }
    cancelled_.assign(requests_.size(), false);
  }

  std::vector<std::vector<TokenId>> run_together() {
    // Barely enough memory: eviction, preemption and sending back happen.
    const int64_t one = blocks(limits_.prompt_max + limits_.output_max + 64);
    const int64_t document = 2 * blocks(limits_.document_max + 24);
    EngineOptions o = options(one + 2 * document + prng_.range(0, one));
    o.scheduler.rows_max = prng_.chance(0.5) ? prng_.range(8, 40) : 256;
    o.scheduler.idle_step_us = static_cast<double>(prng_.range(5'000, 50'000));
    o.scheduler.output_min = prng_.range(1, 8);
    const auto e = engine(o);
    const auto task = e->create_document(document_);
    std::vector<Stream> streams(requests_.size());
    std::vector<size_t> waiting;
    for (size_t i = requests_.size(); i-- > 0;) {
      waiting.push_back(i);
    }
    while (e->step() || !waiting.empty()) {
      const bool ready = task->status().state == DocumentTask::State::kDone;
      if (!waiting.empty() && prng_.chance(0.3)) {
        const size_t i = waiting.back();
        // Requests on the document come when it is there; the others run while it is made.
        if (requests_[i].document.empty() || ready) {
          waiting.pop_back();
          streams[i] = e->submit(requests_[i]);
        } else {
          std::rotate(waiting.begin(), waiting.end() - 1, waiting.end());
        }
      }
      if (prng_.chance(0.02)) {
        const auto i = static_cast<size_t>(prng_.below(requests_.size()));
        if (streams[i] != nullptr && requests_.size() > 4) {
          cancelled_[i] = true;
          e->cancel(streams[i]->id());
        }
      }
    }
    stats = e->scheduler().stats();
    std::vector<std::vector<TokenId>> results;
    for (const Stream& stream : streams) {
      results.push_back(read(*stream));
    }
    return results;
  }

  std::vector<TokenId> run_alone(const GenerateRequest& request) {
    const auto e = engine(options(blocks(4096)));
    if (!request.document.empty()) {
      e->create_document(document_);
    }
    while (e->step()) {
    }
    const Stream stream = e->submit(request);
    while (e->step()) {
    }
    return read(*stream);
  }

  // The tokens of all choices, one choice after the other.
  static std::vector<TokenId> read(OutputStream& stream) {
    std::map<uint32_t, std::vector<TokenId>> choices;
    while (const auto event = stream.next(std::chrono::milliseconds(0))) {
      EXPECT_FALSE(event->refusal.has_value()) << event->refusal->message;
      if (event->token.has_value()) {
        choices[event->choice].push_back(*event->token);
      }
    }
    EXPECT_TRUE(stream.done());
    std::vector<TokenId> all;
    for (const auto& [choice, ids] : choices) {
      all.insert(all.end(), ids.begin(), ids.end());
      all.push_back(-1);
    }
    return all;
  }

  const MixModel& on_;
  MixLimits limits_;
  Prng prng_;
  SteadyClock clock_;
  DocumentRequest document_;
  std::vector<GenerateRequest> requests_;
  std::vector<bool> cancelled_;
};

}  // namespace pagezip
