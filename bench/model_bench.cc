// Speed of a whole model on this machine: prefill, decode at several depths, scoring, selection and
// compaction. One JSON object a line on stdout, one line for each measurement; run it several times
// between runs of what it is compared with (bench/compare_llama_cpp.py).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "engine/pipeline.h"

namespace pagezip {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<TokenId> random_tokens(int64_t count, int vocab, Prng& prng) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(prng.below(static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

bool go_on(Stage, int64_t, int64_t) { return true; }

void print(const char* what, int64_t tokens, double seconds) {
  fmt::print(
      "{{\"what\": \"{}\", \"tokens\": {}, \"seconds\": {:.6f}, \"tokens_per_s\": {:.2f}}}\n", what,
      tokens, seconds, static_cast<double>(tokens) / seconds);
  std::fflush(stdout);
}

struct Options {
  std::string model;
  std::vector<std::string> what;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int64_t tokens = 0;  // of the prompt, or the depth
};

// "prefill": a prompt of `tokens` tokens. "decode": 32 tokens one by one behind `tokens` others.
void run(Pipeline& pipeline, const std::string& what, int64_t tokens) {
  Prng prng(1);
  const int vocab = pipeline.model().config().vocab;
  constexpr int64_t kDecoded = 32;
  const std::vector<TokenId> prompt = random_tokens(std::max<int64_t>(tokens, 1), vocab, prng);
  auto start = Clock::now();
  const auto full = pipeline.prefill({}, prompt, go_on);
  const double prefill = seconds_since(start);
  if (what == "prefill") {
    print("prefill", tokens, prefill);
  } else if (what == "decode") {
    Question question(pipeline, full, kDecoded + 1);
    question.append(random_tokens(1, vocab, prng));
    start = Clock::now();
    for (int64_t i = 0; i < kDecoded; ++i) {
      question.append(random_tokens(1, vocab, prng));
    }
    print("decode", kDecoded, seconds_since(start));
  } else if (what == "compress") {
    const RepeatPrompts prompts{random_tokens(8, vocab, prng), random_tokens(14, vocab, prng),
                                random_tokens(6, vocab, prng)};
    print("prefill", tokens, prefill);
    start = Clock::now();
    const ScoreSet scores = pipeline.score(full, prompt, prompts, go_on);
    print("score", tokens, seconds_since(start));
    start = Clock::now();
    KeptSets kept = Pipeline::select(scores, {0.3, Selector::kGlobal, 0});
    print("select", tokens, seconds_since(start));
    start = Clock::now();
    const auto compacted = pipeline.compact(full, std::move(kept), go_on);
    print("compact", tokens, seconds_since(start));
    std::fprintf(stderr, "kv_bytes %lld of %lld, scoring took %lld bytes\n",
                 static_cast<long long>(compacted->kv_bytes()),
                 static_cast<long long>(full->kv_bytes()),
                 static_cast<long long>(pipeline.score_bytes()));
  }
}

int main_or_throw(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--model") {
      options.model = argv[i + 1];
    } else if (flag == "--what") {
      options.what.emplace_back(argv[i + 1]);
    } else if (flag == "--threads") {
      options.threads = std::stoi(argv[i + 1]);
    } else if (flag == "--tokens") {
      options.tokens = std::stoll(argv[i + 1]);
    }
  }
  if (options.model.empty() || options.what.empty()) {
    std::fprintf(stderr,
                 "usage: model_bench --model M.gguf --what prefill|decode|compress --tokens N "
                 "[--threads N]\n");
    return 2;
  }
  ThreadPool threads(options.threads);
  const Model model(GgufFile::open(options.model), cpu_kernels(), ActivationType::kQ8, threads,
                    [](int64_t, int64_t) {});
  const PipelineOptions pipeline_options;
  const int64_t blocks =
      Pipeline::blocks_for_document(model, pipeline_options, options.tokens + 64, 1.0) +
      Pipeline::blocks_for_question(model, pipeline_options, 64);
  Pipeline pipeline(model, cpu_kernels(), ActivationType::kQ8, threads, pipeline_options, blocks);
  for (const std::string& what : options.what) {
    run(pipeline, what, options.tokens);
  }
  return 0;
}

}  // namespace
}  // namespace pagezip

int main(int argc, char** argv) {
  try {
    return pagezip::main_or_throw(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_bench: %s\n", error.what());
    return 1;
  }
}
