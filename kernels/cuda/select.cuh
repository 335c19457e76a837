// Which pairs a document keeps, on the device: exactly `keep` of them in the order (score
// descending, layer, head, position), as paging/selection.h defines it. Scores become integer keys;
// three histograms (11, 11 and 10 bits) find the key of the last pair that stays and how many of
// its equals do; counts of chunks, summed in order, then give every kept pair its place. All passes
// are O(pairs), nothing is sorted, and no result depends on the order in which blocks run.
//
// A *scope* is what is cut by one threshold: all lists together, or each (layer, head) alone. The
// floor of min_per_head is a selection with the second scope whose pairs get the highest key.
#pragma once

#include <utility>

#include "base/math.h"
#include "base/mutant.h"
#include "kernels/cuda/collectives.cuh"

namespace pagezip::cuda {

inline constexpr int kSelectThreads = 256;
inline constexpr int kSelectChunk = 4096;  // pairs of one list that a block takes at a time
inline constexpr int kSelectBins = 2048;
inline constexpr uint32_t kForcedKey = 0xffffffffu;  // no finite score has it

/// Everything above `key` stays, and of the pairs equal to it the first `ties`.
struct SelectCut {
  uint32_t key;
  int64_t ties;
};
/// Pairs of a chunk, or of the chunks before it in its scope.
struct SelectCount {
  int64_t above;
  int64_t ties;
};

struct SelectParams {
  const float* scores;  // of (layer, head): scores + layer * layer_stride + head * head_stride
  int64_t layer_stride;
  int64_t head_stride;
  int lists;  // layers * heads
  int heads;
  int64_t tokens;
  int lists_per_scope;
  int64_t keep;  // of each scope; at most its pairs
  // Workspace.
  uint32_t* keys;       // [lists, tokens]
  uint32_t* histogram;  // [scopes, kSelectBins]
  SelectCut* cuts;      // [scopes]
  SelectCount* counts;  // [lists * chunks_per_list]
  // Results.
  uint64_t* first;          // [lists + 1]
  uint32_t* pairs;          // [keep * scopes]
  unsigned long long* bad;  // lowest index [list * tokens + position] of a NaN or infinity, or ~0

  int scopes() const { return lists / lists_per_scope; }
};

/// One of the three histograms: bits [shift, shift + bits) of the key.
struct SelectDigit {
  SelectParams p;
  int shift;
  int bits;
};

// ---- kernels ----

__device__ __forceinline__ int64_t chunks_per_list(const SelectParams& p) {
  return ceil_div(p.tokens, kSelectChunk);
}

/// Maps finite floats to integers of the same order, both zeros to one.
__device__ __forceinline__ uint32_t order_key(float score) {
  const uint32_t bits = float_bits(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The pairs of this block's chunk: list blockIdx.x / chunks_per_list, positions [begin, end).
struct SelectChunk {
  int list;
  int64_t begin;
  int64_t end;

  __device__ explicit SelectChunk(const SelectParams& p) {
    const int64_t chunks = chunks_per_list(p);
    list = static_cast<int>(blockIdx.x / chunks);
    begin = blockIdx.x % chunks * kSelectChunk;
    end = begin + kSelectChunk < p.tokens ? begin + kSelectChunk : p.tokens;
  }
};

__global__ void __launch_bounds__(kSelectThreads) select_keys_kernel(SelectParams p) {
  const SelectChunk chunk(p);
  const float* scores =
      p.scores + chunk.list / p.heads * p.layer_stride + chunk.list % p.heads * p.head_stride;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += kSelectThreads) {
    const int64_t index = chunk.list * p.tokens + i;
    p.keys[index] = order_key(scores[i]);
    if (!(fabsf(scores[i]) < INFINITY)) {
      atomicMin(p.bad, static_cast<unsigned long long>(index));
    }
  }
}

/// Block i prepares scope i.
__global__ void __launch_bounds__(kSelectThreads) select_begin_kernel(SelectParams p) {
  for (int i = static_cast<int>(threadIdx.x); i < kSelectBins; i += kSelectThreads) {
    p.histogram[int64_t{blockIdx.x} * kSelectBins + i] = 0;
  }
  if (threadIdx.x == 0) {
    p.cuts[blockIdx.x] = {0, p.keep};
  }
}

struct HistogramShared {
  alignas(16) uint32_t bins[kSelectBins];
};

__global__ void __launch_bounds__(kSelectThreads) select_histogram_kernel(SelectDigit d) {
  auto& s = dynamic_shared<HistogramShared>();
  const SelectChunk chunk(d.p);
  const int scope = chunk.list / d.p.lists_per_scope;
  for (int i = static_cast<int>(threadIdx.x); i < kSelectBins && !MUTANT(kUninitialisedShared);
       i += kSelectThreads) {
    s.bins[i] = 0;
  }
  __syncthreads();
  const int settled = d.shift + d.bits;  // bits from here up are known
  const uint64_t known = uint64_t{d.p.cuts[scope].key} >> settled;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += kSelectThreads) {
    const uint32_t key = d.p.keys[chunk.list * d.p.tokens + i];
    if (uint64_t{key} >> settled == known) {
      atomicAdd(&s.bins[key >> d.shift & ((1u << d.bits) - 1)], 1u);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 1 << d.bits; i += kSelectThreads) {
    if (s.bins[i] != 0) {
      atomicAdd(&d.p.histogram[int64_t{scope} * kSelectBins + i], s.bins[i]);
    }
  }
}

struct DigitShared {
  alignas(16) int64_t sums[kSelectThreads / kWarpLanes];
};

/// Block i settles the next digit of scope i's cut, and clears its histogram. Thread t looks at 8
/// bins, from the highest down.
__global__ void __launch_bounds__(kSelectThreads) select_digit_kernel(SelectDigit d) {
  constexpr int kBins = kSelectBins / kSelectThreads;
  auto& s = dynamic_shared<DigitShared>();
  uint32_t* histogram = d.p.histogram + int64_t{blockIdx.x} * kSelectBins;
  const SelectCut cut = d.p.cuts[blockIdx.x];
  const int highest = kSelectBins - 1 - static_cast<int>(threadIdx.x) * kBins;
  uint32_t bins[kBins];
  int64_t own = 0;
  for (int i = 0; i < kBins; ++i) {
    bins[i] = histogram[highest - i];
    histogram[highest - i] = 0;
    own += bins[i];
  }
  int64_t before = block_exclusive_sum<kSelectThreads>(own, s.sums).before;
  // The first bin from above that holds the keep-th key; where nothing is kept, the top one.
  for (int i = 0; i < kBins; ++i) {
    const bool is_top = highest - i == (1 << d.bits) - 1;
    if ((before < cut.ties && cut.ties <= before + bins[i]) || (cut.ties == 0 && is_top)) {
      d.p.cuts[blockIdx.x] = {cut.key | static_cast<uint32_t>(highest - i) << d.shift,
                              cut.ties - before};
    }
    before += bins[i];
  }
}

/// What precedes element i of a chunk within it, counted by all threads of the block together;
/// `above` in bits 0-15, ties in bits 16-31.
struct ChunkSumShared {
  alignas(16) uint32_t sums[2][kSelectThreads / kWarpLanes];
};

/// Calls visit(position, above, ties, flags) for each pair of the chunk that a thread has, where
/// flags says whether this one is above the cut (1), tied (1 << 16) or neither (0). RETURNS: the
/// chunk's sums.
template <typename Visit>
__device__ __forceinline__ uint32_t visit_chunk(const SelectParams& p, const SelectChunk& chunk,
                                                ChunkSumShared& s, const Visit& visit) {
  const uint32_t cut = p.cuts[chunk.list / p.lists_per_scope].key;
  uint32_t before = 0;
  for (int64_t first = chunk.begin; first < chunk.end; first += kSelectThreads) {
    const int64_t position = first + threadIdx.x;
    uint32_t flags = 0;
    if (position < chunk.end) {
      const uint32_t key = p.keys[chunk.list * p.tokens + position];
      flags = key > cut ? 1u : key == cut ? 1u << 16 : 0u;
    }
    // Two buffers: the sums of a round may still be read when the next one writes.
    const auto sum = block_exclusive_sum<kSelectThreads>(
        flags, s.sums[(first - chunk.begin) / kSelectThreads % 2]);
    const uint32_t mine = before + sum.before;
    visit(position, mine & 0xffffu, mine >> 16, flags);
    before += sum.all;
  }
  return before;
}

__global__ void __launch_bounds__(kSelectThreads) select_count_kernel(SelectParams p) {
  auto& s = dynamic_shared<ChunkSumShared>();
  const SelectChunk chunk(p);
  const uint32_t sums = visit_chunk(p, chunk, s, [](int64_t, uint32_t, uint32_t, uint32_t) {});
  if (threadIdx.x == 0) {
    p.counts[blockIdx.x] = {sums & 0xffffu, sums >> 16};
  }
}

struct ScanShared {
  alignas(16) int64_t above[2][kSelectThreads / kWarpLanes];
  int64_t ties[2][kSelectThreads / kWarpLanes];
};

/// How many of a scope's first pairs are kept.
__device__ __forceinline__ int64_t kept_of(const SelectCount& count, const SelectCut& cut) {
  const int64_t ties = count.ties < cut.ties || MUTANT(kTiesUncounted) ? count.ties : cut.ties;
  return count.above + ties;
}

/// Block i turns the counts of scope i's chunks into sums of those before, and writes where its
/// lists begin.
__global__ void __launch_bounds__(kSelectThreads) select_scan_kernel(SelectParams p) {
  auto& s = dynamic_shared<ScanShared>();
  const int64_t per_list = chunks_per_list(p);
  const int64_t chunks = per_list * p.lists_per_scope;
  const SelectCut cut = p.cuts[blockIdx.x];
  SelectCount before{0, 0};
  for (int64_t first = 0; first < chunks; first += kSelectThreads) {
    const int64_t in_scope = first + threadIdx.x;
    const int64_t at = blockIdx.x * chunks + in_scope;
    const SelectCount own = in_scope < chunks ? p.counts[at] : SelectCount{0, 0};
    const int buffer = static_cast<int>(first / kSelectThreads % 2);
    const auto above = block_exclusive_sum<kSelectThreads>(own.above, s.above[buffer]);
    const auto ties = block_exclusive_sum<kSelectThreads>(own.ties, s.ties[buffer]);
    const SelectCount mine{before.above + above.before, before.ties + ties.before};
    if (in_scope < chunks) {
      p.counts[at] = mine;
      if (in_scope % per_list == 0) {
        p.first[at / per_list] = static_cast<uint64_t>(blockIdx.x * p.keep + kept_of(mine, cut));
      }
    }
    before = {before.above + above.all, before.ties + ties.all};
  }
  if (threadIdx.x == 0 && blockIdx.x + 1 == gridDim.x) {
    p.first[p.lists] = static_cast<uint64_t>(blockIdx.x * p.keep + kept_of(before, cut));
  }
}

/// Whether a pair stays, and how many of its scope before it do.
struct KeptPlace {
  bool kept;
  int64_t before;
};
__device__ __forceinline__ KeptPlace place_of(const SelectCount& count, const SelectCut& cut,
                                              uint32_t above, uint32_t ties, uint32_t flags) {
  const SelectCount mine{count.above + above, count.ties + ties};
  const bool tie_stays = flags >> 16 != 0 && (mine.ties < cut.ties || MUTANT(kTiesUncounted));
  return {(flags & 1) != 0 || tie_stays, kept_of(mine, cut)};
}

__global__ void __launch_bounds__(kSelectThreads) select_emit_kernel(SelectParams p) {
  auto& s = dynamic_shared<ChunkSumShared>();
  const SelectChunk chunk(p);
  const int scope = chunk.list / p.lists_per_scope;
  const SelectCut cut = p.cuts[scope];
  const SelectCount count = p.counts[blockIdx.x];
  visit_chunk(p, chunk, s, [&](int64_t position, uint32_t above, uint32_t ties, uint32_t flags) {
    const KeptPlace place = place_of(count, cut, above, ties, flags);
    if (place.kept) {
      int64_t at = scope * p.keep + place.before;
      if (MUTANT(kUnstableCompaction)) {
        at ^= at + 1 < scope * p.keep + p.keep ? 1 : 0;
      }
      p.pairs[at] = static_cast<uint32_t>(position);
    }
  });
}

/// Gives what a floor keeps the highest key.
__global__ void __launch_bounds__(kSelectThreads) select_force_kernel(SelectParams p) {
  auto& s = dynamic_shared<ChunkSumShared>();
  const SelectChunk chunk(p);
  const SelectCut cut = p.cuts[chunk.list / p.lists_per_scope];
  const SelectCount count = p.counts[blockIdx.x];
  visit_chunk(p, chunk, s, [&](int64_t position, uint32_t above, uint32_t ties, uint32_t flags) {
    if (place_of(count, cut, above, ties, flags).kept) {
      p.keys[chunk.list * p.tokens + position] = kForcedKey;
    }
  });
}

// ---- launchers ----

/// The first status that isn't success.
class Launches {
 public:
  void add(Status status) { status_ = status_ == Status{} ? status : status_; }
  Status status() const { return status_; }

 private:
  Status status_{};
};

/// Finds the cut of every scope, and what lies before every chunk.
inline void cut_scopes(const SelectParams& p, Stream stream, Launches& launches) {
  const Grid scopes{static_cast<unsigned>(p.scopes()), 1};
  const Grid chunks{static_cast<unsigned>(p.lists * ceil_div(p.tokens, kSelectChunk)), 1};
  launches.add(launch(select_begin_kernel, scopes, kSelectThreads, 0, stream, p));
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    const SelectDigit digit{p, shift, bits};
    launches.add(launch(select_histogram_kernel, chunks, kSelectThreads, sizeof(HistogramShared),
                        stream, digit));
    launches.add(
        launch(select_digit_kernel, scopes, kSelectThreads, sizeof(DigitShared), stream, digit));
  }
  launches.add(
      launch(select_count_kernel, chunks, kSelectThreads, sizeof(ChunkSumShared), stream, p));
  launches.add(launch(select_scan_kernel, scopes, kSelectThreads, sizeof(ScanShared), stream, p));
}

/// With `floor` > 0, the best `floor` pairs of every list are kept whatever their score; p.keep is
/// then at least what all floors take. REQUIRES: lists and tokens > 0, *p.bad == ~0, floor <=
/// tokens.
inline Status select(const SelectParams& p, int64_t floor, Stream stream) {
  Launches launches;
  const Grid chunks{static_cast<unsigned>(p.lists * ceil_div(p.tokens, kSelectChunk)), 1};
  launches.add(launch(select_keys_kernel, chunks, kSelectThreads, 0, stream, p));
  if (floor > 0) {
    SelectParams each_list = p;
    each_list.lists_per_scope = 1;
    each_list.keep = floor;
    cut_scopes(each_list, stream, launches);
    launches.add(launch(select_force_kernel, chunks, kSelectThreads, sizeof(ChunkSumShared), stream,
                        each_list));
  }
  cut_scopes(p, stream, launches);
  launches.add(
      launch(select_emit_kernel, chunks, kSelectThreads, sizeof(ChunkSumShared), stream, p));
  return launches.status();
}

}  // namespace pagezip::cuda
