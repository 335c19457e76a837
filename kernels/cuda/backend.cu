// The operations of the CUDA backend: what each needs on the device is brought there, then its
// kernels are launched. Contracts in kernels/kernels.h.
#include <algorithm>
#include <vector>

#include "kernels/cuda/append.cuh"
#include "kernels/cuda/attend_plan.h"
#include "kernels/cuda/compact.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/staging.h"
#include "kernels/half.h"

namespace pagezip {
namespace cuda {
namespace {

// ---- memory ----

constexpr DeviceMemory kMemory{
    .is_host = false,
    .bytes_free = bytes_free,
    .allocate = allocate,
    .release = release,
    .to_device =
        [](std::byte* target, const void* source, size_t bytes) {
          require(copy(target, source, bytes, compute_stream()), "a copy to the device");
        },
    .to_host =
        [](void* target, const std::byte* source, size_t bytes) {
          require(copy(target, source, bytes, compute_stream()), "a copy to the host");
          require(synchronize(compute_stream()), "the work before a copy to the host");
        },
    .copy =
        [](std::byte* target, const std::byte* source, size_t bytes) {
          require(copy(target, source, bytes, compute_stream()), "a copy on the device");
        },
    .wait = [] { require(synchronize(compute_stream()), "the work"); },
};

/// Memory between the kernels of one operation. Grows and never shrinks.
class Scratch {
 public:
  template <typename T>
  T* room_for(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > memory_.size()) {
      memory_ = {};  // before there are two
      memory_ = AlignedBytes(bytes + bytes / 2, kMemory);
    }
    return reinterpret_cast<T*>(memory_.data());
  }

 private:
  AlignedBytes memory_;
};

struct Backend {
  Backend() : next_item(1, kMemory) {}

  Stream stream = compute_stream();
  Staging staging{stream};
  Scratch partial_out;
  Scratch partial_states;
  DeviceArray<uint32_t> next_item;  // 0 between operations
};
/// To the end of the process: the driver may be gone when statics are destroyed.
Backend& backend() {
  static auto* const instance = new Backend;
  return *instance;
}

// ---- dense ----

bool is_bf16(const Weight& weight) {
  return weight.packed.size() == static_cast<size_t>(weight.rows * weight.cols) * sizeof(uint16_t);
}

void pack(Weight& weight, ActivationType activations, ThreadPool& pool) {
  constexpr int64_t kValuesAtOnce = int64_t{1} << 22;
  const bool bf16 = activations == ActivationType::kQ8;
  const size_t row = static_cast<size_t>(weight.cols) * (bf16 ? sizeof(uint16_t) : sizeof(float));
  weight.packed = AlignedBytes(static_cast<size_t>(weight.rows) * row, kMemory);
  const int64_t rows_at_once = std::max<int64_t>(1, kValuesAtOnce / weight.cols);
  std::vector<float> values(static_cast<size_t>(std::min(rows_at_once, weight.rows) * weight.cols));
  std::vector<uint16_t> rounded(bf16 ? values.size() : 0);
  for (int64_t first = 0; first < weight.rows; first += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, weight.rows - first);
    pool.parallel_for(rows, [&](int64_t r, int) {
      float* to = values.data() + r * weight.cols;
      dequantize(weight.type, weight.source + (first + r) * row_bytes(weight.type, weight.cols), to,
                 weight.cols);
      if (bf16) {
        std::transform(to, to + weight.cols, rounded.data() + r * weight.cols, float_to_bf16);
      }
    });
    kMemory.to_device(weight.packed.data() + static_cast<size_t>(first) * row,
                      bf16 ? static_cast<const void*>(rounded.data()) : values.data(),
                      static_cast<size_t>(rows) * row);
  }
}

void embed(const Weight& table, std::span<const int32_t> tokens, float scale,
           MatrixView<float> out) {
  Backend& b = backend();
  const auto rows = static_cast<int64_t>(tokens.size());
  b.staging.begin(Staging::room<int32_t>(rows));
  const int32_t* on_device = b.staging.put(tokens);
  b.staging.send();
  require(embedding({table.packed.data(), is_bf16(table), on_device, scale, out.data, out.stride,
                     rows, table.cols},
                    b.stream),
          "embedding");
}

void prepare(MatrixView<const float> x, ActivationType activations, Activations& out, ThreadPool&) {
  out.values = x;
  if (activations == ActivationType::kF32) {
    return;
  }
  const size_t bytes = static_cast<size_t>(x.rows * x.cols) * sizeof(uint16_t);
  if (out.device.size() < bytes) {
    out.device = {};  // before there are two
    out.device = AlignedBytes(bytes, kMemory);
  }
  require(
      round_rows({x.data, x.stride, reinterpret_cast<uint16_t*>(out.device.data()), x.rows, x.cols},
                 backend().stream),
      "rounding");
}

void matmul(const Activations& x, ActivationType activations, std::span<const MatmulTarget> targets,
            ThreadPool&) {
  const bool bf16 = activations == ActivationType::kQ8;
  for (const MatmulTarget& target : targets) {
    CHECK_EQ(is_bf16(*target.weight), bf16);
    dense({.bf16 = bf16,
           .x = bf16 ? static_cast<const void*>(x.device.data()) : x.values.data,
           .x_stride = bf16 ? x.values.cols : x.values.stride,
           .weight = target.weight->packed.data(),
           .bias = target.bias,
           .out = target.out.data,
           .out_stride = target.out.stride,
           .rows = x.values.rows,
           .cols = x.values.cols,
           .outputs = target.weight->rows},
          backend().stream);
  }
}

// ---- rows ----

void rms_norm(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> out,
              ThreadPool&) {
  require(cuda::rms_norm({x.data, x.stride, weight, eps, out.data, out.stride, x.rows, x.cols},
                         backend().stream),
          "RMSNorm");
}

void rope(MatrixView<float> x, int head_dim, RopeStyle style, MatrixView<const float> cos,
          MatrixView<const float> sin, ThreadPool&) {
  CHECK_EQ(cos.stride, sin.stride);
  require(
      cuda::rope({x.data, x.stride, cos.data, sin.data, cos.stride, x.rows,
                  static_cast<int>(x.cols) / head_dim, head_dim, style == RopeStyle::kInterleaved},
                 backend().stream),
      "RoPE");
}

void gate(GateFunction function, MatrixView<float> gate, MatrixView<const float> up, ThreadPool&) {
  const RowOperation operation =
      function == GateFunction::kSilu ? RowOperation::kSiluGate : RowOperation::kGeluTanhGate;
  require(
      row_operation({operation, gate.data, gate.stride, up.data, up.stride, gate.rows, gate.cols},
                    backend().stream),
      "a gate");
}

void add(MatrixView<float> x, MatrixView<const float> y, ThreadPool&) {
  require(row_operation({RowOperation::kAdd, x.data, x.stride, y.data, y.stride, x.rows, x.cols},
                        backend().stream),
          "an addition");
}

// ---- pages ----

/// One layer of a segment, from a head on, as layer 0, head 0.
Segment from_head(Segment segment, int layer, int head) {
  const int64_t list = int64_t{layer} * segment.heads + head;
  segment.offset += static_cast<uint64_t>(layer) * segment.layer_stride +
                    static_cast<uint64_t>(head) * segment.head_stride;
  segment.first = segment.first == nullptr ? nullptr : segment.first + list;
  segment.lengths = segment.lengths == nullptr ? nullptr : segment.lengths + list;
  return segment;
}

/// The ids that heads [0, heads) of layer 0 of a segment read: [begin, end) of its table.
struct IdRange {
  int64_t begin = 0;
  int64_t end = 0;
};
IdRange ids_of(const PageLayout& page, const Segment& segment, int heads) {
  const auto pages = [&](int head) {
    return std::max<int64_t>(
        0, ceil_div(segment.length(0, head), page.page_tokens) - segment.first_page);
  };
  if (segment.first == nullptr) {
    return {0, pages(0)};
  }
  IdRange range{INT64_MAX, 0};
  for (int head = 0; head < heads; ++head) {
    range.begin = std::min<int64_t>(range.begin, segment.first[head]);
    range.end = std::max<int64_t>(range.end, segment.first[head] + pages(head));
  }
  return range;
}

int64_t room_for(const PageLayout& page, const Segment& segment, int heads) {
  const IdRange ids = ids_of(page, segment, heads);
  return Staging::room<uint32_t>(ids.end - ids.begin) + 2 * Staging::room<uint32_t>(heads);
}

/// The segment with its tables on the device.
Segment put(Staging& staging, const PageLayout& page, Segment segment, int heads) {
  const IdRange ids = ids_of(page, segment, heads);
  std::vector<uint32_t> first;
  if (segment.first != nullptr) {
    std::transform(segment.first, segment.first + heads, std::back_inserter(first),
                   [&](uint32_t f) { return f - static_cast<uint32_t>(ids.begin); });
  }
  segment.ids = staging.put(std::span(segment.ids + ids.begin, segment.ids + ids.end));
  if (segment.first != nullptr) {
    segment.first = staging.put(std::span<const uint32_t>(first));
  }
  if (segment.lengths != nullptr) {
    segment.lengths = staging.put(std::span(segment.lengths, static_cast<size_t>(heads)));
  }
  return segment;
}

/// Spans whose views show their own layer only, as layer 0.
struct LayerSpans {
  explicit LayerSpans(std::span<const AttentionSpan> from) : spans(from.begin(), from.end()) {
    views.reserve(spans.size());
    for (AttentionSpan& span : spans) {
      KvView& view = views.emplace_back(*span.view);
      for (int s = 0; s < view.count; ++s) {
        view.segments[s] = from_head(view.segments[s], span.layer, 0);
      }
      span.view = &view;
      span.layer = 0;
    }
  }

  std::vector<AttentionSpan> spans;
  std::vector<KvView> views;
};

void store_kv(const StoreKvArgs& args, ThreadPool&) {
  Backend& b = backend();
  const LayerSpans layer(args.spans);
  std::vector<AppendRow> targets(static_cast<size_t>(args.k.rows));
  std::vector<Segment> segments;
  int64_t rows_of_spans = 0;
  int64_t room = Staging::room<AppendRow>(args.k.rows);
  for (const AttentionSpan& span : layer.spans) {
    const Segment& own = segments.emplace_back(span.view->segments[span.view->count - 1]);
    for (int64_t i = 0; i < span.rows; ++i) {
      targets[static_cast<size_t>(span.first_row + i)] = {
          span.first_position + i - own.first_position, static_cast<int32_t>(segments.size()) - 1};
    }
    room += room_for(args.page, own, args.kv_heads);
    rows_of_spans += span.rows;
  }
  CHECK_EQ(rows_of_spans, args.k.rows);  // each has its target
  b.staging.begin(room + Staging::room<Segment>(static_cast<int64_t>(segments.size())));
  for (Segment& segment : segments) {
    segment = put(b.staging, args.page, segment, args.kv_heads);
  }
  const AppendRow* rows = b.staging.put(std::span<const AppendRow>(targets));
  const Segment* on_device = b.staging.put(std::span<const Segment>(segments));
  b.staging.send();
  require(append({args.page, args.kv_heads, 0, args.k.data, args.v.data, args.k.stride,
                  args.v.stride, args.k.rows, rows, on_device},
                 b.stream),
          "appending");
}

/// The whole attention where `score` is null, else the log-sum-exp of its ranges.
void run_attention(const AttendArgs& args, const LayerSpans& layer, const ScoreRange* score) {
  Backend& b = backend();
  const int blocks = 2 * multiprocessors();
  AttendPlan plan = plan_attend(args.page, args.heads, args.kv_heads, layer.spans, score,
                                choose_pairs_per_item(layer.spans, args.kv_heads, blocks));
  const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  int64_t room =
      Staging::room<Segment>(size(plan.segments)) + Staging::room<AttendRow>(size(plan.rows)) +
      Staging::room<AttendItem>(size(plan.items)) + Staging::room<int64_t>(size(plan.first)) +
      Staging::room<int64_t>(size(plan.entries));
  for (const Segment& segment : plan.segments) {
    room += room_for(args.page, segment, args.kv_heads);
  }
  b.staging.begin(room);
  for (Segment& segment : plan.segments) {
    segment = put(b.staging, args.page, segment, args.kv_heads);
  }
  const auto put = [&]<typename T>(const std::vector<T>& list) {
    return b.staging.put(std::span<const T>(list));
  };
  const bool out = score == nullptr;
  float* partial_out =
      out ? b.partial_out.room_for<float>(plan.partials * args.page.head_dim) : nullptr;
  auto* states = b.partial_states.room_for<SoftmaxState<float>>(plan.partials);
  const AttendParams params{.page = args.page,
                            .heads = args.heads,
                            .kv_heads = args.kv_heads,
                            .scale = args.scale,
                            .q = args.q.data,
                            .q_stride = args.q.stride,
                            .segments = put(plan.segments),
                            .rows = put(plan.rows),
                            .items = put(plan.items),
                            .item_count = static_cast<int>(plan.items.size()),
                            .next_item = b.next_item.data(),
                            .partial_out = partial_out,
                            .partial_states = states};
  const MatrixView<float> lse = out ? args.lse : score->lse;
  const MergeParams merge{.heads = args.heads,
                          .kv_heads = args.kv_heads,
                          .head_dim = args.page.head_dim,
                          .row_count = plan.row_count,
                          .rows = params.rows,
                          .first = put(plan.first),
                          .entries = put(plan.entries),
                          .partial_out = partial_out,
                          .partial_states = states,
                          .out = out ? args.out.data : nullptr,
                          .out_stride = args.out.stride,
                          .lse = lse.data,
                          .lse_stride = lse.stride,
                          .next_item = b.next_item.data()};
  b.staging.send();
  require(cuda::attend(params, plan.many_rows, blocks, b.stream), "attention");
  require(merge_partials(merge, b.stream), "merging");
}

void attend(const AttendArgs& args, ThreadPool&) {
  CHECK(args.score == nullptr || args.spans.size() == 1);
  const LayerSpans layer(args.spans);
  if (args.out.data != nullptr) {
    run_attention(args, layer, nullptr);
  }
  if (args.score != nullptr) {
    run_attention(args, layer, args.score);
  }
}

void score(const ScoreArgs& args, ThreadPool&) {
  Backend& b = backend();
  const Segment source = from_head(*args.source, args.layer, 0);
  b.staging.begin(room_for(args.page, source, args.kv_heads));
  const Segment on_device = put(b.staging, args.page, source, args.kv_heads);
  b.staging.send();
  require(cuda::score({.page = args.page,
                       .heads = args.heads,
                       .kv_heads = args.kv_heads,
                       .scale = args.scale,
                       .q = args.q.data,
                       .q_stride = args.q.stride,
                       .rows = args.q.rows,
                       .lse = args.lse.data,
                       .lse_stride = args.lse.stride,
                       .source = on_device,
                       .layer = 0,
                       .chunk_begin = args.chunk_begin,
                       .chunk_end = args.chunk_end,
                       .best = args.best.data,
                       .best_stride = args.best.stride},
                      b.stream),
          "scores");
}

void copy_pairs(const CopyPairsArgs& args, ThreadPool&) {
  Backend& b = backend();
  CHECK(args.source_page.k_type == args.target_page.k_type);
  CHECK(args.source_page.v_type == args.target_page.v_type);
  CHECK_EQ(args.source_page.head_dim, args.target_page.head_dim);
  const int heads = static_cast<int>(args.pairs.size());
  std::vector<uint64_t> first{0};
  std::vector<uint32_t> pairs;
  for (const std::span<const uint32_t> list : args.pairs) {
    pairs.insert(pairs.end(), list.begin(), list.end());
    first.push_back(pairs.size());
  }
  if (pairs.empty()) {
    return;
  }
  const Segment source = from_head(*args.source, args.layer, args.first_head);
  const Segment target = from_head(*args.target, args.layer, args.first_head);
  b.staging.begin(room_for(args.source_page, source, heads) +
                  room_for(args.target_page, target, heads) +
                  Staging::room<uint64_t>(static_cast<int64_t>(first.size())) +
                  Staging::room<uint32_t>(static_cast<int64_t>(pairs.size())));
  const CompactParams params{
      .source_page = args.source_page,
      .target_page = args.target_page,
      .source = put(b.staging, args.source_page, source, heads),
      .target = put(b.staging, args.target_page, target, heads),
      .layer = 0,
      .heads = heads,
      .first = b.staging.put(std::span<const uint64_t>(first)),
      .pairs = b.staging.put(std::span<const uint32_t>(pairs)),
      .source_first = 0,
      .target_first = args.target_first,
  };
  b.staging.send();
  const int blocks = std::max(1, 4 * multiprocessors() / heads);
  require(compact(params, blocks, b.stream), "copying pairs");
}

constexpr Kernels kTable{
    .name = "cuda",
    .memory = &kMemory,
    .head_dim_max = kHeadDimMax,
    .pack = pack,
    .embed = embed,
    .prepare = prepare,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .rope = rope,
    .gate = gate,
    .add = add,
    .store_kv = store_kv,
    .attend = attend,
    .score = score,
    .attend_scratch = [](const AttendArgs&, int) -> size_t { return 0; },
    .score_scratch = [](const ScoreArgs&, int) -> size_t { return 0; },
    .copy_pairs = copy_pairs,
};

}  // namespace
}  // namespace cuda

const Kernels& cuda_kernels() {
  cuda::open_device();
  return cuda::kTable;
}

const char* cuda_device_name() { return cuda::device_name(); }

}  // namespace pagezip
