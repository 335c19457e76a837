// Pairs whose K and V bytes all depend on a 64-bit fingerprint, written, copied and checked through
// segments: plain loops that know the page layout and nothing else.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kv_view.h"

namespace pagezip {

/// Calls f(address, bytes, number) for every element of a pair; numbers count K, then V.
template <typename Visit>
void visit_elements(const PageLayout& layout, const Segment& segment, int layer, int head,
                    int64_t pair, const Visit& f) {
  std::byte* page = segment.page(layer, head, pair / layout.page_tokens);
  const int64_t slot = pair % layout.page_tokens;
  const int64_t k_bytes = bytes_of(layout.k_type);
  for (int channel = 0; channel < layout.head_dim; ++channel) {
    const bool plain = layout.key_order == KeyOrder::kPlain;
    const int64_t element =
        plain ? slot * layout.head_dim + channel : channel * layout.page_tokens + slot;
    f(page + element * k_bytes, k_bytes, channel);
  }
  const int64_t v_bytes = bytes_of(layout.v_type);
  std::byte* v_row = page + layout.k_bytes() + slot * layout.head_dim * v_bytes;
  for (int channel = 0; channel < layout.head_dim; ++channel) {
    f(v_row + channel * v_bytes, v_bytes, layout.head_dim + channel);
  }
}

inline uint32_t fingerprint_element(uint64_t print, int number) {
  return static_cast<uint32_t>(print >> (number & 31)) * 0x9e3779b1u +
         static_cast<uint32_t>(number);
}

inline void write_pair(const PageLayout& layout, const Segment& segment, int layer, int head,
                       int64_t pair, uint64_t print) {
  visit_elements(layout, segment, layer, head, pair, [&](std::byte* at, int64_t bytes, int number) {
    const uint32_t bits = fingerprint_element(print, number);
    std::memcpy(at, &bits, static_cast<size_t>(bytes));
  });
}

inline bool pair_is(const PageLayout& layout, const Segment& segment, int layer, int head,
                    int64_t pair, uint64_t print) {
  uint32_t differing = 0;
  visit_elements(layout, segment, layer, head, pair, [&](std::byte* at, int64_t bytes, int number) {
    uint32_t bits = 0;
    std::memcpy(&bits, at, 2);
    if (bytes == 4) {
      std::memcpy(&bits, at, 4);
    }
    const uint32_t mask = bytes == 4 ? UINT32_MAX : UINT16_MAX;
    differing |= (bits ^ fingerprint_element(print, number)) & mask;
  });
  return differing == 0;
}

inline void copy_pair(const PageLayout& layout, const Segment& source, const Segment& target,
                      int layer, int head, int64_t from, int64_t to) {
  const std::byte* elements[2 * 256];
  CHECK_LE(layout.head_dim, 256);
  visit_elements(layout, source, layer, head, from,
                 [&](std::byte* at, int64_t, int number) { elements[number] = at; });
  visit_elements(layout, target, layer, head, to, [&](std::byte* at, int64_t bytes, int number) {
    std::memcpy(at, elements[number], static_cast<size_t>(bytes));
  });
}

}  // namespace pagezip
