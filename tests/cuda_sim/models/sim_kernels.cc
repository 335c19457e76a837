#include "tests/cuda_sim/models/sim_kernels.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/append.cuh"
#include "kernels/cuda/attend_plan.h"
#include "kernels/cuda/compact.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/reference/operations.h"

namespace pagezip::test {
namespace {

constexpr int kBlocks = 2;  // that share a list of items

void rms_norm(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> out,
              ThreadPool&) {
  cuda::rms_norm({x.data, x.stride, weight, eps, out.data, out.stride, x.rows, x.cols}, {});
}

void rope(MatrixView<float> x, int head_dim, RopeStyle style, MatrixView<const float> cos,
          MatrixView<const float> sin, ThreadPool&) {
  CHECK_EQ(cos.stride, sin.stride);
  cuda::rope({x.data, x.stride, cos.data, sin.data, cos.stride, x.rows,
              static_cast<int>(x.cols) / head_dim, head_dim, style == RopeStyle::kInterleaved},
             {});
}

void gate(GateFunction function, MatrixView<float> gate, MatrixView<const float> up, ThreadPool&) {
  const auto operation = function == GateFunction::kSilu ? cuda::RowOperation::kSiluGate
                                                         : cuda::RowOperation::kGeluTanhGate;
  cuda::row_operation({operation, gate.data, gate.stride, up.data, up.stride, gate.rows, gate.cols},
                      {});
}

void add(MatrixView<float> x, MatrixView<const float> y, ThreadPool&) {
  cuda::row_operation(
      {cuda::RowOperation::kAdd, x.data, x.stride, y.data, y.stride, x.rows, x.cols}, {});
}

void store_kv(const StoreKvArgs& args, ThreadPool&) {
  std::vector<cuda::AppendRow> targets;
  for (int64_t i = 0; i < args.k.rows; ++i) {
    targets.push_back({args.first_pair + i, 0});
  }
  cuda::append({args.page, args.kv_heads, args.layer, args.k.data, args.v.data, args.k.stride,
                args.v.stride, args.k.rows, targets.data(), args.target},
               {});
}

/// The whole attention where `score` is null, else the log-sum-exp of its ranges.
void run_attention(const AttendArgs& args, const ScoreRange* score) {
  const MatrixView<float> lse = score != nullptr ? score->lse : args.lse;
  const cuda::AttendPlan plan =
      cuda::plan_attend(args.page, args.heads, args.kv_heads, args.spans, score, cuda::kRunPairs);
  std::vector<float> partial_out(static_cast<size_t>(plan.partials * args.page.head_dim));
  std::vector<SoftmaxState<float>> states(static_cast<size_t>(plan.partials));
  uint32_t next_item = 0;
  cuda::attend({.page = args.page,
                .heads = args.heads,
                .kv_heads = args.kv_heads,
                .scale = args.scale,
                .q = args.q.data,
                .q_stride = args.q.stride,
                .segments = plan.segments.data(),
                .rows = plan.rows.data(),
                .items = plan.items.data(),
                .item_count = static_cast<int>(plan.items.size()),
                .next_item = &next_item,
                .partial_out = score == nullptr ? partial_out.data() : nullptr,
                .partial_states = states.data()},
               plan.many_rows, kBlocks, {});
  cuda::merge_partials({.heads = args.heads,
                        .kv_heads = args.kv_heads,
                        .head_dim = args.page.head_dim,
                        .row_count = plan.row_count,
                        .rows = plan.rows.data(),
                        .first = plan.first.data(),
                        .entries = plan.entries.data(),
                        .partial_out = partial_out.data(),
                        .partial_states = states.data(),
                        .out = score == nullptr ? args.out.data : nullptr,
                        .out_stride = args.out.stride,
                        .lse = lse.data,
                        .lse_stride = lse.stride,
                        .next_item = &next_item},
                       {});
}

void attend(const AttendArgs& args, ThreadPool&) {
  if (args.out.data != nullptr) {
    run_attention(args, nullptr);
  }
  if (args.score != nullptr) {
    run_attention(args, args.score);
  }
}

void score(const ScoreArgs& args, ThreadPool&) {
  cuda::score({.page = args.page,
               .heads = args.heads,
               .kv_heads = args.kv_heads,
               .scale = args.scale,
               .q = args.q.data,
               .q_stride = args.q.stride,
               .rows = args.q.rows,
               .lse = args.lse.data,
               .lse_stride = args.lse.stride,
               .source = *args.source,
               .layer = args.layer,
               .chunk_begin = args.chunk_begin,
               .chunk_end = args.chunk_end,
               .best = args.best.data,
               .best_stride = args.best.stride},
              {});
}

/// One (layer, head): a list of its own, seen as the only one of its segments.
void copy_pairs(const CopyPairsArgs& args) {
  check_same_elements(args);
  const int lists = (args.layer + 1) * args.source->heads;
  std::vector<uint64_t> first(static_cast<size_t>(lists) + 1, 0);
  const auto list = static_cast<size_t>(args.layer * args.source->heads + args.head);
  std::fill(first.begin() + static_cast<std::ptrdiff_t>(list) + 1, first.end(), args.pairs.size());
  cuda::compact({.source_page = args.source_page,
                 .target_page = args.target_page,
                 .source = *args.source,
                 .target = *args.target,
                 .layer = args.layer,
                 .heads = args.source->heads,
                 .first = first.data(),
                 .pairs = args.pairs.data(),
                 .source_first = 0,
                 .target_first = args.target_first},
                kBlocks, {});
}

}  // namespace

const Kernels& sim_kernels() {
  static constexpr Kernels kKernels{
      .name = "cuda_sim",
      .pack = reference::pack,
      .prepare = reference::prepare,
      .matmul = reference::matmul,
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
  return kKernels;
}

}  // namespace pagezip::test
