// Copies the kept pairs of one layer into pages of their own: bits unchanged, in order, with the
// scales of quantised pages. Page sizes and the order of keys may differ.
#pragma once

#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/pages.cuh"

namespace pagezip::cuda {

/// Pair i of `target` + target_first becomes pair pairs[first[list] + i] + source_first of
/// `source`, list = layer * heads + head.
struct CompactParams {
  PageLayout source_page;
  PageLayout target_page;  // same types and head_dim
  Segment source;
  Segment target;
  int layer;
  int heads;
  const uint64_t* first;  // [layers * heads + 1]
  const uint32_t* pairs;
  int64_t source_first;
  int64_t target_first;
};

// ---- kernels ----

inline constexpr int kCompactThreads = 256;
inline constexpr int kCompactPairs = 64;  // that a block moves at a time

/// Where the pairs of a block's turn come from and go.
struct CompactShared {
  struct Place {
    const std::byte* source;
    std::byte* target;
    int source_slot;
    int target_slot;
  };
  alignas(16) Place places[kCompactPairs];
};

/// Rows of whole bytes: values, plain keys, codes. `source` and `target` are bytes into the page.
__device__ __forceinline__ void copy_rows(const CompactShared& s, int count, int64_t source,
                                          int64_t target, int row_bytes) {
  const int words = row_bytes / 8;  // head_dim is a multiple of 16, so 4-bit rows are whole words
  for (int i = static_cast<int>(threadIdx.x); i < count * words; i += kCompactThreads) {
    const CompactShared::Place& place = s.places[i / words];
    const auto* from = reinterpret_cast<const uint64_t*>(place.source + source);
    auto* to = reinterpret_cast<uint64_t*>(place.target + target);
    to[place.target_slot * words + i % words] = from[place.source_slot * words + i % words];
  }
}

/// Keys of which at least one side is transposed; neighbouring threads take neighbouring pairs.
template <typename Element>
__device__ __forceinline__ void copy_key_elements(const CompactParams& p, const CompactShared& s,
                                                  int count) {
  const PageLayout& from_page = p.source_page;
  const PageLayout& to_page = p.target_page;
  for (int i = static_cast<int>(threadIdx.x); i < kCompactPairs * from_page.head_dim;
       i += kCompactThreads) {
    const int channel = i / kCompactPairs;
    if (i % kCompactPairs >= count) {
      continue;
    }
    const CompactShared::Place& place = s.places[i % kCompactPairs];
    const auto* from = reinterpret_cast<const Element*>(place.source);
    auto* to = reinterpret_cast<Element*>(place.target);
    to[place.target_slot * to_page.key_stride() + channel * to_page.key_channel_stride()] =
        from[place.source_slot * from_page.key_stride() + channel * from_page.key_channel_stride()];
  }
}

/// (scale, zero) of each pair.
__device__ __forceinline__ void copy_parameters(const CompactShared& s, int count, int64_t source,
                                                int64_t target) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kCompactThreads) {
    const CompactShared::Place& place = s.places[i];
    reinterpret_cast<uint32_t*>(place.target + target)[place.target_slot] =
        reinterpret_cast<const uint32_t*>(place.source + source)[place.source_slot];
  }
}

__device__ __forceinline__ void copy_pairs(const CompactParams& p, const CompactShared& s,
                                           int count) {
  const PageLayout& from = p.source_page;
  const PageLayout& to = p.target_page;
  if (from.key_order == KeyOrder::kPlain && to.key_order == KeyOrder::kPlain) {
    copy_rows(s, count, 0, 0, from.head_dim * bits_of(from.k_type) / 8);
  } else if (from.k_type == KvType::kF32) {
    copy_key_elements<uint32_t>(p, s, count);
  } else {
    copy_key_elements<uint16_t>(p, s, count);
  }
  copy_rows(s, count, from.k_bytes(), to.k_bytes(), from.head_dim * bits_of(from.v_type) / 8);
  if (is_quantised(from.k_type)) {
    copy_parameters(s, count, from.k_elements_bytes(), to.k_elements_bytes());
  }
  if (is_quantised(from.v_type)) {
    copy_parameters(s, count, from.k_bytes() + from.v_elements_bytes(),
                    to.k_bytes() + to.v_elements_bytes());
  }
}

/// blockIdx.y is the head; blocks of a head take turns of kCompactPairs pairs.
__global__ void __launch_bounds__(kCompactThreads) compact_kernel(CompactParams p) {
  auto& s = dynamic_shared<CompactShared>();
  const int head = static_cast<int>(blockIdx.y);
  const int64_t list = int64_t{p.layer} * p.heads + head;
  const uint32_t* pairs = p.pairs + p.first[list];
  const auto length = static_cast<int64_t>(p.first[list + 1] - p.first[list]);
  for (int64_t begin = int64_t{blockIdx.x} * kCompactPairs; begin < length;
       begin += int64_t{gridDim.x} * kCompactPairs) {
    const int64_t left = length - begin;
    const int count = left < kCompactPairs ? static_cast<int>(left) : kCompactPairs;
    __syncthreads();  // nobody reads the places of the turn before any more
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kCompactThreads) {
      const int64_t from = p.source_first + pairs[begin + i];
      const int64_t to = p.target_first + begin + i;
      s.places[i] = {p.source.page(p.layer, head, from / p.source_page.page_tokens),
                     p.target.page(p.layer, head, to / p.target_page.page_tokens),
                     static_cast<int>(from % p.source_page.page_tokens),
                     static_cast<int>(to % p.target_page.page_tokens)};
    }
    __syncthreads();
    copy_pairs(p, s, count);
  }
}

// ---- launchers ----

/// `blocks`: for each head; they share its list.
inline Status compact(const CompactParams& params, int blocks, Stream stream) {
  const Grid grid{static_cast<unsigned>(blocks), static_cast<unsigned>(params.heads)};
  return launch(compact_kernel, grid, kCompactThreads, sizeof(CompactShared), stream, params);
}

}  // namespace pagezip::cuda
