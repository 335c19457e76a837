// An engine on a tiny random model, driven step by step, with a clock of its own.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "engine/engine.h"
#include "tests/tiny_tokenizer.h"

namespace pagezip {

inline Tokenizer tiny_tokenizer(int vocab) {
  TinyVocabulary vocabulary = tiny_bpe();
  while (static_cast<int>(vocabulary.tokens.size()) < vocab) {
    vocabulary.add("filler" + std::to_string(vocabulary.tokens.size()));
  }
  const auto end = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), "<|im_end|>");
  GgufWriter writer = bpe_file(vocabulary);
  writer.add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(end - vocabulary.tokens.begin()));
  return Tokenizer(GgufFile::from_bytes(writer.bytes(), "tiny.gguf"));
}

/// Parameters of suites: one model with global layers only, one with sliding windows too.
inline auto tiny_models() { return testing::Values("llama-gqa3", "gemma3-plain"); }
inline std::string tiny_model_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Real time for steps, a settable one for times to live.
class TestClock : public SteadyClock {
 public:
  int64_t unix_s() const override { return now_s; }
  int64_t now_s = 1'800'000'000;
};

/// What engines need; several may use it, one after the other.
struct TinyWorld {
  explicit TinyWorld(const std::string& name, const Kernels& k = cpu_kernels())
      : kernels(k),
        model(GgufFile::open(fmt::format("{}/tests/data/tiny/{}.gguf", PAGEZIP_SOURCE_DIR, name)),
              kernels, ActivationType::kF32, threads, [](int64_t, int64_t) {}),
        tokenizer(tiny_tokenizer(model.config().vocab)) {
    options.pool_blocks = 600;
    options.chunk_tokens = 16;
    options.cost = CostCoefficients{};
    options.cost->layers = model.config().layers;
    options.identity.weights = model.fingerprint();
  }
  std::unique_ptr<Engine> engine() {
    return std::make_unique<Engine>(model, tokenizer, kernels, ActivationType::kF32, threads,
                                    options, clock);
  }
  /// Random text.
  std::vector<TokenId> tokens(int64_t count, uint64_t seed) const {
    Prng prng(seed);
    std::vector<TokenId> ids;
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<TokenId>(prng.below(static_cast<uint64_t>(model.config().vocab))));
    }
    return ids;
  }
  RepeatPrompts prompts() const { return {tokens(5, 2), tokens(6, 3), tokens(3, 4)}; }
  static void drive(Engine& e) {
    while (e.step()) {
    }
  }
  static std::vector<OutputEvent> read(OutputStream& stream) {
    std::vector<OutputEvent> events;
    while (auto event = stream.next(std::chrono::milliseconds(0))) {
      events.push_back(std::move(*event));
    }
    return events;
  }

  const Kernels& kernels;
  ThreadPool threads{2};
  TestClock clock;
  Model model;
  Tokenizer tokenizer;
  EngineOptions options;
};

}  // namespace pagezip
