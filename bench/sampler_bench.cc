// What picking one token costs, for logits as wide as Qwen2.5's vocabulary: most far below the
// best, as a model's are.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/prng.h"
#include "engine/sampler.h"

namespace pagezip {
namespace {

void sample(benchmark::State& state, const SamplingParams& params) {
  Prng prng(1);
  std::vector<float> logits(151'936);
  for (float& logit : logits) {
    // Roughly normal, with a deviation of 3.
    logit = static_cast<float>(
        6 * (prng.uniform() + prng.uniform() + prng.uniform() + prng.uniform() - 2) * 0.866);
  }
  Sampler sampler(params, {});
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(sampler.sample(logits));
  }
}

BENCHMARK_CAPTURE(sample, greedy, {})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample, temperature, {.temperature = 1})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample, top_k_40, {.temperature = 1, .top_k = 40})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample, top_p_0_9, {.temperature = 1, .top_p = 0.9})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample, min_p_0_05, {.temperature = 1, .min_p = 0.05})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace pagezip

BENCHMARK_MAIN();
