// How attention sees cached keys and values: pages inside blocks, read through segments.
//
// A *page* holds `page_tokens` pairs of one (layer, KV head): K, then V, each padded to 64 bytes.
// V lies plain, [page_tokens, head_dim]. K lies transposed, [head_dim, page_tokens], so that a
// vector register holds one channel of neighbouring keys; or plain, as in the pools of others. A
// *segment* is an ordered list of pairs for every (layer, head) of one KV group, and a *KvView* is
// an ordered list of segments. One address formula serves uniform block tables, ragged documents
// and the score slot. All types here are PODs that borrow; whoever builds a view keeps the pages
// alive while it is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/host_device.h"
#include "base/math.h"

namespace pagezip {

/// Quantised types hold codes of 8 or 4 bits, of two channels the even one in the low half, and a
/// scale and a zero for each pair: value = zero + scale * code. Only the CUDA kernels read them.
enum class KvType : uint8_t { kF32, kF16, kBF16, kI8, kI4 };

PAGEZIP_HD constexpr bool is_quantised(KvType type) {
  return type == KvType::kI8 || type == KvType::kI4;
}
PAGEZIP_HD constexpr int bits_of(KvType type) {
  return type == KvType::kF32 ? 32 : type == KvType::kI8 ? 8 : type == KvType::kI4 ? 4 : 16;
}
/// REQUIRES: not kI4.
PAGEZIP_HD constexpr int64_t bytes_of(KvType type) { return bits_of(type) / 8; }

/// Transposed: [head_dim, page_tokens]. Plain: [page_tokens, head_dim]; the CPU attends to such
/// keys more slowly, to the same bits.
enum class KeyOrder : uint8_t { kTransposed, kPlain };

/// The layout of one page. Addresses are in units of 64 bytes, so page_bytes() is a multiple.
/// Behind the codes of a quantised type lie its parameters, [page_tokens] of (scale, zero) in
/// float16; its keys are plain.
struct PageLayout {
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  int page_tokens = 16;  // 16, 32 or 64
  int head_dim = 0;      // a multiple of 16
  KeyOrder key_order = KeyOrder::kTransposed;

  static constexpr int64_t kUnit = 64;
  /// What a page means, for pages that leave the process: its order of keys.
  constexpr uint32_t version() const { return key_order == KeyOrder::kTransposed ? 0 : 1; }
  /// Elements of K between neighbouring pairs, and between neighbouring channels.
  PAGEZIP_HD int64_t key_stride() const {
    return key_order == KeyOrder::kTransposed ? 1 : head_dim;
  }
  PAGEZIP_HD int64_t key_channel_stride() const {
    return key_order == KeyOrder::kTransposed ? page_tokens : 1;
  }
  /// Without and with the parameters.
  PAGEZIP_HD int64_t k_elements_bytes() const { return elements_bytes(k_type); }
  PAGEZIP_HD int64_t v_elements_bytes() const { return elements_bytes(v_type); }
  PAGEZIP_HD int64_t k_bytes() const { return k_elements_bytes() + parameters_bytes(k_type); }
  PAGEZIP_HD int64_t v_bytes() const { return v_elements_bytes() + parameters_bytes(v_type); }
  PAGEZIP_HD int64_t page_bytes() const { return k_bytes() + v_bytes(); }
  friend bool operator==(const PageLayout&, const PageLayout&) = default;

 private:
  PAGEZIP_HD int64_t elements_bytes(KvType type) const {
    return round_up(int64_t{bits_of(type)} * page_tokens * head_dim / 8, kUnit);
  }
  PAGEZIP_HD int64_t parameters_bytes(KvType type) const {
    return is_quantised(type) ? round_up(int64_t{4} * page_tokens, kUnit) : 0;
  }
};

/// Pairs [first_page * page_tokens, length(layer, head)) of every (layer, head) of a KV group.
/// Page p of (layer, head) lies at
///   base + 64 * (ids[first(layer, head) + p - first_page] * scale + offset
///                + layer * layer_stride + head * head_stride).
/// A *uniform* segment has `first == lengths == nullptr`: ids are blocks, shared by all layers and
/// heads, and pair i is the token at logical position first_position + i. A *ragged* segment gives
/// every (layer, head) its own list of pages (ids) and its own length; its pairs are in order of
/// position but with gaps, and all lie before any row that reads them.
struct Segment {
  std::byte* base = nullptr;
  const uint32_t* ids = nullptr;
  const uint32_t* first = nullptr;    // [layers * heads], or null: 0 for all
  const uint32_t* lengths = nullptr;  // [layers * heads], or null: uniform_length for all
  int64_t uniform_length = 0;         // pairs, counted from pair 0 even when first_page > 0
  int64_t first_page = 0;             // pages before it are gone (behind a sliding window)
  int64_t first_position = 0;         // logical position of pair 0
  uint64_t scale = 0;                 // units of 64 bytes
  uint64_t offset = 0;
  uint64_t layer_stride = 0;
  uint64_t head_stride = 0;
  int heads = 0;

  /// Equal segments are the same pairs of the same pages.
  friend bool operator==(const Segment&, const Segment&) = default;
  PAGEZIP_HD int64_t length(int layer, int head) const {
    return lengths == nullptr ? uniform_length : lengths[layer * heads + head];
  }
  PAGEZIP_HD std::byte* page(int layer, int head, int64_t p) const {
    const uint64_t start = first == nullptr ? 0 : first[layer * heads + head];
    const uint64_t id = ids[start + static_cast<uint64_t>(p - first_page)];
    return base +
           PageLayout::kUnit * (id * scale + offset + static_cast<uint64_t>(layer) * layer_stride +
                                static_cast<uint64_t>(head) * head_stride);
  }
};

/// Segments in the order in which they are merged: document, extension, child, private.
struct KvView {
  static constexpr int kSegmentsMax = 4;
  Segment segments[kSegmentsMax];
  int count = 0;

  void push(const Segment& segment) {
    CHECK_LT(count, kSegmentsMax);
    segments[count++] = segment;
  }
};

}  // namespace pagezip
