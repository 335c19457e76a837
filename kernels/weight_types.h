// The tensor types of GGUF weights, and their exact meaning as float32 values.
//
// Formats as published in the GGUF/ggml documentation. Rows are cut into blocks of `block_values`
// consecutive values; a row's length is always a multiple of that. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pagezip {

enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};
inline constexpr int kWeightTypes = 13;

struct WeightTypeInfo {
  const char* name;  // as users know it: "Q4_K"
  uint32_t ggml_id;  // the number in the file
  int block_values;  // values in one block
  int block_bytes;   // bytes of one block
};

const WeightTypeInfo& info(WeightType type);

/// The type with that number in a GGUF file; nothing if we do not support it.
std::optional<WeightType> weight_type_of_ggml(uint32_t ggml_id);

/// Bytes of one row of `cols` values. REQUIRES: cols is a multiple of block_values.
int64_t row_bytes(WeightType type, int64_t cols);

/// target[0, values) = the float32 values of the blocks at `source` (any alignment).
/// REQUIRES: values is a multiple of block_values.
void dequantize(WeightType type, const std::byte* source, float* target, int64_t values);

/// One block of at most 256 values in a form that every quantised type shares:
///   value[i] = scale[i / sub] * (quant[i] - offset) + minimum[i / sub],
/// where scale[j] = d * scale_int[j] and minimum[j] = -(dmin * minimum_int[j]) for the K types, and
/// scale_int = minimum_int = 1 (dmin = -m) for the others. All float32 products are exact or
/// rounded once, in this order.
struct UnpackedBlock {
  int values;  // 32 or 256
  int sub;     // values under one scale: 16 or 32
  int offset;  // 0 where minima are used
  bool has_minimum;
  float d;
  float dmin;
  int8_t scale_int[16];  // [values / sub]
  uint8_t minimum_int[16];
  uint8_t quant[256];  // unsigned, below 64 except for Q8_0 (value + 128)
};

/// REQUIRES: a quantised type.
void unpack_block(WeightType type, const std::byte* source, UnpackedBlock& block);

}  // namespace pagezip
