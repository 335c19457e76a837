// The operations on pages in a caller's memory: as much as Kernels::attend_scratch and
// score_scratch say, not a byte behind it, nothing from the heap, and the same bits.
#include <cstdlib>
#include <new>

#include "tests/kernels_attention_util.h"

// Sanitizers have an operator new of their own. Inlined, g++ takes free() here for a mistake.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define PAGEZIP_COUNTS_NEW 1

namespace {
thread_local int64_t news = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++news;
  void* memory = std::malloc(bytes);
  return memory != nullptr ? memory : throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  ++news;
  const auto align = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  return memory != nullptr ? memory : throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

namespace pagezip::test {
namespace {

int64_t allocations() {
#ifdef PAGEZIP_COUNTS_NEW
  return news;
#else
  return 0;
#endif
}

/// Memory of a size, with bytes behind it that must stay as they are.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : memory_(bytes + kGuard), bytes_(bytes) {
    std::memset(memory_.data() + bytes, 0x5a, kGuard);
  }
  std::span<std::byte> span() const { return {memory_.data(), bytes_}; }
  bool guard_is_whole() const {
    return std::all_of(memory_.data() + bytes_, memory_.data() + bytes_ + kGuard,
                       [](std::byte b) { return b == std::byte{0x5a}; });
  }

 private:
  static constexpr size_t kGuard = 4096;
  AlignedBytes memory_;
  size_t bytes_;
};

/// Some rows of one sequence behind its own document.
AttendProblem random_sequence(Prng& prng, const AttendProblem& shape) {
  AttendProblem problem = shape;
  const int64_t document = prng.range(1, 700);
  push_segment(prng, problem, {document}, 0);
  push_segment(prng, problem, {prng.range(20, 60)}, document);
  problem.q = random_matrix(prng, prng.range(1, 20), shape.heads * shape.page.head_dim);
  problem.first_position = document + prng.range(0, 20);
  return problem;
}

TEST(KernelsWorkspaceTest, AttendAndScore) {
  const Kernels& kernels = cpu_kernels();
  ThreadPool threads(2);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Prng prng(seed);
    const AttendProblem shape = random_shape(prng);
    std::vector<AttendProblem> problems;
    std::vector<PagedView> views;
    std::vector<AttentionSpan> spans;
    int64_t rows = 0;
    for (int64_t i = prng.range(1, 6); i > 0; --i) {
      problems.push_back(random_sequence(prng, shape));
      views.push_back(make_view(kernels, problems.back(), seed));
    }
    for (size_t i = 0; i < problems.size(); ++i) {
      const int64_t count = problems[i].q.rows;
      spans.push_back({rows, count, problems[i].first_position, &views[i].view, shape.layer, 0});
      rows += count;
    }
    const Matrix q = random_matrix(prng, rows, shape.heads * shape.page.head_dim);
    Matrix out(rows, q.cols);
    Matrix expected(rows, q.cols);
    Matrix lse(rows, shape.heads);
    AttendArgs args{shape.page,      shape.heads, shape.kv_heads, shape.scale, q.view(),
                    expected.view(), spans,       nullptr,        lse.view()};
    kernels.attend(args, threads);
    args.out = out.view();
    const int64_t chunk = problems[0].segments[0].length(0, shape.page.head_dim);
    Matrix best(shape.kv_heads, chunk, -100);
    Matrix expected_best = best;
    ScoreArgs score{shape.page,
                    shape.heads,
                    shape.kv_heads,
                    shape.scale,
                    q.view(),
                    lse.view(),
                    &views[0].view.segments[0],
                    shape.layer,
                    0,
                    chunk,
                    expected_best.view()};
    kernels.score(score, threads);
    score.best = best.view();

    const Workspace attend_memory(kernels.attend_scratch(args, 1));
    const Workspace score_memory(kernels.score_scratch(score, 1));
    const int64_t before = allocations();
    {
      ThreadPool pool(attend_memory.span());
      kernels.attend(args, pool);
      ThreadPool score_pool(score_memory.span());
      kernels.score(score, score_pool);
    }
    EXPECT_EQ(allocations(), before);
    EXPECT_TRUE(attend_memory.guard_is_whole());
    EXPECT_TRUE(score_memory.guard_is_whole());
    const std::string what = "seed " + std::to_string(seed);
    expect_same_bits(expected.data, out.data, what);
    expect_same_bits(expected_best.data, best.data, what);
    if (HasFatalFailure()) {
      return;
    }
  }
}

TEST(KernelsWorkspaceTest, StoreAndCopyNeedNoMemory) {
  const Kernels& kernels = cpu_kernels();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Prng prng(seed);
    const AttendProblem shape = random_shape(prng);
    const PagedSegment source = make_empty_pages(shape.page, kLayers, shape.kv_heads, {70}, 0, 1);
    const PagedSegment target = make_empty_pages(shape.page, kLayers, shape.kv_heads, {70}, 0, 2);
    const Matrix kv = random_matrix(prng, 70, shape.kv_heads * shape.page.head_dim);
    const std::vector<uint32_t> pairs{3, 5, 69};
    const std::span<const uint32_t> list(pairs);
    const int64_t before = allocations();
    ThreadPool pool(std::span<std::byte>{});
    store_pairs(kernels, shape.page, shape.kv_heads, kv.view(), kv.view(), source.segment,
                shape.layer, 0, pool);
    kernels.copy_pairs(
        {shape.page, &source.segment, shape.page, &target.segment, shape.layer, 0, {&list, 1}, 1},
        pool);
    EXPECT_EQ(allocations(), before);
    const PageLayout& page = shape.page;
    const auto first_key = [&](const PagedSegment& segment, int64_t pair) {
      const std::byte* start = segment.segment.page(shape.layer, 0, pair / page.page_tokens);
      return start[key_element(page, pair % page.page_tokens, 0) * bytes_of(page.k_type)];
    };
    EXPECT_EQ(first_key(source, 69), first_key(target, 3));
  }
}

#ifdef PAGEZIP_COUNTS_NEW
TEST(KernelsWorkspaceTest, AllocationsAreCounted) {
  const int64_t before = allocations();
  const Workspace memory(64);
  EXPECT_GT(allocations(), before);
}
#endif

}  // namespace
}  // namespace pagezip::test
