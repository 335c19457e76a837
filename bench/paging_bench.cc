// What the books of the KV cache cost: blocks, hashes, and the prefix index at 100,000 tokens.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "paging/prefix_index.h"

namespace pagezip {
namespace {

constexpr int kPageTokens = 16;
constexpr int64_t kLength = 100000;
constexpr std::string_view kSpace = "a tenant's salt and the identity of a model";

KvGeometry geometry() {
  KvGeometry geometry;
  geometry.page = {KvType::kF16, KvType::kF16, kPageTokens, 64};
  geometry.kv_heads = 1;
  geometry.layers_per_block = 1;
  return geometry;
}

std::vector<TokenId> random_tokens(uint64_t seed, int64_t length) {
  Prng prng(seed);
  std::vector<TokenId> tokens(static_cast<size_t>(length));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(prng.below(150000));
  }
  return tokens;
}

/// A global group, and with a window as many sliding ones as in a Gemma 3 of one billion weights.
struct Cache {
  explicit Cache(int64_t blocks, int window = 0)
      : groups(make_kv_groups(
            window == 0 ? std::vector<bool>{true}
                        : std::vector<bool>{true, false, false, false, false, false, false},
            window)),
        pool(geometry(), blocks),
        index(pool, groups) {}

  /// A sequence of all `tokens`, written and published in steps, as a prompt is.
  void write(const std::vector<TokenId>& tokens, int64_t step = 512) {
    Sequence sequence(pool, groups, 0);
    PrefixIndex::Cursor cursor;
    for (int64_t length = 0; length < static_cast<int64_t>(tokens.size());) {
      length = std::min(length + step, static_cast<int64_t>(tokens.size()));
      auto reservation = pool.reserve(sequence.blocks_needed(length));
      sequence.grow(length, *reservation);
      index.publish(kSpace, tokens, sequence, length, KvOrigin::kPrefill, cursor);
      sequence.drop_behind(length);
    }
  }

  std::vector<KvGroup> groups;
  BlockPool pool;
  PrefixIndex index;
};

// ---- pool ----

void BM_TakeAndFree(benchmark::State& state) {
  BlockPool pool(geometry(), 4096);
  for (auto _ : state) {
    auto reservation = pool.reserve(1);
    benchmark::DoNotOptimize(pool.take(*reservation));
  }
}
BENCHMARK(BM_TakeAndFree);

// As sequences do it, 1,000 blocks at a time; an item is one block taken and freed.
void BM_GrowAndDrop(benchmark::State& state) {
  Cache cache(1000);
  for (auto _ : state) {
    Sequence sequence(cache.pool, cache.groups, 0);
    auto reservation = cache.pool.reserve(1000);
    sequence.grow(1000 * kPageTokens, *reservation);
  }
  state.SetItemsProcessed(1000 * state.iterations());
}
BENCHMARK(BM_GrowAndDrop);

// ---- index ----

void BM_HashPage(benchmark::State& state) {
  const auto page = static_cast<size_t>(state.range(0));
  const std::vector<TokenId> tokens = random_tokens(1, 64 * 64);
  for (auto _ : state) {
    PageHash hash;
    for (size_t first = 0; first < tokens.size(); first += page) {
      hash = hash_page(hash, std::span(tokens).subspan(first, page));
    }
    benchmark::DoNotOptimize(hash);
  }
  state.SetBytesProcessed(static_cast<int64_t>(tokens.size() * sizeof(TokenId)) *
                          state.iterations());
}
BENCHMARK(BM_HashPage)->Arg(16)->Arg(32)->Arg(64);

void acquire(benchmark::State& state, Cache& cache, const std::vector<TokenId>& tokens) {
  for (auto _ : state) {
    PrefixIndex::Hit hit = cache.index.acquire(kSpace, tokens, kLength, false);
    if (hit.length != kLength) {
      state.SkipWithError("no full hit");
    }
    benchmark::DoNotOptimize(hit);
  }
}

// The window, or 0.
void BM_Acquire(benchmark::State& state) {
  Cache cache(100000, static_cast<int>(state.range(0)));
  const std::vector<TokenId> tokens = random_tokens(1, kLength);
  cache.write(tokens);
  acquire(state, cache, tokens);
}
BENCHMARK(BM_Acquire)->Arg(0)->Arg(512)->Arg(4096)->Unit(benchmark::kMicrosecond);

/// The chain of `tokens`, grown by a page at a time among others, so that its nodes and blocks lie
/// far from each other; and at every page another one that was added later.
void write_scattered(Cache& cache, const std::vector<TokenId>& tokens) {
  constexpr int64_t kOtherPages = 10;
  for (int64_t length = kPageTokens; length <= kLength; length += kPageTokens) {
    cache.write(random_tokens(static_cast<uint64_t>(length), kOtherPages * kPageTokens));
    std::vector<TokenId> part(tokens.begin(), tokens.begin() + length);
    for (int child = 0; child < 2; ++child) {
      Sequence sequence(cache.pool, cache.groups, 0);
      PrefixIndex::Hit hit = cache.index.acquire(kSpace, part, length, false);
      if (hit.length > 0) {
        sequence.adopt(std::move(hit.runs));
      }
      auto reservation = cache.pool.reserve(1);
      sequence.grow(length, *reservation);
      cache.index.publish(kSpace, part, sequence, length, KvOrigin::kPrefill, hit.cursor);
      part.back() = -1;
    }
  }
}

void BM_AcquireScattered(benchmark::State& state) {
  Cache cache(100000);
  const std::vector<TokenId> tokens = random_tokens(1, kLength);
  write_scattered(cache, tokens);
  acquire(state, cache, tokens);
}
BENCHMARK(BM_AcquireScattered)->Unit(benchmark::kMicrosecond);

// Of a chain that lies in order, or of a scattered one, where every page is found by its hash.
void BM_Match(benchmark::State& state) {
  Cache cache(100000);
  const std::vector<TokenId> tokens = random_tokens(1, kLength);
  state.range(0) == 0 ? cache.write(tokens) : write_scattered(cache, tokens);
  for (auto _ : state) {
    benchmark::DoNotOptimize(cache.index.match(kSpace, tokens, kLength, false));
  }
}
BENCHMARK(BM_Match)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

// A new prompt of kLength tokens, with the work of its sequence; an item is a page.
void BM_Publish(benchmark::State& state) {
  Cache cache(100000, static_cast<int>(state.range(0)));
  const std::vector<TokenId> tokens = random_tokens(1, kLength);
  for (auto _ : state) {
    cache.write(tokens);
    state.PauseTiming();
    cache.index.clear();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(kLength / kPageTokens * state.iterations());
}
BENCHMARK(BM_Publish)->Arg(0)->Arg(512)->Arg(4096)->Unit(benchmark::kMicrosecond);

// A pool full of chains of 64 pages, emptied 16 blocks at a time; an item is a block.
void BM_Evict(benchmark::State& state) {
  Cache cache(100000, static_cast<int>(state.range(0)));
  int64_t blocks = 0;
  for (auto _ : state) {
    state.PauseTiming();
    for (uint64_t seed = 0; cache.pool.blocks_free() > 64 * 8; ++seed) {
      cache.write(random_tokens(seed, 64 * kPageTokens));
    }
    blocks += cache.pool.blocks_in_use();
    state.ResumeTiming();
    while (cache.index.evict(16) > 0) {
    }
  }
  state.SetItemsProcessed(blocks);
}
BENCHMARK(BM_Evict)->Arg(0)->Arg(512)->Arg(4096)->Unit(benchmark::kMicrosecond);

void BM_BlocksIdle(benchmark::State& state) {
  Cache cache(100000);
  for (uint64_t seed = 0; cache.pool.blocks_free() > 64; ++seed) {
    cache.write(random_tokens(seed, 64 * kPageTokens));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(cache.index.blocks_idle());
  }
}
BENCHMARK(BM_BlocksIdle)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace pagezip

BENCHMARK_MAIN();
