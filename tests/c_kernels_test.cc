// Tier 1 of the C ABI on pages: the same bits as the kernels behind it, with memory of exactly the
// size it asks for, and an answer for whatever arguments can be.
#include <gmock/gmock.h>

#include "api/pagezip.h"
#include "paging/selection.h"
#include "tests/kernels_attention_util.h"

namespace pagezip::test {
namespace {

using ::testing::HasSubstr;

template <typename T>
T sized() {
  T made{};
  made.size = sizeof made;
  return made;
}

pagezip_page c_page(const PageLayout& page) {
  auto c = sized<pagezip_page>();
  c.k_type = static_cast<pagezip_kv_type>(page.k_type);
  c.v_type = static_cast<pagezip_kv_type>(page.v_type);
  c.key_order = static_cast<pagezip_key_order>(page.key_order);
  c.page_tokens = page.page_tokens;
  c.head_dim = page.head_dim;
  return c;
}

pagezip_segment c_segment(const Segment& segment) {
  return {sizeof(pagezip_segment),
          segment.base,
          segment.ids,
          segment.first,
          segment.lengths,
          segment.uniform_length,
          segment.first_page,
          segment.first_position,
          segment.scale,
          segment.offset,
          segment.layer_stride,
          segment.head_stride,
          segment.heads};
}

/// A ragged document and a question's own pairs behind it.
AttendProblem random_problem(Prng& prng) {
  AttendProblem problem = random_shape(prng);
  std::vector<int64_t> lengths;
  for (int i = 0; i < problem.layers * problem.kv_heads; ++i) {
    lengths.push_back(prng.chance(0.2) ? 0 : prng.range(1, 300));
  }
  if (lengths.size() == 1 || prng.chance(0.3)) {
    lengths = {prng.range(1, 300)};
  }
  push_segment(prng, problem, lengths, 0);
  push_segment(prng, problem, {prng.range(20, 40)}, 400);
  problem.q = random_matrix(prng, prng.range(1, 10), problem.heads * problem.page.head_dim);
  problem.first_position = 400 + prng.range(0, 10);
  problem.window = prng.chance(0.2) ? static_cast<int>(prng.range(1, 500)) : 0;
  return problem;
}

/// The arguments of attend for a problem, and what they point to.
struct AttendFixture {
  AttendFixture(const AttendProblem& p, const PagedView& view)
      : page(c_page(p.page)), out(p.q.rows, p.q.cols), lse(p.q.rows, p.heads), q(p.q) {
    for (int i = 0; i < view.view.count; ++i) {
      segments.push_back(c_segment(view.view.segments[i]));
    }
    args.page = &page;
    args.segments = segments.data();
    args.segment_count = static_cast<int32_t>(segments.size());
    args.layer = p.layer;
    args.heads = p.heads;
    args.kv_heads = p.kv_heads;
    args.scale = p.scale;
    args.window = p.window;
    args.rows = p.q.rows;
    args.first_position = p.first_position;
    args.q = q.data.data();
    args.q_stride = q.stride;
    args.out = out.data.data();
    args.out_stride = out.stride;
    args.lse = lse.data.data();
    args.lse_stride = lse.stride;
  }
  AttendFixture(const AttendFixture&) = delete;
  AttendFixture& operator=(const AttendFixture&) = delete;

  pagezip_page page;
  std::vector<pagezip_segment> segments;
  Matrix out;
  Matrix lse;
  Matrix q;
  pagezip_attend_args args = sized<pagezip_attend_args>();
};

TEST(CKernels, AttendIsTheKernelsAttend) {
  ThreadPool threads(1);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Prng prng(seed);
    const AttendProblem problem = random_problem(prng);
    const PagedView view = make_view(cpu_kernels(), problem, seed);
    AttendFixture c(problem, view);
    Matrix out(c.out.rows, c.out.cols);
    Matrix lse(c.lse.rows, c.lse.cols);
    const AttentionSpan span{0,          problem.q.rows, problem.first_position,
                             &view.view, problem.layer,  problem.window};
    cpu_kernels().attend({problem.page,
                          problem.heads,
                          problem.kv_heads,
                          problem.scale,
                          c.q.view(),
                          out.view(),
                          {&span, 1},
                          nullptr,
                          lse.view()},
                         threads);
    const AlignedBytes workspace(pagezip_attend_workspace_bytes(&c.args));
    ASSERT_EQ(pagezip_attend(&c.args, workspace.data(), workspace.size()), PAGEZIP_OK)
        << pagezip_last_error();
    expect_same_bits(out.data, c.out.data, "out, seed " + std::to_string(seed));
    expect_same_bits(lse.data, c.lse.data, "lse, seed " + std::to_string(seed));
    EXPECT_EQ(pagezip_attend(&c.args, workspace.data(), workspace.size() - 1), PAGEZIP_INVALID);
    c.args.lse = nullptr;
    EXPECT_EQ(pagezip_attend(&c.args, workspace.data(), workspace.size()), PAGEZIP_OK);
  }
}

TEST(CKernels, PartsOfAViewMergeToTheWhole) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Prng prng(seed);
    AttendProblem problem = random_problem(prng);
    const PagedView view = make_view(cpu_kernels(), problem, seed);
    AttendFixture whole(problem, view);
    AttendFixture parts[] = {{problem, view}, {problem, view}};
    const AlignedBytes workspace(pagezip_attend_workspace_bytes(&whole.args));
    ASSERT_EQ(pagezip_attend(&whole.args, workspace.data(), workspace.size()), PAGEZIP_OK);
    for (int part = 0; part < 2; ++part) {
      pagezip_attend_args& args = parts[part].args;
      args.segments = &parts[part].segments[static_cast<size_t>(part)];
      args.segment_count = 1;
      ASSERT_EQ(pagezip_attend(&args, workspace.data(), workspace.size()), PAGEZIP_OK);
    }
    auto merge = sized<pagezip_merge_args>();
    merge.rows = problem.q.rows;
    merge.heads = problem.heads;
    merge.head_dim = problem.page.head_dim;
    merge.into_out = parts[0].args.out;
    merge.into_out_stride = parts[0].args.out_stride;
    merge.into_lse = parts[0].args.lse;
    merge.into_lse_stride = parts[0].args.lse_stride;
    merge.from_out = parts[1].args.out;
    merge.from_out_stride = parts[1].args.out_stride;
    merge.from_lse = parts[1].args.lse;
    merge.from_lse_stride = parts[1].args.lse_stride;
    ASSERT_EQ(pagezip_merge(&merge), PAGEZIP_OK);
    for (int64_t row = 0; row < problem.q.rows; ++row) {
      for (int64_t i = 0; i < whole.out.cols; ++i) {
        ASSERT_NEAR(parts[0].out.row(row)[i], whole.out.row(row)[i], 1e-4) << seed;
      }
      for (int64_t i = 0; i < whole.lse.cols; ++i) {
        const float lse = whole.lse.row(row)[i];
        ASSERT_NEAR(parts[0].lse.row(row)[i], lse, 1e-5 * (1 + std::abs(lse))) << seed;
      }
    }
  }
}

TEST(CKernels, AttendRefusesWhatCantBe) {
  Prng prng(3);
  const AttendProblem problem = random_problem(prng);
  const PagedView view = make_view(cpu_kernels(), problem, 3);
  const AlignedBytes workspace(1 << 22);
  const auto refuses = [&](auto change, const char* why) {
    AttendFixture c(problem, view);
    change(c);
    EXPECT_EQ(pagezip_attend(&c.args, workspace.data(), workspace.size()), PAGEZIP_INVALID) << why;
    EXPECT_THAT(pagezip_last_error(), HasSubstr(why));
  };
  refuses([](AttendFixture& c) { c.args.page = nullptr; }, "pagezip_page");
  refuses([](AttendFixture& c) { c.page.page_tokens = 17; }, "page_tokens");
  refuses([](AttendFixture& c) { c.page.head_dim = 24; }, "head_dim");
  refuses([](AttendFixture& c) { c.page.key_order = static_cast<pagezip_key_order>(2); }, "keys");
  refuses([](AttendFixture& c) { c.page.v_type = static_cast<pagezip_kv_type>(3); }, "type");
  refuses([](AttendFixture& c) { c.args.segment_count = 0; }, "segments");
  refuses([](AttendFixture& c) { c.args.segment_count = 5; }, "segments");
  refuses([](AttendFixture& c) { c.args.segments = nullptr; }, "segments");
  refuses([](AttendFixture& c) { c.segments[1].size = 0; }, "pagezip_segment");
  refuses([](AttendFixture& c) { c.segments[1].ids = nullptr; }, "ids");
  refuses([](AttendFixture& c) { c.segments[1].uniform_length = -1; }, "uniform_length");
  refuses([](AttendFixture& c) { c.segments[1].first_page = -1; }, "first_page");
  refuses([](AttendFixture& c) { c.segments[1].base = nullptr; }, "base");
  refuses(
      [](AttendFixture& c) {
        c.args.heads = c.args.kv_heads * 2 + (c.args.kv_heads > 1 ? 1 : 0);
        c.args.kv_heads = c.args.kv_heads > 1 ? c.args.kv_heads : 3;
      },
      "kv_heads");
  refuses([](AttendFixture& c) { c.args.kv_heads = 0; }, "kv_heads");
  refuses([](AttendFixture& c) { c.args.layer = -1; }, "layer");
  refuses([](AttendFixture& c) { c.args.rows = -1; }, "rows");
  refuses([](AttendFixture& c) { c.args.first_position = INT64_MAX; }, "positions");
  refuses([](AttendFixture& c) { c.args.window = -1; }, "window");
  refuses(
      [](AttendFixture& c) {
        c.args.rows = 2;
        c.args.out_stride = 1;
      },
      "stride");
  refuses([](AttendFixture& c) { c.args.q = nullptr; }, "q or out");
}

/// A uniform document, the rows of a repetition behind it, and what scoring a chunk writes.
struct ScoreFixture {
  explicit ScoreFixture(uint64_t seed) : prng(seed), problem(random_shape(prng)) {
    const int64_t length = prng.range(40, 300);
    push_segment(prng, problem, {length}, 0);
    const int64_t rows = prng.range(1, 30);
    push_segment(prng, problem, {rows + prng.range(0, 5)}, length);
    problem.q = random_matrix(prng, rows, problem.heads * problem.page.head_dim);
    problem.first_position = length;
    view = make_view(cpu_kernels(), problem, seed);
    const int64_t prefix_end = prng.range(0, length - 1);
    const int64_t chunk_begin = prng.range(prefix_end, length - 1);
    const int64_t chunk_end = prng.range(chunk_begin + 1, length);
    best = Matrix(problem.kv_heads, chunk_end - chunk_begin, -50);
    page = c_page(problem.page);
    document = c_segment(view.view.segments[0]);
    own = c_segment(view.view.segments[1]);
    args.page = &page;
    args.document = &document;
    args.own = &own;
    args.layer = problem.layer;
    args.heads = problem.heads;
    args.kv_heads = problem.kv_heads;
    args.scale = problem.scale;
    args.rows = rows;
    args.first_position = length;
    args.q = problem.q.data.data();
    args.q_stride = problem.q.stride;
    args.prefix_end = prefix_end;
    args.chunk_begin = chunk_begin;
    args.chunk_end = chunk_end;
    args.best = best.data.data();
    args.best_stride = best.stride;
  }
  ScoreFixture(const ScoreFixture&) = delete;
  ScoreFixture& operator=(const ScoreFixture&) = delete;

  Prng prng;
  AttendProblem problem;
  PagedView view;
  Matrix best{0, 0};
  pagezip_page page{};
  pagezip_segment document{};
  pagezip_segment own{};
  pagezip_score_args args = sized<pagezip_score_args>();
};

TEST(CKernels, ScoreIsBothPassesOfTheKernels) {
  ThreadPool threads(1);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ScoreFixture c(seed);
    const AttendProblem& problem = c.problem;
    Matrix lse(problem.q.rows, problem.heads);
    Matrix best = c.best;
    const ScoreRange range{c.args.prefix_end, c.args.chunk_begin, c.args.chunk_end, lse.view()};
    const AttentionSpan span{0, problem.q.rows, problem.first_position, &c.view.view,
                             problem.layer};
    cpu_kernels().attend({problem.page,
                          problem.heads,
                          problem.kv_heads,
                          problem.scale,
                          c.problem.q.view(),
                          {},
                          {&span, 1},
                          &range},
                         threads);
    cpu_kernels().score({problem.page, problem.heads, problem.kv_heads, problem.scale,
                         c.problem.q.view(), lse.view(), &c.view.view.segments[0], problem.layer,
                         c.args.chunk_begin, c.args.chunk_end, best.view()},
                        threads);
    const AlignedBytes workspace(pagezip_score_workspace_bytes(&c.args));
    ASSERT_EQ(pagezip_score(&c.args, workspace.data(), workspace.size()), PAGEZIP_OK)
        << pagezip_last_error();
    expect_same_bits(best.data, c.best.data, "seed " + std::to_string(seed));
    EXPECT_EQ(pagezip_score(&c.args, workspace.data(), workspace.size() - 1), PAGEZIP_INVALID);
  }
}

TEST(CKernels, ScoreRefusesWhatCantBe) {
  const AlignedBytes workspace(1 << 22);
  const auto refuses = [&](auto change, const char* why) {
    ScoreFixture c(5);
    change(c.args);
    EXPECT_EQ(pagezip_score(&c.args, workspace.data(), workspace.size()), PAGEZIP_INVALID) << why;
    EXPECT_THAT(pagezip_last_error(), HasSubstr(why));
    EXPECT_EQ(pagezip_score_workspace_bytes(&c.args), 0U);
  };
  refuses([](pagezip_score_args& a) { a.prefix_end = -1; }, "prefix_end");
  refuses([](pagezip_score_args& a) { a.chunk_begin = a.prefix_end - 1; }, "chunk_begin");
  refuses([](pagezip_score_args& a) { a.chunk_end += 1000; }, "behind the document");
  refuses([](pagezip_score_args& a) { a.first_position = a.chunk_end - 1; }, "whole chunk");
  refuses([](pagezip_score_args& a) { a.document = nullptr; }, "pagezip_segment");
  refuses([](pagezip_score_args& a) { a.best = nullptr; }, "best");
}

/// Whether a slot of a page has these values, which are rounded to its types.
bool holds_pair(const PageLayout& page, const std::byte* found, int64_t slot, const float* k,
                const float* v) {
  std::vector<std::byte> expected(static_cast<size_t>(page.page_bytes()));
  put_pair(page, expected.data(), slot, k, v);
  const auto same = [&](int64_t at, KvType type) {
    return std::memcmp(found + at, &expected[static_cast<size_t>(at)],
                       static_cast<size_t>(bytes_of(type))) == 0;
  };
  for (int64_t d = 0; d < page.head_dim; ++d) {
    if (!same(key_element(page, slot, d) * bytes_of(page.k_type), page.k_type) ||
        !same(page.k_bytes() + (slot * page.head_dim + d) * bytes_of(page.v_type), page.v_type)) {
      return false;
    }
  }
  return true;
}

TEST(CKernels, CompactsBetweenLayouts) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Prng prng(seed);
    const AttendProblem shape = random_shape(prng);
    PageLayout target_page = shape.page;
    target_page.key_order = prng.chance(0.5) ? KeyOrder::kPlain : KeyOrder::kTransposed;
    target_page.page_tokens = pick(prng, {16, 32, 64});
    const int64_t prefix = prng.range(0, 30);
    const int64_t tokens = prng.range(1, 100);
    const PlainSegment plain =
        random_segment(prng, shape.page, kLayers, shape.kv_heads, {prefix + tokens});
    const PagedSegment source =
        make_pages(cpu_kernels(), shape.page, kLayers, shape.kv_heads, plain, seed);
    ScoreSet scores{kLayers, shape.kv_heads, tokens, {}};
    for (int64_t i = scores.pairs(); i > 0; --i) {
      scores.scores.push_back(random_float(prng, 1));
    }
    const auto kept = std::get<KeptSets>(select_global(scores, prng.range(0, scores.pairs()), 0));
    std::vector<int64_t> lengths;
    for (int list = 0; list < kLayers * shape.kv_heads; ++list) {
      lengths.push_back(
          static_cast<int64_t>(kept.head(list / shape.kv_heads, list % shape.kv_heads).size()) + 2);
    }
    const PagedSegment target =
        make_empty_pages(target_page, kLayers, shape.kv_heads, lengths, 0, seed);
    const pagezip_page pages[] = {c_page(shape.page), c_page(target_page)};
    const pagezip_segment segments[] = {c_segment(source.segment), c_segment(target.segment)};
    auto args = sized<pagezip_compact_args>();
    args.source_page = &pages[0];
    args.source = &segments[0];
    args.target_page = &pages[1];
    args.target = &segments[1];
    args.layer_end = kLayers;
    args.heads = shape.kv_heads;
    args.first = kept.first.data();
    args.pairs = kept.pairs.data();
    args.source_first = prefix;
    args.target_first = 2;
    ASSERT_EQ(pagezip_compact(&args), PAGEZIP_OK) << pagezip_last_error();
    for (int list = 0; list < kLayers * shape.kv_heads; ++list) {
      const int layer = list / shape.kv_heads;
      const int head = list % shape.kv_heads;
      int64_t to = 2;
      for (const uint32_t pair : kept.head(layer, head)) {
        const auto from = static_cast<size_t>((prefix + pair) * shape.page.head_dim);
        ASSERT_TRUE(
            holds_pair(target_page, target.segment.page(layer, head, to / target_page.page_tokens),
                       to % target_page.page_tokens, &plain.k[static_cast<size_t>(list)][from],
                       &plain.v[static_cast<size_t>(list)][from]));
        ++to;
      }
    }
    if (kept.count() > 0) {
      args.source_first = prefix + tokens;
      EXPECT_EQ(pagezip_compact(&args), PAGEZIP_INVALID);
      EXPECT_THAT(pagezip_last_error(), HasSubstr("behind the end of its source"));
      args.source_first = prefix;
      args.target_first = 3;
      EXPECT_EQ(pagezip_compact(&args), PAGEZIP_INVALID);
      EXPECT_THAT(pagezip_last_error(), HasSubstr("too short"));
    }
  }
}

TEST(CKernels, PageBytes) {
  pagezip_page page = c_page({KvType::kF16, KvType::kF32, 16, 64, KeyOrder::kPlain});
  EXPECT_EQ(pagezip_page_bytes(&page), 16U * 64 * (2 + 4));
  page.head_dim = 0;
  EXPECT_EQ(pagezip_page_bytes(&page), 0U);
  EXPECT_EQ(pagezip_page_bytes(nullptr), 0U);
}

}  // namespace
}  // namespace pagezip::test
