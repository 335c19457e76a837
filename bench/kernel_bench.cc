// The kernels against what the machine can do: bytes per second for decode, operations per second
// for prompts. Shapes are those of small real models.
#include <benchmark/benchmark.h>

#include <numeric>
#include <thread>
#include <vector>

#include "base/math.h"
#include "base/prng.h"
#include "kernels/kernels.h"
#include "paging/selection.h"

namespace pagezip {
namespace {

ThreadPool& threads() {
  static ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
  return pool;
}

std::vector<float> random_floats(int64_t count) {
  Prng prng(1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(prng.uniform() - 0.5);
  }
  return values;
}

// ---- dense ----

// Rows x 896 activations against a 4864 x 896 weight (an FFN of Qwen2.5-0.5B).
void BM_Matmul(benchmark::State& state) {
  const auto type = static_cast<WeightType>(state.range(0));
  const int64_t rows = state.range(1);
  constexpr int64_t kOutputs = 4864;
  constexpr int64_t kInputs = 768;  // a multiple of the K types' 256
  std::vector<std::byte> source(static_cast<size_t>(kOutputs * row_bytes(type, kInputs)));
  Prng prng(1);
  for (std::byte& b : source) {
    b = static_cast<std::byte>(prng.below(0x30));
  }
  Weight weight;
  weight.type = type;
  weight.rows = kOutputs;
  weight.cols = kInputs;
  weight.source = source.data();
  const Kernels& kernels = cpu_kernels();
  kernels.pack(weight, ActivationType::kQ8, threads());
  const std::vector<float> x = random_floats(rows * kInputs);
  std::vector<float> out(static_cast<size_t>(rows * kOutputs));
  Activations activations;
  const MatmulTarget target{&weight, nullptr, {out.data(), rows, kOutputs}};
  for ([[maybe_unused]] auto _ : state) {
    kernels.prepare({x.data(), rows, kInputs}, ActivationType::kQ8, activations, threads());
    kernels.matmul(activations, ActivationType::kQ8, {&target, 1}, threads());
  }
  state.SetLabel(info(type).name);
  state.counters["GOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(rows * kOutputs * kInputs * state.iterations()),
                         benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(weight.packed.size()) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

void matmul_cases(benchmark::internal::Benchmark* bench) {
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ8_0,
                                WeightType::kQ4_K, WeightType::kQ6_K}) {
    for (const int64_t rows : {1, 8, 512}) {
      bench->Args({static_cast<int64_t>(type), rows});
    }
  }
}
BENCHMARK(BM_Matmul)->Apply(matmul_cases)->UseRealTime();

// ---- attention ----

// One layer's K/V in pages of 16, one sequence.
struct Pages {
  Pages(int64_t length, int kv_heads, int head_dim) {
    layout.head_dim = head_dim;
    const int64_t blocks = ceil_div(length, layout.page_tokens);
    const int64_t page_units = layout.page_bytes() / PageLayout::kUnit;
    memory = AlignedBytes(static_cast<size_t>(blocks * kv_heads * layout.page_bytes()));
    ids.resize(static_cast<size_t>(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    Segment segment;
    segment.base = memory.data();
    segment.ids = ids.data();
    segment.uniform_length = length;
    segment.scale = static_cast<uint64_t>(page_units * kv_heads);
    segment.head_stride = static_cast<uint64_t>(page_units);
    segment.heads = kv_heads;
    view.push(segment);
    const std::vector<float> kv = random_floats(length * kv_heads * head_dim);
    const MatrixView<const float> rows(kv.data(), length, int64_t{kv_heads} * head_dim);
    cpu_kernels().store_kv({layout, kv_heads, rows, rows, &view.segments[0], 0, 0}, threads());
  }
  PageLayout layout;
  AlignedBytes memory;
  std::vector<uint32_t> ids;
  KvView view;
};

// rows queries at the end of `length` pairs; 9 heads of 64 over 3 KV heads (SmolLM2-135M).
void BM_Attend(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t length = state.range(1);
  constexpr int kHeads = 9;
  constexpr int kKvHeads = 3;
  constexpr int kHeadDim = 64;
  constexpr int64_t kWidth = int64_t{kHeads} * kHeadDim;
  const Pages pages(length, kKvHeads, kHeadDim);
  const std::vector<float> q = random_floats(rows * kWidth);
  std::vector<float> out(q.size());
  const AttentionSpan span{0, rows, length - rows, &pages.view, 0, 0};
  const AttendArgs args{
      pages.layout, kHeads, kKvHeads, 0.125f, {q.data(), rows, kWidth}, {out.data(), rows, kWidth},
      {&span, 1},   nullptr};
  for ([[maybe_unused]] auto _ : state) {
    cpu_kernels().attend(args, threads());
  }
  const double pairs =
      static_cast<double>(rows) * (static_cast<double>(length) - static_cast<double>(rows - 1) / 2);
  state.counters["GFLOP/s"] =
      benchmark::Counter(4e-9 * pairs * kHeads * kHeadDim * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(pages.memory.size()) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Attend)
    ->Args({1, 1024})
    ->Args({1, 4096})
    ->Args({1, 65536})
    ->Args({256, 4096})
    ->Args({512, 512})
    ->UseRealTime();

void BM_Score(benchmark::State& state) {
  constexpr int64_t kRows = 256;
  constexpr int64_t kChunk = 2048;
  constexpr int kHeads = 9;
  constexpr int kKvHeads = 3;
  constexpr int kHeadDim = 64;
  constexpr int64_t kWidth = int64_t{kHeads} * kHeadDim;
  const Pages pages(kChunk, kKvHeads, kHeadDim);
  const std::vector<float> q = random_floats(kRows * kWidth);
  const std::vector<float> lse = random_floats(kRows * kHeads);
  std::vector<float> best(kKvHeads * kChunk, -1e30f);
  const ScoreArgs args{pages.layout,
                       kHeads,
                       kKvHeads,
                       0.125f,
                       {q.data(), kRows, kWidth},
                       {lse.data(), kRows, kHeads},
                       &pages.view.segments[0],
                       0,
                       0,
                       kChunk,
                       {best.data(), kKvHeads, kChunk}};
  for ([[maybe_unused]] auto _ : state) {
    cpu_kernels().score(args, threads());
  }
  state.counters["GFLOP/s"] = benchmark::Counter(
      2e-9 * static_cast<double>(kRows * kChunk * kHeads * kHeadDim * state.iterations()),
      benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Score)->UseRealTime();

// ---- selection ----

void BM_SelectGlobal(benchmark::State& state) {
  ScoreSet scores{30, 3, state.range(0), random_floats(90 * state.range(0))};
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(select_global(scores, keep_count(scores.pairs(), 0.3), 0));
  }
  state.SetItemsProcessed(scores.pairs() * state.iterations());
}
BENCHMARK(BM_SelectGlobal)->Arg(4096)->Arg(65536);

}  // namespace
}  // namespace pagezip

BENCHMARK_MAIN();
