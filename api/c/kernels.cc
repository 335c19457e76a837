// Tier 1 of the C ABI: kernels on the caller's memory.
#include "kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "api/c/pages.h"
#include "base/math.h"
#include "kernels/math.h"
#include "paging/selection.h"

namespace pagezip::c_api {
namespace {

constexpr int64_t kAlignment = 64;

// Of a query for a size: what is refused has none.
template <typename Body>
size_t bytes_or_0(const Body& body) noexcept {
  size_t bytes = 0;
  guarded([&] {
    bytes = body();
    return PAGEZIP_OK;
  });
  return bytes;
}

void check_workspace(const void* workspace, size_t bytes, size_t needed) {
  require(reinterpret_cast<uintptr_t>(workspace) % kAlignment == 0,
          "the workspace isn't aligned to 64 bytes");
  require(bytes >= needed && (workspace != nullptr || needed == 0), "the workspace is too small");
}

// ---- attend ----

// The shape that attend and score have in common.
struct Heads {
  int32_t layer;
  int32_t heads;
  int32_t kv_heads;
  int64_t rows;
  int64_t first_position;
};

void check_heads(const Heads& heads) {
  require(heads.heads > 0 && heads.kv_heads > 0 && heads.heads % heads.kv_heads == 0,
          "kv_heads doesn't divide heads");
  require(heads.heads <= kHeadsMax, "more than 4096 heads");
  require(heads.layer >= 0 && heads.layer < kLayersMax, "layer out of range");
  require(is_size(heads.rows) && is_size(heads.first_position), "rows or positions out of range");
}

template <typename T>
MatrixView<T> matrix(T* data, int64_t rows, int64_t cols, int64_t stride) {
  require(is_size(stride) && (rows <= 1 || stride >= cols), "a stride is shorter than its row");
  return {data, rows, cols, stride};
}

struct AttendCall {
  explicit AttendCall(const pagezip_attend_args* from) {
    const pagezip_attend_args c = read_struct(from, "pagezip_attend_args");
    check_heads({c.layer, c.heads, c.kv_heads, c.rows, c.first_position});
    require(c.window >= 0, "window is negative");
    require(c.segment_count > 0 && c.segment_count <= KvView::kSegmentsMax,
            "segments are not 1 to 4");
    require(c.segments != nullptr, "segments is null");
    for (int32_t i = 0; i < c.segment_count; ++i) {
      const auto* segment = reinterpret_cast<const pagezip_segment*>(
          reinterpret_cast<const std::byte*>(c.segments) + i * c.segments->size);
      view.push(read_segment(segment, c.layer + 1, c.kv_heads));
    }
    span = {0, c.rows, c.first_position, &view, c.layer, c.window};
    args.page = read_page(c.page);
    const int64_t width = int64_t{c.heads} * args.page.head_dim;
    args.heads = c.heads;
    args.kv_heads = c.kv_heads;
    args.scale = c.scale;
    args.q = matrix(c.q, c.rows, width, c.q_stride);
    args.out = matrix(c.out, c.rows, width, c.out_stride);
    args.lse = matrix(c.lse, c.rows, c.heads, c.lse_stride);
    args.spans = {&span, 1};
    require(c.q != nullptr && c.out != nullptr, "q or out is null");
  }
  AttendCall(const AttendCall&) = delete;  // args borrow the rest
  AttendCall& operator=(const AttendCall&) = delete;

  KvView view;
  AttentionSpan span;
  AttendArgs args;
};

pagezip_status attend(const pagezip_attend_args* from, void* workspace, size_t bytes) {
  const AttendCall call(from);
  check_workspace(workspace, bytes, cpu_kernels().attend_scratch(call.args, 1));
  ThreadPool pool({static_cast<std::byte*>(workspace), bytes});
  cpu_kernels().attend(call.args, pool);
  return PAGEZIP_OK;
}

// ---- score ----

struct ScoreCall {
  explicit ScoreCall(const pagezip_score_args* from) {
    const pagezip_score_args c = read_struct(from, "pagezip_score_args");
    check_heads({c.layer, c.heads, c.kv_heads, c.rows, c.first_position});
    view.push(read_segment(c.document, c.layer + 1, c.kv_heads));
    if (c.own != nullptr) {
      view.push(read_segment(c.own, c.layer + 1, c.kv_heads));
    }
    require(c.prefix_end >= 0 && c.prefix_end <= c.chunk_begin && c.chunk_begin <= c.chunk_end,
            "not 0 <= prefix_end <= chunk_begin <= chunk_end");
    for (int head = 0; head < c.kv_heads; ++head) {
      require(c.chunk_end <= view.segments[0].length(c.layer, head),
              "the chunk ends behind the document");
    }
    require(view.segments[0].first_page == 0 &&
                view.segments[0].first_position + c.chunk_end <= c.first_position,
            "a row doesn't see the whole chunk");
    const PageLayout page = read_page(c.page);
    const int64_t width = int64_t{c.heads} * page.head_dim;
    span = {0, c.rows, c.first_position, &view, c.layer, 0};
    range = {c.prefix_end, c.chunk_begin, c.chunk_end, {nullptr, c.rows, c.heads}};
    attend.page = page;
    attend.heads = c.heads;
    attend.kv_heads = c.kv_heads;
    attend.scale = c.scale;
    attend.q = matrix(c.q, c.rows, width, c.q_stride);
    attend.spans = {&span, 1};
    attend.score = &range;
    score = {page,
             c.heads,
             c.kv_heads,
             c.scale,
             attend.q,
             range.lse,
             &view.segments[0],
             c.layer,
             c.chunk_begin,
             c.chunk_end,
             matrix(c.best, c.kv_heads, c.chunk_end - c.chunk_begin, c.best_stride)};
    require(c.q != nullptr && c.best != nullptr, "q or best is null");
  }
  ScoreCall(const ScoreCall&) = delete;  // args borrow the rest
  ScoreCall& operator=(const ScoreCall&) = delete;

  size_t lse_bytes() const {
    return round_up(static_cast<size_t>(attend.q.rows * attend.heads) * sizeof(float), kAlignment);
  }
  size_t workspace_bytes() const {
    return lse_bytes() +
           std::max(cpu_kernels().attend_scratch(attend, 1), cpu_kernels().score_scratch(score, 1));
  }

  KvView view;
  AttentionSpan span;
  ScoreRange range;
  AttendArgs attend;
  ScoreArgs score;
};

pagezip_status score(const pagezip_score_args* from, void* workspace, size_t bytes) {
  ScoreCall call(from);
  check_workspace(workspace, bytes, call.workspace_bytes());
  call.range.lse.data = static_cast<float*>(workspace);
  call.score.lse = call.range.lse;
  const std::span<std::byte> rest =
      std::span(static_cast<std::byte*>(workspace), bytes).subspan(call.lse_bytes());
  ThreadPool pool(rest);
  cpu_kernels().attend(call.attend, pool);
  cpu_kernels().score(call.score, pool);
  return PAGEZIP_OK;
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

// ---- compact ----

struct CompactCall {
  explicit CompactCall(const pagezip_compact_args* from)
      : args(read_struct(from, "pagezip_compact_args")),
        source_page(read_page(args.source_page)),
        target_page(args.target_page == nullptr ? source_page : read_page(args.target_page)),
        source(read_segment(args.source, args.layer_end, args.heads)),
        target(read_segment(args.target, args.layer_end, args.heads)) {
    require(source_page.k_type == target_page.k_type && source_page.v_type == target_page.v_type &&
                source_page.head_dim == target_page.head_dim,
            "source and target have different types or head_dim");
    require(is_size(args.layer_begin) && is_size(args.layer_end) && is_size(args.heads) &&
                is_size(int64_t{args.layer_end} * args.heads),
            "layers or heads out of range");
    require(is_size(args.source_first) && is_size(args.target_first), "a first pair out of range");
    require(args.first != nullptr, "first is null");
    for_lists([&](int layer, int head, std::span<const uint32_t> pairs) {
      const int64_t source_length = source.length(layer, head);
      require(args.target_first + static_cast<int64_t>(pairs.size()) <= target.length(layer, head),
              "a list of the target is too short");
      require(std::all_of(pairs.begin(), pairs.end(),
                          [&](uint32_t pair) { return args.source_first + pair < source_length; }),
              "a pair is behind the end of its source");
    });
  }

  template <typename F>
  void for_lists(const F& f) const {
    for (int layer = args.layer_begin; layer < args.layer_end; ++layer) {
      for (int head = 0; head < args.heads; ++head) {
        const uint64_t* first = args.first + static_cast<int64_t>(layer) * args.heads + head;
        require(first[0] <= first[1] && (first[0] == first[1] || args.pairs != nullptr),
                "first descends, or pairs is null");
        f(layer, head, std::span(args.pairs + first[0], first[1] - first[0]));
      }
    }
  }

  pagezip_compact_args args;
  PageLayout source_page;
  PageLayout target_page;
  Segment source;
  Segment target;
};

pagezip_status compact(const pagezip_compact_args* from) {
  const CompactCall call(from);
  ThreadPool threads(std::span<std::byte>{});
  call.for_lists([&](int layer, int head, std::span<const uint32_t> pairs) {
    std::array<uint32_t, 256> absolute;  // NOLINT: filled before it is read
    for (size_t begin = 0; begin < pairs.size(); begin += absolute.size()) {
      const auto part = pairs.subspan(begin, std::min(absolute.size(), pairs.size() - begin));
      std::transform(part.begin(), part.end(), absolute.begin(), [&](uint32_t pair) {
        return pair + static_cast<uint32_t>(call.args.source_first);
      });
      const std::span<const uint32_t> list(absolute.data(), part.size());
      cpu_kernels().copy_pairs({call.source_page,
                                &call.source,
                                call.target_page,
                                &call.target,
                                layer,
                                head,
                                {&list, 1},
                                call.args.target_first + static_cast<int64_t>(begin)},
                               threads);
    }
  });
  return PAGEZIP_OK;
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

const char* pagezip_isa(void) {
  static const std::string kIsa = cpu_kernels_isa();
  return kIsa.c_str();
}

size_t pagezip_page_bytes(const pagezip_page* page) {
  return c_api::bytes_or_0(
      [&] { return static_cast<size_t>(c_api::read_page(page).page_bytes()); });
}

size_t pagezip_attend_workspace_bytes(const pagezip_attend_args* args) {
  return c_api::bytes_or_0(
      [&] { return cpu_kernels().attend_scratch(c_api::AttendCall(args).args, 1); });
}

pagezip_status pagezip_attend(const pagezip_attend_args* args, void* workspace,
                              size_t workspace_bytes) {
  return c_api::guarded([&] { return c_api::attend(args, workspace, workspace_bytes); });
}

size_t pagezip_score_workspace_bytes(const pagezip_score_args* args) {
  return c_api::bytes_or_0([&] { return c_api::ScoreCall(args).workspace_bytes(); });
}

pagezip_status pagezip_score(const pagezip_score_args* args, void* workspace,
                             size_t workspace_bytes) {
  return c_api::guarded([&] { return c_api::score(args, workspace, workspace_bytes); });
}

size_t pagezip_select_workspace_bytes(const pagezip_select_args* args) {
  return c_api::bytes_or_0(
      [&] { return select_workspace_bytes(c_api::SelectCall(args).scores.lists()); });
}

pagezip_status pagezip_select(const pagezip_select_args* args, void* workspace,
                              size_t workspace_bytes) {
  return c_api::guarded([&] { return c_api::select(args, workspace, workspace_bytes); });
}

pagezip_status pagezip_compact(const pagezip_compact_args* args) {
  return c_api::guarded([&] { return c_api::compact(args); });
}

pagezip_status pagezip_merge(const pagezip_merge_args* args) {
  return c_api::guarded([&] { return c_api::merge(args); });
}
