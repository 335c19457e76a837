// The menu: every operation that a backend provides, as one table of functions.
//
// `cpu` (SIMD, threads), `cuda` and `reference` (plain loops, float64 inside) fill it; the engine
// never calls a backend in any other way. Shapes stand in brackets, sizes are in elements unless
// named bytes, and all pointers are borrowed for the call. Operations never allocate pool memory
// and never throw.
//
// Rows, weights, scores and the pages that a segment's `base` leads to lie in the backend's memory
// (base/device_memory.h). All else is read by the host during the call: arguments, spans, views,
// and the tables of segments.
//
// Order of arithmetic is part of the contract of `cpu`: the result of a row does not depend on the
// other rows of the call, on the number of threads or on the page size. Each output of a dense
// operation is one accumulation in the order of k. Attention computes the softmax state of each
// unit of kUnitPairs pairs alone, counted from pair 0 of its segment, and merges the states in
// order (math.h). So the same tokens give the same bits, however a step is cut.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/device_memory.h"
#include "base/tensor_view.h"
#include "kernels/kv_view.h"
#include "kernels/thread_pool.h"
#include "kernels/weight_types.h"

namespace pagezip {

/// Pairs in one attention unit; a multiple of every page size.
inline constexpr int kUnitPairs = 256;

/// What meets quantised weights: 8-bit activations in blocks of 32, or float32.
enum class ActivationType : uint8_t { kQ8, kF32 };
/// Which elements of a head RoPE rotates together: (2i, 2i+1), or (i, i + head_dim/2).
enum class RopeStyle : uint8_t { kInterleaved, kHalfSplit };
enum class GateFunction : uint8_t { kSilu, kGeluTanh };

/// A weight matrix, [rows, cols] row-major, used as y = x · Wᵀ. `source` borrows the model file's
/// bytes, on the host; `packed` is what a backend made of them (empty in `reference`).
struct Weight {
  WeightType type = WeightType::kF32;
  int64_t rows = 0;  // outputs
  int64_t cols = 0;  // inputs
  const std::byte* source = nullptr;
  AlignedBytes packed;
};

/// The input of matmul, prepared once for all weights that read it. 8-bit form, filled where the
/// backend wants it: block b of a row is values[32b, 32b+32) ≈ scales[b] * q8, with
/// sums[2b], sums[2b+1] the integer sums of its two halves. With m the largest magnitude of a
/// block, scale = m / 127 and q8 = round-half-even(value * (127 / m)), in float32; a block with m <
/// kQ8Smallest counts as zero. The order of the blocks is the backend's own: rows one after the
/// other in `reference`, tiles of rows in `cpu` (kernels/cpu/dense.h).
inline constexpr float kQ8Smallest = 0x1p-100f;
struct Activations {
  MatrixView<const float> values;  // [rows, cols]
  std::vector<int8_t> q8;          // 32 for each block
  std::vector<float> scales;       // one for each block
  std::vector<int32_t> sums;       // two for each block
  int64_t blocks = 0;              // per row
  AlignedBytes device;             // a device's own form of them
};

struct MatmulTarget {
  const Weight* weight = nullptr;
  const float* bias = nullptr;  // [weight->rows], or null
  MatrixView<float> out;        // [rows, weight->rows]
};

/// Consecutive rows of one sequence inside a batch. Row i of the span is the token at logical
/// position first_position + i and sees the pairs at its own position and before, in a sliding
/// layer only the last `window` of them (itself included).
struct AttentionSpan {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_position = 0;
  const KvView* view = nullptr;
  int layer = 0;   // within the KV group of the view
  int window = 0;  // 0: no window
};

/// Asks attend() for the row log-sum-exp that KVzip scores need (Kim et al. 2025, §3; with the
/// released code's key set): over the pairs [0, prefix_end) of segment 0, the pairs [chunk_begin,
/// chunk_end) of `segment`, and every visible pair of the segments behind that one.
struct ScoreRange {
  int64_t prefix_end = 0;
  int64_t chunk_begin = 0;
  int64_t chunk_end = 0;
  MatrixView<float> lse;  // out: [rows, heads], natural log; -inf if a row sees no such pair
  int segment = 0;
};

struct AttendArgs {
  PageLayout page;
  int heads = 0;
  int kv_heads = 0;           // divides heads; query head h reads KV head h / (heads / kv_heads)
  float scale = 0;            // of the products q·k
  MatrixView<const float> q;  // [rows, heads * head_dim]
  MatrixView<float> out;      // same shape; data == null: only the scores' LSE is wanted
  std::span<const AttentionSpan> spans;  // disjoint rows
  const ScoreRange* score = nullptr;     // only with a single span
  /// [rows, heads]: natural log of the sum of exp(logit) over all pairs that a row sees; -inf if
  /// there are none. data == null: not wanted. REQUIRES: out.
  MatrixView<float> lse = {};
};

/// best[h][j] = max(best[h][j], max over rows i and query heads g of KV head h of
///   scale * q[i, g] · k[chunk_begin + j]  -  lse[i, g]).
/// Pairs [chunk_begin, chunk_end) of segment `source`, all visible to every row. With lse.data ==
/// null nothing is subtracted: the softmax-free variant.
struct ScoreArgs {
  PageLayout page;
  int heads = 0;
  int kv_heads = 0;
  float scale = 0;
  MatrixView<const float> q;    // [rows, heads * head_dim]
  MatrixView<const float> lse;  // [rows, heads]
  const Segment* source = nullptr;
  int layer = 0;
  int64_t chunk_begin = 0;
  int64_t chunk_end = 0;
  MatrixView<float> best;  // [kv_heads, chunk_end - chunk_begin], in and out
};

/// Writes rows of K and V (after RoPE), rounded to the page's types, as pairs of the last segment
/// of their span's view: each where its position is.
struct StoreKvArgs {
  PageLayout page;
  int kv_heads = 0;
  MatrixView<const float> k;  // [rows, kv_heads * head_dim]
  MatrixView<const float> v;
  std::span<const AttentionSpan> spans;  // disjoint rows; windows aren't read
};

/// Copies pairs of heads [first_head, first_head + pairs.size()) of a layer, bits unchanged: pair
/// pairs[h][i] of `source` becomes pair target_first + i of `target`. Page sizes and the order of
/// keys may differ, element types and head_dim may not.
struct CopyPairsArgs {
  PageLayout source_page;
  const Segment* source = nullptr;
  PageLayout target_page;
  const Segment* target = nullptr;
  int layer = 0;
  int first_head = 0;
  std::span<const std::span<const uint32_t>> pairs;
  int64_t target_first = 0;
};

/// What the CPU's backends can read and write.
inline void check_floats(const PageLayout& page) {
  CHECK(!is_quantised(page.k_type) && !is_quantised(page.v_type));
}

inline void check_same_elements(const CopyPairsArgs& args) {
  check_floats(args.source_page);
  CHECK(args.source_page.k_type == args.target_page.k_type);
  CHECK(args.source_page.v_type == args.target_page.v_type);
  CHECK_EQ(args.source_page.head_dim, args.target_page.head_dim);
}

inline constexpr int kMatmulTargetsMax = 8;

/// A backend. Every function may use the pool's threads.
struct Kernels {
  const char* name;
  const DeviceMemory* memory;
  int head_dim_max;  // of attention; 0: any
  /// Fills weight.packed from weight.source.
  void (*pack)(Weight& weight, ActivationType activations, ThreadPool& pool);
  /// out[i] = scale * row tokens[i] of the table. REQUIRES: packed, unless the memory is the
  /// host's.
  void (*embed)(const Weight& table, std::span<const int32_t> tokens, float scale,
                MatrixView<float> out);
  /// Prepares x for matmul; `out` keeps a view of x.
  void (*prepare)(MatrixView<const float> x, ActivationType activations, Activations& out,
                  ThreadPool& pool);
  /// out = x · weightᵀ + bias for every target. REQUIRES: packed and prepared with the same type;
  /// at most kMatmulTargetsMax targets.
  void (*matmul)(const Activations& x, ActivationType activations,
                 std::span<const MatmulTarget> targets, ThreadPool& pool);
  /// out[i] = x[i] / sqrt(mean(x[i]²) + eps) * weight, row by row; out may be x.
  void (*rms_norm)(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> out,
                   ThreadPool& pool);
  /// Rotates x [rows, heads * head_dim] in place; cos, sin: [rows, head_dim / 2].
  void (*rope)(MatrixView<float> x, int head_dim, RopeStyle style, MatrixView<const float> cos,
               MatrixView<const float> sin, ThreadPool& pool);
  /// gate = f(gate) * up, element by element.
  void (*gate)(GateFunction function, MatrixView<float> gate, MatrixView<const float> up,
               ThreadPool& pool);
  /// x += y.
  void (*add)(MatrixView<float> x, MatrixView<const float> y, ThreadPool& pool);
  void (*store_kv)(const StoreKvArgs& args, ThreadPool& pool);
  /// Softmax attention over the segments of each span, merged by log-sum-exp in order. A row that
  /// sees nothing gets zeros.
  void (*attend)(const AttendArgs& args, ThreadPool& pool);
  void (*score)(const ScoreArgs& args, ThreadPool& pool);
  /// Bytes of scratch that attend() and score() take from a pool of so many threads, whatever the
  /// pointers of the arguments hold; views and segments are read, pairs aren't. 0 in `reference`,
  /// which allocates.
  size_t (*attend_scratch)(const AttendArgs& args, int threads);
  size_t (*score_scratch)(const ScoreArgs& args, int threads);
  void (*copy_pairs)(const CopyPairsArgs& args, ThreadPool& pool);
};

/// Plain loops, float64 inside. Slow; the oracle of the tests, and `--backend reference`.
const Kernels& reference_kernels();

/// SIMD with run-time dispatch. The first call runs a self-test of each path and falls back to the
/// next best instruction set, with a line on stderr, where one fails.
const Kernels& cpu_kernels();

/// The instruction sets in use by cpu_kernels(), for people: "AVX3 float, AVX512-VNNI int8".
std::string cpu_kernels_isa();

}  // namespace pagezip
