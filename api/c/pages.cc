#include "api/c/pages.h"

namespace pagezip::c_api {
namespace {

constexpr int32_t kHeadDimMax = 1024;

static_assert(static_cast<int>(KvType::kF32) == PAGEZIP_F32);
static_assert(static_cast<int>(KvType::kF16) == PAGEZIP_F16);
static_assert(static_cast<int>(KvType::kBF16) == PAGEZIP_BF16);
static_assert(static_cast<int>(KeyOrder::kTransposed) == PAGEZIP_K_TRANSPOSED);
static_assert(static_cast<int>(KeyOrder::kPlain) == PAGEZIP_K_PLAIN);
static_assert(PageLayout::kUnit == PAGEZIP_UNIT_BYTES);

KvType read_type(const pagezip_kv_type& from) {
  const int32_t type = number_of(from);
  require(type == PAGEZIP_F32 || type == PAGEZIP_F16 || type == PAGEZIP_BF16,
          "a KV type that doesn't exist");
  return static_cast<KvType>(type);
}

}  // namespace

PageLayout read_page(const pagezip_page* from) {
  const pagezip_page page = read_struct(from, "pagezip_page");
  require(page.page_tokens == 16 || page.page_tokens == 32 || page.page_tokens == 64,
          "page_tokens is not 16, 32 or 64");
  require(page.head_dim > 0 && page.head_dim <= kHeadDimMax && page.head_dim % 16 == 0,
          "head_dim is not a multiple of 16 up to 1024");
  const int32_t key_order = number_of(page.key_order);
  require(key_order == PAGEZIP_K_TRANSPOSED || key_order == PAGEZIP_K_PLAIN,
          "an order of keys that doesn't exist");
  return {read_type(page.k_type), read_type(page.v_type), page.page_tokens, page.head_dim,
          static_cast<KeyOrder>(key_order)};
}

Segment read_segment(const pagezip_segment* from, int32_t layer_end, int32_t kv_heads) {
  const pagezip_segment c = read_struct(from, "pagezip_segment");
  require(layer_end >= 0 && layer_end <= kLayersMax && kv_heads >= 0 && kv_heads <= kHeadsMax,
          "layers or heads out of range");
  require(c.base != nullptr && reinterpret_cast<uintptr_t>(c.base) % PageLayout::kUnit == 0,
          "a segment's base is null or not aligned to 64 bytes");
  require(c.lengths != nullptr || is_size(c.uniform_length), "uniform_length out of range");
  require(is_size(c.first_page) && is_size(c.first_position),
          "first_page or first_position out of range");
  require((c.first == nullptr && c.lengths == nullptr) || c.heads >= kv_heads,
          "a ragged segment has fewer heads than are read");
  Segment segment;
  segment.base = static_cast<std::byte*>(c.base);
  segment.ids = c.ids;
  segment.first = c.first;
  segment.lengths = c.lengths;
  segment.uniform_length = c.uniform_length;
  segment.first_page = c.first_page;
  segment.first_position = c.first_position;
  segment.scale = c.scale;
  segment.offset = c.offset;
  segment.layer_stride = c.layer_stride;
  segment.head_stride = c.head_stride;
  segment.heads = c.heads;
  bool empty = true;
  for (int32_t layer = 0; layer < layer_end && empty; ++layer) {
    for (int32_t head = 0; head < kv_heads && empty; ++head) {
      empty = segment.length(layer, head) == 0;
    }
  }
  require(segment.ids != nullptr || empty, "a segment with pairs has no ids");
  return segment;
}

pagezip_segment to_c(const Segment& segment) {
  pagezip_segment c{};
  c.size = sizeof c;
  c.base = segment.base;
  c.ids = segment.ids;
  c.first = segment.first;
  c.lengths = segment.lengths;
  c.uniform_length = segment.uniform_length;
  c.first_page = segment.first_page;
  c.first_position = segment.first_position;
  c.scale = segment.scale;
  c.offset = segment.offset;
  c.layer_stride = segment.layer_stride;
  c.head_stride = segment.head_stride;
  c.heads = segment.heads;
  return c;
}

}  // namespace pagezip::c_api
