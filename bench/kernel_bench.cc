// The kernels against what the machine can do: bytes per second for decode, operations per second
// for prompts. Shapes are those of small real models.
#include <benchmark/benchmark.h>
#include <sched.h>

#include <numeric>
#include <vector>

#include "base/math.h"
#include "base/prng.h"
#include "kernels/kernels.h"
#include "paging/selection.h"

namespace pagezip {
namespace {

// As many as the process may use: `taskset -c 0` measures one.
ThreadPool& threads() {
  cpu_set_t cores;
  sched_getaffinity(0, sizeof(cores), &cores);
  static ThreadPool pool(CPU_COUNT(&cores));
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
    const AttentionSpan span{0, length, 0, &view, 0, 0};
    cpu_kernels().store_kv({layout, kv_heads, rows, rows, {&span, 1}}, threads());
  }
  PageLayout layout;
  AlignedBytes memory;
  std::vector<uint32_t> ids;
  KvView view;
};

// rows queries at the end of `length` pairs; 9 heads of 64 over 3 KV heads (SmolLM2-135M), or 14
// over 2 (Qwen2.5-0.5B).
void BM_Attend(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t length = state.range(1);
  const bool qwen = state.range(2) != 0;
  const int heads = qwen ? 14 : 9;
  const int kv_heads = qwen ? 2 : 3;
  constexpr int kHeadDim = 64;
  const int64_t width = int64_t{heads} * kHeadDim;
  const Pages pages(length, kv_heads, kHeadDim);
  const std::vector<float> q = random_floats(rows * width);
  std::vector<float> out(q.size());
  const AttentionSpan span{0, rows, length - rows, &pages.view, 0, 0};
  const AttendArgs args{
      pages.layout, heads,  kv_heads, 0.125f, {q.data(), rows, width}, {out.data(), rows, width},
      {&span, 1},   nullptr};
  for ([[maybe_unused]] auto _ : state) {
    cpu_kernels().attend(args, threads());
  }
  const double pairs =
      static_cast<double>(rows) * (static_cast<double>(length) - static_cast<double>(rows - 1) / 2);
  state.counters["GFLOP/s"] =
      benchmark::Counter(4e-9 * pairs * heads * kHeadDim * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(pages.memory.size()) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Attend)
    ->ArgNames({"rows", "pairs", "qwen"})
    ->Args({1, 1024, 0})
    ->Args({1, 4096, 0})
    ->Args({1, 65536, 0})
    ->Args({256, 4096, 0})
    ->Args({512, 512, 0})
    ->Args({1, 4096, 1})
    ->Args({256, 4096, 1})
    ->UseRealTime();

// All layers of a ragged document in pages of 16: heads keep 600 and 1800 pairs in turn, as 4,000
// tokens at a keep ratio of 0.3.
struct SharedDocument {
  SharedDocument(int layers, int kv_heads, int head_dim) {
    layout.head_dim = head_dim;
    for (int list = 0; list < layers * kv_heads; ++list) {
      first.push_back(static_cast<uint32_t>(ids.size()));
      lengths.push_back(list % 2 == 0 ? 600 : 1800);
      ids.resize(ids.size() + static_cast<size_t>(ceil_div(lengths.back(), layout.page_tokens)));
    }
    std::iota(ids.begin(), ids.end(), 0);
    memory = AlignedBytes(ids.size() * static_cast<size_t>(layout.page_bytes()));
    auto* values = reinterpret_cast<uint16_t*>(memory.data());
    Prng prng(3);
    for (size_t i = 0; i < memory.size() / 2; ++i) {
      values[i] = static_cast<uint16_t>(0x3000 | (prng.next() & 0x87ff));  // f16 in ±(0.125, 0.5)
    }
    segment.base = memory.data();
    segment.ids = ids.data();
    segment.first = first.data();
    segment.lengths = lengths.data();
    segment.scale = static_cast<uint64_t>(layout.page_bytes() / PageLayout::kUnit);
    segment.heads = kv_heads;
  }
  PageLayout layout;
  AlignedBytes memory;
  std::vector<uint32_t> ids, first, lengths;
  Segment segment;
};

// Decode rows of several requests on one document, each with 64 pairs of its own; one layer, a
// different one each time. `copies` 1: requests on documents of their own, which have equal pairs.
void BM_AttendSharers(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const auto heads = static_cast<int>(state.range(1));
  const auto kv_heads = static_cast<int>(state.range(2));
  const bool copies = state.range(3) != 0;
  constexpr int kHeadDim = 64;
  constexpr int kLayers = 24;
  constexpr int64_t kOwn = 64;
  constexpr int64_t kPosition = 4000;
  const SharedDocument document(kLayers, kv_heads, kHeadDim);
  std::vector<std::vector<uint32_t>> ids(static_cast<size_t>(rows), document.ids);
  std::vector<Pages> own;
  std::vector<KvView> views(static_cast<size_t>(rows));
  std::vector<AttentionSpan> spans;
  for (int64_t i = 0; i < rows; ++i) {
    KvView& view = views[static_cast<size_t>(i)];
    own.emplace_back(kOwn, kv_heads, kHeadDim);
    Segment segment = document.segment;
    segment.ids = copies ? ids[static_cast<size_t>(i)].data() : segment.ids;
    view.push(segment);
    view.push(own.back().view.segments[0]);
    view.segments[1].first_position = kPosition;
    spans.push_back({i, 1, kPosition + kOwn - 1, &view, 0, 0});
  }
  const int64_t width = int64_t{heads} * kHeadDim;
  const std::vector<float> q = random_floats(rows * width);
  std::vector<float> out(q.size());
  const AttendArgs args{document.layout,           heads, kv_heads, 0.125f, {q.data(), rows, width},
                        {out.data(), rows, width}, spans, nullptr};
  int64_t layer = 0;
  for ([[maybe_unused]] auto _ : state) {
    for (size_t i = 0; i < spans.size(); ++i) {
      spans[i].layer = static_cast<int>(layer % kLayers);
      // The private pages have one layer only.
      views[i].segments[1].layer_stride = 0;
    }
    ++layer;
    cpu_kernels().attend(args, threads());
  }
  const auto steps = static_cast<double>(state.iterations());
  state.counters["document GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(document.memory.size()) / kLayers * steps,
                         benchmark::Counter::kIsRate);
  const double pairs = 1200.0 + kOwn;
  state.counters["GFLOP/s"] = benchmark::Counter(
      4e-9 * static_cast<double>(rows) * pairs * static_cast<double>(width) * steps,
      benchmark::Counter::kIsRate);
}
BENCHMARK(BM_AttendSharers)
    ->ArgNames({"rows", "heads", "kv_heads", "copies"})
    ->Args({1, 14, 2, 0})
    ->Args({16, 14, 2, 0})
    ->Args({16, 14, 2, 1})
    ->Args({1, 9, 3, 0})
    ->Args({16, 9, 3, 0})
    ->Args({16, 9, 3, 1})
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
