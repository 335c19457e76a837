// Tier 1 of the C ABI: kernels on the caller's memory.
#include <cmath>
#include <cstring>

#include "api/c/guard.h"
#include "kernels/math.h"
#include "paging/selection.h"

namespace pagezip::c_api {
namespace {

constexpr int64_t kAlignment = 64;
// Larger numbers are mistakes, and their products would overflow.
constexpr int64_t kSizeMax = int64_t{1} << 31;

bool is_size(int64_t value) { return value >= 0 && value <= kSizeMax; }

void check_workspace(const void* workspace, size_t bytes, size_t needed) {
  require(reinterpret_cast<uintptr_t>(workspace) % kAlignment == 0,
          "the workspace isn't aligned to 64 bytes");
  require(bytes >= needed && (workspace != nullptr || needed == 0), "the workspace is too small");
}

// ---- select ----

struct SelectCall {
  explicit SelectCall(const pagezip_select_args* from)
      : args(read_struct(from, "pagezip_select_args")), scores{args.layers,
                                                               args.heads,
                                                               args.tokens,
                                                               args.scores,
                                                               args.layer_stride,
                                                               args.head_stride} {
    require(is_size(args.layers) && is_size(args.heads) && is_size(args.tokens) &&
                is_size(scores.lists()) && scores.lists() * args.tokens / kSizeMax < kSizeMax,
            "layers, heads or tokens out of range");
    require(args.layer_stride >= 0 && args.head_stride >= 0, "a stride of scores is negative");
    require(args.keep >= 0 && args.keep <= scores.pairs(), "keep is not in [0, all pairs]");
    require(args.min_per_head >= 0, "min_per_head is negative");
  }

  pagezip_select_args args;
  ScoreView scores;
};

pagezip_status select(const pagezip_select_args* from, void* workspace, size_t bytes) {
  const SelectCall call(from);
  const pagezip_select_args& args = call.args;
  const auto lists = call.scores.lists();
  const int64_t kept = selected_pairs(call.scores, args.keep, args.min_per_head);
  check_workspace(workspace, bytes, select_workspace_bytes(lists));
  require(args.first != nullptr, "first is null");
  require(args.scores != nullptr || call.scores.pairs() == 0, "scores is null");
  require(args.pairs_max >= kept && (args.pairs != nullptr || kept == 0),
          "pairs has less room than what is kept");
  const auto bad = select_global(
      call.scores, args.keep, args.min_per_head, {static_cast<std::byte*>(workspace), bytes},
      {{args.first, static_cast<size_t>(lists) + 1}, {args.pairs, static_cast<size_t>(kept)}});
  return bad.has_value() ? fail(PAGEZIP_FAILED, bad->message().c_str()) : PAGEZIP_OK;
}

// ---- merge ----

SoftmaxState<float> state_of(float lse) {
  return lse == -std::numeric_limits<float>::infinity() ? SoftmaxState<float>{}
                                                        : SoftmaxState<float>{lse, 1};
}

void merge_head(float* into, float& into_lse, const float* from, float from_lse, int64_t head_dim) {
  SoftmaxState<float> state = state_of(into_lse);
  const MergeFactors<float> factors = merge(state, state_of(from_lse));
  if (factors.from == 0) {
    return;
  }
  if (factors.into == 0) {  // `into` may hold nothing, not even a number
    std::memcpy(into, from, static_cast<size_t>(head_dim) * sizeof(float));
  } else {
    for (int64_t i = 0; i < head_dim; ++i) {
      into[i] = (into[i] * factors.into + from[i] * factors.from) / state.sum;
    }
  }
  into_lse = state.log_sum_exp();
}

pagezip_status merge(const pagezip_merge_args* from) {
  const pagezip_merge_args args = read_struct(from, "pagezip_merge_args");
  require(is_size(args.rows) && is_size(args.heads) && is_size(args.head_dim),
          "rows, heads or head_dim out of range");
  require(args.into_out != nullptr && args.into_lse != nullptr && args.from_out != nullptr &&
              args.from_lse != nullptr,
          "an output or an LSE is null");
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t head = 0; head < args.heads; ++head) {
      merge_head(args.into_out + row * args.into_out_stride + head * args.head_dim,
                 args.into_lse[row * args.into_lse_stride + head],
                 args.from_out + row * args.from_out_stride + head * args.head_dim,
                 args.from_lse[row * args.from_lse_stride + head], args.head_dim);
    }
  }
  return PAGEZIP_OK;
}

}  // namespace
}  // namespace pagezip::c_api

using namespace pagezip;  // NOLINT(google-build-using-namespace): the entries are outside of it

int64_t pagezip_keep_count(int64_t pairs, double keep_ratio) {
  return pairs > 0 && keep_ratio > 0 && keep_ratio <= 1 ? keep_count(pairs, keep_ratio) : 0;
}

size_t pagezip_select_workspace_bytes(const pagezip_select_args* args) {
  size_t bytes = 0;
  c_api::guarded([&] {
    bytes = select_workspace_bytes(c_api::SelectCall(args).scores.lists());
    return PAGEZIP_OK;
  });
  return bytes;
}

pagezip_status pagezip_select(const pagezip_select_args* args, void* workspace,
                              size_t workspace_bytes) {
  return c_api::guarded([&] { return c_api::select(args, workspace, workspace_bytes); });
}

pagezip_status pagezip_merge(const pagezip_merge_args* args) {
  return c_api::guarded([&] { return c_api::merge(args); });
}
