// float16 and bfloat16 as 16-bit patterns: exact widening, round-to-nearest-even narrowing.
#pragma once

#include <bit>
#include <cstdint>

namespace pagezip {

inline float bf16_to_float(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline uint16_t float_to_bf16(float f) {
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN stays NaN, quiet
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_float(uint16_t h) {
  // Scaling by 2^112 moves the exponent; subnormals come out right because the product is exact.
  const uint32_t magnitude = uint32_t{h} & 0x7fffu;
  float value = std::bit_cast<float>(magnitude << 13) * 0x1.0p112f;
  if (magnitude >= 0x7c00u) {  // Inf or NaN
    value = std::bit_cast<float>((magnitude << 13) | 0x7f800000u);
  }
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | (uint32_t{h} & 0x8000u) << 16);
}

inline uint16_t float_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u);  // NaN
  }
  if (magnitude >= 0x477ff000u) {
    return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  }
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 aligns the value so that the hardware rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace pagezip
