#include "kernels/cpu/kv_pages.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace pagezip::cpu {
namespace {

template <typename T>
void scatter(const T* source, T* target, int64_t stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    target[i * stride] = source[i];
  }
}

template <typename T>
void copy_column(const std::byte* source, int64_t from, std::byte* target, int64_t to,
                 int64_t stride, int64_t count) {
  const T* in = reinterpret_cast<const T*>(source) + from;
  T* out = reinterpret_cast<T*>(target) + to;
  for (int64_t i = 0; i < count; ++i) {
    out[i * stride] = in[i * stride];
  }
}

}  // namespace

void widen_keys(const PageLayout& page, const Segment& segment, int layer, int head, int64_t step,
                int64_t low, int64_t high, float* target) {
  const int64_t tokens = page.page_tokens;
  for (int64_t p = std::max(step, low / tokens * tokens); p < std::min(step + kWidenedPairs, high);
       p += tokens) {
    simd_ops().widen(page.k_type, segment.page(layer, head, p / tokens), target + (p - step),
                     kWidenedPairs, page.head_dim, tokens);
  }
}

void widen_values(const PageLayout& page, const Segment& segment, int layer, int head,
                  int64_t first, int64_t end, float* target) {
  const int64_t tokens = page.page_tokens;
  const int64_t row = bytes_of(page.v_type) * page.head_dim;
  for (int64_t p = first; p < end;) {
    const int64_t count = std::min(end - p, tokens - p % tokens);
    const std::byte* v = segment.page(layer, head, p / tokens) + page.k_bytes();
    simd_ops().widen(page.v_type, v + p % tokens * row, target + (p - first) * page.head_dim,
                     page.head_dim, count, page.head_dim);
    p += count;
  }
}

void store_kv(const StoreKvArgs& args, ThreadPool& pool) {
  const int64_t d = args.page.head_dim;
  const int64_t tokens = args.page.page_tokens;
  for_rows(args.k.rows, int64_t{2} * args.kv_heads * d, pool, [&](int64_t r, int thread) {
    const int64_t pair = args.first_pair + r;
    const int64_t slot = pair % tokens;
    auto* narrowed = pool.scratch(thread, static_cast<size_t>(d) * sizeof(float));
    for (int head = 0; head < args.kv_heads; ++head) {
      std::byte* page = args.target->page(args.layer, head, pair / tokens);
      simd_ops().narrow(args.page.k_type, args.k.row(r) + head * d, narrowed, d);
      if (args.page.k_type == KvType::kF32) {
        scatter(reinterpret_cast<const float*>(narrowed), reinterpret_cast<float*>(page) + slot,
                tokens, d);
      } else {
        scatter(reinterpret_cast<const uint16_t*>(narrowed),
                reinterpret_cast<uint16_t*>(page) + slot, tokens, d);
      }
      simd_ops().narrow(args.page.v_type, args.v.row(r) + head * d,
                        page + args.page.k_bytes() + slot * d * bytes_of(args.page.v_type), d);
    }
  });
}

void copy_pairs(const CopyPairsArgs& args) {
  const int64_t tokens = args.page.page_tokens;
  const int64_t v_row = bytes_of(args.page.v_type) * args.page.head_dim;
  for (size_t i = 0; i < args.pairs.size(); ++i) {
    const int64_t from = args.pairs[i];
    const int64_t to = args.target_first + static_cast<int64_t>(i);
    const std::byte* source = args.source->page(args.layer, args.head, from / tokens);
    std::byte* target = args.target->page(args.layer, args.head, to / tokens);
    if (args.page.k_type == KvType::kF32) {
      copy_column<float>(source, from % tokens, target, to % tokens, tokens, args.page.head_dim);
    } else {
      copy_column<uint16_t>(source, from % tokens, target, to % tokens, tokens, args.page.head_dim);
    }
    std::memcpy(target + args.page.k_bytes() + to % tokens * v_row,
                source + args.page.k_bytes() + from % tokens * v_row, static_cast<size_t>(v_row));
  }
}

}  // namespace pagezip::cpu
