// One function per quantised type turns its packed block into the canonical form of the header;
// dequantize() is then the same arithmetic for all of them.
#include "kernels/weight_types.h"

#include <cstring>

#include "base/check.h"
#include "kernels/half.h"

namespace pagezip {
namespace {

constexpr int kSmallBlock = 32;
constexpr int kSuperBlock = 256;

constexpr WeightTypeInfo kInfo[kWeightTypes] = {
    {"F32", 0, 1, 4},       {"F16", 1, 1, 2},       {"BF16", 30, 1, 2},     {"Q4_0", 2, 32, 18},
    {"Q4_1", 3, 32, 20},    {"Q5_0", 6, 32, 22},    {"Q5_1", 7, 32, 24},    {"Q8_0", 8, 32, 34},
    {"Q2_K", 10, 256, 84},  {"Q3_K", 11, 256, 110}, {"Q4_K", 12, 256, 144}, {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210},
};

uint8_t byte_at(const std::byte* p) { return std::to_integer<uint8_t>(*p); }

uint16_t u16_at(const std::byte* p) {
  return static_cast<uint16_t>(byte_at(p) | byte_at(p + 1) << 8);
}

float f16_at(const std::byte* p) { return f16_to_float(u16_at(p)); }

// Low nibbles are the first half of the block, high nibbles the second; bit i of `high` is bit 4 of
// value i.
void unpack_nibbles(const std::byte* nibbles, uint32_t high, UnpackedBlock& block) {
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    const uint8_t pair = byte_at(nibbles + i);
    block.quant[i] = static_cast<uint8_t>((pair & 15) | (high >> i & 1) << 4);
    block.quant[i + 16] = static_cast<uint8_t>(pair >> 4 | (high >> (i + 16) & 1) << 4);
  }
}

uint32_t u32_at(const std::byte* p) { return u16_at(p) | uint32_t{u16_at(p + 2)} << 16; }

// d, [m], [32 high bits], 16 bytes of nibbles.
void unpack_small(const std::byte* source, bool has_minimum, bool has_high, UnpackedBlock& block) {
  block.offset = has_minimum ? 0 : (has_high ? 16 : 8);
  block.has_minimum = has_minimum;
  block.d = f16_at(source);
  source += 2;
  if (has_minimum) {
    block.dmin = -f16_at(source);
    source += 2;
  }
  uint32_t high = 0;
  if (has_high) {
    high = u32_at(source);
    source += 4;
  }
  unpack_nibbles(source, high, block);
}

// d, 32 signed bytes.
void unpack_q8_0(const std::byte* source, UnpackedBlock& block) {
  block.offset = 128;
  block.d = f16_at(source);
  for (int i = 0; i < kSmallBlock; ++i) {
    block.quant[i] = static_cast<uint8_t>(byte_at(source + 2 + i) ^ 0x80);
  }
}

// 64 bytes hold 256 values of 2 bits: byte l of half h has the values h * 128 + {0, 32, 64, 96} +
// l.
uint8_t two_bits(const std::byte* source, int64_t i) {
  return byte_at(source + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
}

// 16 bytes (scale, minimum << 4), 64 bytes of 2-bit values, d, dmin.
void unpack_q2_k(const std::byte* source, UnpackedBlock& block) {
  block.sub = 16;
  block.has_minimum = true;
  block.d = f16_at(source + 80);
  block.dmin = f16_at(source + 82);
  for (int j = 0; j < 16; ++j) {
    block.scale_int[j] = static_cast<int8_t>(byte_at(source + j) & 15);
    block.minimum_int[j] = byte_at(source + j) >> 4;
  }
  for (int64_t i = 0; i < kSuperBlock; ++i) {
    block.quant[i] = two_bits(source + 16, i);
  }
}

// 32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d.
void unpack_q3_k(const std::byte* source, UnpackedBlock& block) {
  block.sub = 16;
  block.offset = 4;
  block.d = f16_at(source + 108);
  const std::byte* scales = source + 96;
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? byte_at(scales + j) & 15 : byte_at(scales + j - 8) >> 4;
    const int high = byte_at(scales + 8 + j % 4) >> (j / 4 * 2) & 3;
    block.scale_int[j] = static_cast<int8_t>((low | high << 4) - 32);
  }
  for (int64_t i = 0; i < kSuperBlock; ++i) {
    const int high = byte_at(source + i % 32) >> (i / 32) & 1;
    block.quant[i] = static_cast<uint8_t>(two_bits(source + 32, i) | high << 2);
  }
}

// Eight 6-bit scales and minima in 12 bytes, of Q4_K and Q5_K.
void unpack_scales_k4(const std::byte* source, UnpackedBlock& block) {
  for (int j = 0; j < 4; ++j) {
    const uint8_t scale = byte_at(source + j);
    const uint8_t minimum = byte_at(source + 4 + j);
    const uint8_t both = byte_at(source + 8 + j);
    block.scale_int[j] = static_cast<int8_t>(scale & 63);
    block.minimum_int[j] = minimum & 63;
    block.scale_int[j + 4] = static_cast<int8_t>((both & 15) | scale >> 6 << 4);
    block.minimum_int[j + 4] = static_cast<uint8_t>(both >> 4 | minimum >> 6 << 4);
  }
}

// d, dmin, 12 bytes of scales, [32 bytes of fifth bits], 128 bytes of nibbles: each 32 bytes are 64
// values, low nibbles first.
void unpack_q45_k(const std::byte* source, bool has_high, UnpackedBlock& block) {
  block.has_minimum = true;
  block.d = f16_at(source);
  block.dmin = f16_at(source + 2);
  unpack_scales_k4(source + 4, block);
  const std::byte* high = source + 16;
  const std::byte* nibbles = has_high ? high + 32 : high;
  for (int64_t i = 0; i < kSuperBlock; ++i) {
    const int nibble = byte_at(nibbles + i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
    const int fifth = has_high ? byte_at(high + i % 32) >> (i / 32) & 1 : 0;
    block.quant[i] = static_cast<uint8_t>(nibble | fifth << 4);
  }
}

// 128 bytes of low nibbles, 64 bytes of high 2 bits, 16 signed scales, d.
void unpack_q6_k(const std::byte* source, UnpackedBlock& block) {
  block.sub = 16;
  block.offset = 32;
  block.d = f16_at(source + 208);
  for (int j = 0; j < 16; ++j) {
    block.scale_int[j] = static_cast<int8_t>(byte_at(source + 192 + j));
  }
  for (int64_t i = 0; i < kSuperBlock; ++i) {
    const int low = byte_at(source + i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
    block.quant[i] = static_cast<uint8_t>(low | two_bits(source + 128, i) << 4);
  }
}

void dequantize_block(const UnpackedBlock& block, float* target) {
  for (int i = 0; i < block.values; ++i) {
    const int j = i / block.sub;
    const float scale = block.d * static_cast<float>(block.scale_int[j]);
    const float product = scale * static_cast<float>(block.quant[i] - block.offset);
    const float minimum = -(block.dmin * static_cast<float>(block.minimum_int[j]));
    target[i] = block.has_minimum ? product + minimum : product;
  }
}

}  // namespace

const WeightTypeInfo& info(WeightType type) {
  const auto index = static_cast<size_t>(type);
  CHECK_LT(index, static_cast<size_t>(kWeightTypes));
  return kInfo[index];
}

std::optional<WeightType> weight_type_of_ggml(uint32_t ggml_id) {
  for (int i = 0; i < kWeightTypes; ++i) {
    if (kInfo[i].ggml_id == ggml_id) {
      return static_cast<WeightType>(i);
    }
  }
  return std::nullopt;
}

int64_t row_bytes(WeightType type, int64_t cols) {
  const WeightTypeInfo& format = info(type);
  CHECK_EQ(cols % format.block_values, 0);
  return cols / format.block_values * format.block_bytes;
}

void unpack_block(WeightType type, const std::byte* source, UnpackedBlock& block) {
  block.values = info(type).block_values;
  block.sub = 32;
  block.offset = 0;
  block.has_minimum = false;
  block.dmin = 0;
  std::memset(block.scale_int, 1, sizeof(block.scale_int));
  std::memset(block.minimum_int, 1, sizeof(block.minimum_int));
  switch (type) {
    case WeightType::kQ4_0:
      return unpack_small(source, /*has_minimum=*/false, /*has_high=*/false, block);
    case WeightType::kQ4_1:
      return unpack_small(source, /*has_minimum=*/true, /*has_high=*/false, block);
    case WeightType::kQ5_0:
      return unpack_small(source, /*has_minimum=*/false, /*has_high=*/true, block);
    case WeightType::kQ5_1:
      return unpack_small(source, /*has_minimum=*/true, /*has_high=*/true, block);
    case WeightType::kQ8_0:
      return unpack_q8_0(source, block);
    case WeightType::kQ2_K:
      return unpack_q2_k(source, block);
    case WeightType::kQ3_K:
      return unpack_q3_k(source, block);
    case WeightType::kQ4_K:
      return unpack_q45_k(source, /*has_high=*/false, block);
    case WeightType::kQ5_K:
      return unpack_q45_k(source, /*has_high=*/true, block);
    case WeightType::kQ6_K:
      return unpack_q6_k(source, block);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  CHECK(!"unpack_block() of a type without blocks");
}

void dequantize(WeightType type, const std::byte* source, float* target, int64_t values) {
  if (type == WeightType::kF32) {
    if (values > 0) {
      std::memcpy(target, source, static_cast<size_t>(values) * sizeof(float));
    }
    return;
  }
  if (type == WeightType::kF16 || type == WeightType::kBF16) {
    for (int64_t i = 0; i < values; ++i) {
      const uint16_t half = u16_at(source + 2 * i);
      target[i] = type == WeightType::kF16 ? f16_to_float(half) : bf16_to_float(half);
    }
    return;
  }
  const WeightTypeInfo& format = info(type);
  CHECK_EQ(values % format.block_values, 0);
  UnpackedBlock block{};
  for (int64_t i = 0; i < values; i += format.block_values) {
    unpack_block(type, source, block);
    dequantize_block(block, target + i);
    source += format.block_bytes;
  }
}

}  // namespace pagezip
