#include "kernels/cpu/kv_pages.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace pagezip::cpu {
namespace {

template <typename T>
void copy_strided(const std::byte* source, int64_t source_stride, std::byte* target,
                  int64_t target_stride, int64_t count) {
  const T* in = reinterpret_cast<const T*>(source);
  T* out = reinterpret_cast<T*>(target);
  for (int64_t i = 0; i < count; ++i) {
    out[i * target_stride] = in[i * source_stride];
  }
}

// Strides in elements.
void copy_elements(KvType type, const std::byte* source, int64_t source_stride, std::byte* target,
                   int64_t target_stride, int64_t count) {
  if (type == KvType::kF32) {
    copy_strided<float>(source, source_stride, target, target_stride, count);
  } else {
    copy_strided<uint16_t>(source, source_stride, target, target_stride, count);
  }
}

// target[d][kWidenedPairs] = plain keys [tokens, head_dim].
void widen_plain_keys(const PageLayout& page, const std::byte* keys, float* target) {
  constexpr int64_t kChannels = 16;  // at a time; divides head_dim
  float rows[kChannels];
  const int64_t row_bytes = bytes_of(page.k_type) * page.head_dim;
  for (int64_t t = 0; t < page.page_tokens; ++t) {
    for (int64_t d = 0; d < page.head_dim; d += kChannels) {
      simd_ops().widen(page.k_type, keys + t * row_bytes + d * bytes_of(page.k_type), rows,
                       kChannels, 1, kChannels);
      for (int64_t i = 0; i < kChannels; ++i) {
        target[(d + i) * kWidenedPairs + t] = rows[i];
      }
    }
  }
}

}  // namespace

void widen_keys(const PageLayout& page, const Segment& segment, int layer, int head, int64_t step,
                int64_t low, int64_t high, float* target) {
  const int64_t tokens = page.page_tokens;
  for (int64_t p = std::max(step, low / tokens * tokens); p < std::min(step + kWidenedPairs, high);
       p += tokens) {
    const std::byte* keys = segment.page(layer, head, p / tokens);
    if (page.key_order == KeyOrder::kPlain) {
      widen_plain_keys(page, keys, target + (p - step));
    } else {
      simd_ops().widen(page.k_type, keys, target + (p - step), kWidenedPairs, page.head_dim,
                       tokens);
    }
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
  constexpr int64_t kChannels = 16;  // at a time; divides head_dim
  const PageLayout& page = args.page;
  check_floats(page);
  const int64_t d = page.head_dim;
  const int64_t k_size = bytes_of(page.k_type);
  for (const AttentionSpan& span : args.spans) {
    const Segment& target = span.view->segments[span.view->count - 1];
    for_rows(span.rows, int64_t{2} * args.kv_heads * d, pool, [&](int64_t r, int) {
      const int64_t pair = span.first_position + r - target.first_position;
      const int64_t slot = pair % page.page_tokens;
      const float* k_row = args.k.row(span.first_row + r);
      const float* v_row = args.v.row(span.first_row + r);
      std::byte narrowed[kChannels * sizeof(float)];
      for (int head = 0; head < args.kv_heads; ++head) {
        std::byte* start = target.page(span.layer, head, pair / page.page_tokens);
        std::byte* k = start + slot * page.key_stride() * k_size;
        for (int64_t c = 0; c < d; c += kChannels) {
          simd_ops().narrow(page.k_type, k_row + head * d + c, narrowed, kChannels);
          copy_elements(page.k_type, narrowed, 1, k + c * page.key_channel_stride() * k_size,
                        page.key_channel_stride(), kChannels);
        }
        simd_ops().narrow(page.v_type, v_row + head * d,
                          start + page.k_bytes() + slot * d * bytes_of(page.v_type), d);
      }
    });
  }
}

void copy_pairs(const CopyPairsArgs& args, ThreadPool& pool) {
  constexpr size_t kSerialPairs = 256;
  const PageLayout& from = args.source_page;
  const PageLayout& to = args.target_page;
  check_same_elements(args);
  const int64_t k_size = bytes_of(from.k_type);
  const int64_t v_row = bytes_of(from.v_type) * from.head_dim;
  const auto copy_list = [&](int64_t list, int) {
    const int head = args.first_head + static_cast<int>(list);
    int64_t target_pair = args.target_first;
    for (const int64_t source_pair : args.pairs[static_cast<size_t>(list)]) {
      const int64_t source_slot = source_pair % from.page_tokens;
      const int64_t target_slot = target_pair % to.page_tokens;
      const std::byte* source = args.source->page(args.layer, head, source_pair / from.page_tokens);
      std::byte* target = args.target->page(args.layer, head, target_pair / to.page_tokens);
      copy_elements(from.k_type, source + source_slot * from.key_stride() * k_size,
                    from.key_channel_stride(), target + target_slot * to.key_stride() * k_size,
                    to.key_channel_stride(), from.head_dim);
      std::memcpy(target + to.k_bytes() + target_slot * v_row,
                  source + from.k_bytes() + source_slot * v_row, static_cast<size_t>(v_row));
      ++target_pair;
    }
  };
  const auto lists = static_cast<int64_t>(args.pairs.size());
  const size_t pairs =
      std::accumulate(args.pairs.begin(), args.pairs.end(), size_t{0},
                      [](size_t sum, const auto& list) { return sum + list.size(); });
  if (pairs > kSerialPairs) {
    pool.parallel_for(lists, copy_list);
    return;
  }
  for (int64_t list = 0; list < lists; ++list) {  // a wake-up would take longer
    copy_list(list, 0);
  }
}

}  // namespace pagezip::cpu
