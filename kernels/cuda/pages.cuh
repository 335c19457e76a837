// Elements of a page one at a time, of any type and order; on the host too. For tiles see tile.cuh.
#pragma once

#include "kernels/cuda/device_ops.cuh"
#include "kernels/kv_view.h"

namespace pagezip::cuda {

/// value = zero + scale * code
struct Parameters {
  float scale;
  float zero;
};

PAGEZIP_HD inline Parameters unpack_parameters(uint32_t packed) {
  return {f16_to_f32(static_cast<uint16_t>(packed)),
          f16_to_f32(static_cast<uint16_t>(packed >> 16))};
}

PAGEZIP_HD inline float load_element(KvType type, const std::byte* elements,
                                     const std::byte* parameters, int64_t index, int64_t slot) {
  switch (type) {
    case KvType::kF32:
      return reinterpret_cast<const float*>(elements)[index];
    case KvType::kF16:
      return f16_to_f32(reinterpret_cast<const uint16_t*>(elements)[index]);
    case KvType::kBF16:
      return bf16_to_f32(reinterpret_cast<const uint16_t*>(elements)[index]);
    default:
      break;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(elements);
  const unsigned code =
      type == KvType::kI8 ? codes[index] : codes[index / 2] >> (index % 2 * 4) & 0xfu;
  const Parameters p = unpack_parameters(reinterpret_cast<const uint32_t*>(parameters)[slot]);
  return fmaf(p.scale, static_cast<float>(code), p.zero);
}

PAGEZIP_HD inline float load_key(const PageLayout& page, const std::byte* start, int64_t slot,
                                 int64_t channel) {
  return load_element(page.k_type, start, start + page.k_elements_bytes(),
                      slot * page.key_stride() + channel * page.key_channel_stride(), slot);
}
PAGEZIP_HD inline float load_value(const PageLayout& page, const std::byte* start, int64_t slot,
                                   int64_t channel) {
  const std::byte* values = start + page.k_bytes();
  return load_element(page.v_type, values, values + page.v_elements_bytes(),
                      slot * page.head_dim + channel, slot);
}

}  // namespace pagezip::cuda
