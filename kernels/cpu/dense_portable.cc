// Quantised panels in plain C++: for machines without AVX2, and for others than x86-64.
#include <cstring>

#include "kernels/cpu/dense.h"
#include "kernels/cpu/dense_select.h"
#include "kernels/half.h"

namespace pagezip::cpu {
namespace {

constexpr int kPanel = 16;

float load_f16(const std::byte* p, int64_t lane) {
  uint16_t half;
  std::memcpy(&half, p + 2 * lane, 2);
  return f16_to_float(half);
}

// Column c (0..31) of output `lane` in the quants of a block; see dense.h.
template <int kBits>
int32_t load_quant(const std::byte* block, int lane, int c) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(block);
  const int vector = c / 4;
  const int byte = 4 * lane + c % 4;
  if constexpr (kBits == 8) {
    return bytes[64 * vector + byte];
  }
  int32_t quant = bytes[64 * (vector % 4) + byte] >> (vector < 4 ? 0 : 4) & 15;
  if constexpr (kBits == 5) {
    quant += (bytes[256 + 8 * vector + byte / 8] >> (byte % 8) & 1) << 4;
  }
  if constexpr (kBits == 6) {
    quant += (bytes[256 + 64 * (vector / 4) + byte] >> (2 * (vector % 4)) & 3) << 4;
  }
  return quant;
}

template <int kBits, int kSub, bool kMinimum, bool kSubScales>
void panel(const PanelArgs& args, int64_t rows) {
  constexpr int kScales = 32 / kSub;
  constexpr PanelFormat kFormat{kBits, kSub, 0, kMinimum, kSubScales};
  const int64_t blocks = args.chunks * (kSubScales ? 8 : 1);
  for (int64_t r = 0; r < rows; ++r) {
    float sums[kPanel] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t per_chunk = kSubScales ? 8 : 1;
      const std::byte* chunk = args.panel + block / per_chunk * kFormat.chunk_bytes();
      const std::byte* quants =
          chunk + (kMinimum ? 64 : 32) + block % per_chunk * kFormat.block_bytes();
      const std::byte* sub_scales =
          quants + kFormat.block_bytes() - (kSubScales ? 16 * kScales * (kMinimum ? 2 : 1) : 0);
      for (int i = 0; i < kPanel * kScales; ++i) {
        const int lane = i % kPanel;
        const int s = i / kPanel;
        const int64_t group = (block * kScales + s) * args.tile + r;
        int32_t dots = kMinimum ? 0 : args.offset_sums[group];
        for (int c = s * kSub; c < (s + 1) * kSub; ++c) {
          dots += load_quant<kBits>(quants, lane, c) * args.q8[(block * args.tile + r) * 32 + c];
        }
        float scale = load_f16(chunk, lane);
        float minimum = kMinimum ? load_f16(chunk + 32, lane) : 0.0f;
        if (kSubScales) {
          scale *= static_cast<float>(static_cast<int8_t>(sub_scales[16 * s + lane]));
          minimum *=
              kMinimum
                  ? static_cast<float>(static_cast<uint8_t>(sub_scales[16 * (kScales + s) + lane]))
                  : 0.0f;
        }
        sums[lane] += static_cast<float>(dots) * (scale * args.scales[block * args.tile + r]);
        if (kMinimum) {
          sums[lane] -= minimum * args.scaled_sums[group];
        }
      }
    }
    std::memcpy(args.out + r * args.out_stride, sums, sizeof(sums));
  }
}

}  // namespace

PanelFunction panel_function_portable(const PanelFormat& format) {
  return select_panel(format, [](auto bits, auto sub, auto minimum, auto sub_scales) {
    return static_cast<PanelFunction>(panel<decltype(bits)::value, decltype(sub)::value,
                                            decltype(minimum)::value, decltype(sub_scales)::value>);
  });
}

}  // namespace pagezip::cpu
