// Quantised panels on AVX2: the 16 outputs of a panel as two registers of 8. maddubs saturates at
// 16 bits, which the quants of up to 6 bits cannot reach (2 * 63 * 127); 8-bit quants go as
// |w| * sign(a, w), at most 2 * 128 * 127.
#include "kernels/cpu/dense.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include "kernels/cpu/dense_select.h"

// As in dense_avx512.cc: compiled for these instructions, reached only behind the cpuid check.
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c");

namespace pagezip::cpu {
namespace {

inline __m256i load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256 load_f16(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m256 load_int8(const std::byte* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline __m256 load_uint8(const std::byte* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// 16 in every byte whose bit in `mask` is set.
inline __m256i sixteen_where(uint32_t mask) {
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(mask)), spread);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

// Half `side` (outputs 0-7 or 8-15) of vector v of a block.
template <int kBits>
inline __m256i unpack(const std::byte* p, int64_t v, int64_t side) {
  if constexpr (kBits == 8) {
    return _mm256_xor_si256(load(p + 64 * v + 32 * side), _mm256_set1_epi8(-128));
  }
  __m256i w = load(p + 64 * (v % 4) + 32 * side);
  w = _mm256_and_si256(v < 4 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
  if constexpr (kBits == 5) {
    uint32_t mask;
    __builtin_memcpy(&mask, p + 256 + 8 * v + 4 * side, 4);
    w = _mm256_add_epi8(w, sixteen_where(mask));
  }
  if constexpr (kBits == 6) {
    const __m256i high = load(p + 256 + 64 * (v / 4) + 32 * side);
    const int field = static_cast<int>(2 * (v % 4));
    const __m256i moved =
        field >= 4 ? _mm256_srli_epi16(high, field - 4) : _mm256_slli_epi16(high, 4 - field);
    w = _mm256_or_si256(w, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
  }
  return w;
}

template <int kBits>
inline __m256i dot(__m256i sum, __m256i w, const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  const __m256i x = _mm256_set1_epi32(four);
  const __m256i pairs = kBits == 8
                            ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                            : _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <int kBits, int kSub, bool kMinimum, bool kSubScales, int kRows>
void panel_side(const PanelArgs& args, int64_t first, int64_t side) {
  const int8_t* q8 = args.q8 + first * 32;
  const float* scales = args.scales + first;
  const int32_t* offset_sums = args.offset_sums + first;
  const float* scaled_sums = args.scaled_sums + first;
  float* out = args.out + first * args.out_stride + 8 * side;
  constexpr int64_t kScales = 32 / kSub;
  constexpr int kQuantBytes = kBits == 8 ? 512 : kBits == 6 ? 384 : kBits == 5 ? 320 : 256;
  __m256 sums[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    sums[r] = _mm256_setzero_ps();
  }
  const std::byte* p = args.panel;
  for (int64_t chunk = 0; chunk < args.chunks; ++chunk) {
    const __m256 d = load_f16(p + 16 * side);
    const __m256 dmin = kMinimum ? load_f16(p + 32 + 16 * side) : _mm256_setzero_ps();
    p += kMinimum ? 64 : 32;
    for (int in_chunk = 0; in_chunk < (kSubScales ? 8 : 1); ++in_chunk) {
      const std::byte* sub_scales = p + kQuantBytes + 8 * side;
      for (int64_t s = 0; s < kScales; ++s) {
        __m256i dots[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          // 8-bit quants are made signed above, so nothing is to be subtracted.
          dots[r] = _mm256_set1_epi32(kMinimum || kBits == 8 ? 0 : offset_sums[s * args.tile + r]);
        }
        for (int64_t v = s * 8 / kScales; v < (s + 1) * 8 / kScales; ++v) {
          const __m256i w = unpack<kBits>(p, v, side);
#pragma GCC unroll 4
          for (int64_t r = 0; r < kRows; ++r) {
            dots[r] = dot<kBits>(dots[r], w, q8 + r * 32 + 4 * v);
          }
        }
        const __m256 scale = kSubScales ? _mm256_mul_ps(d, load_int8(sub_scales + 16 * s)) : d;
        const __m256 minimum =
            kMinimum && kSubScales
                ? _mm256_mul_ps(dmin, load_uint8(sub_scales + 16 * (kScales + s)))
                : dmin;
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256 activation = _mm256_set1_ps(scales[r]);
          sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_mul_ps(scale, activation),
                                    sums[r]);
          if constexpr (kMinimum) {
            const float sum = scaled_sums[s * args.tile + r];
            sums[r] = _mm256_fnmadd_ps(minimum, _mm256_set1_ps(sum), sums[r]);
          }
        }
      }
      p += kQuantBytes + (kSubScales ? 16 * kScales * (kMinimum ? 2 : 1) : 0);
      q8 += args.tile * 32;
      scales += args.tile;
      offset_sums += args.tile * kScales;
      scaled_sums += args.tile * kScales;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(out + r * args.out_stride, sums[r]);
  }
}

template <int kBits, int kSub, bool kMinimum, bool kSubScales>
void panel(const PanelArgs& args, int64_t rows) {
  split_rows<4>(0, rows, [&](int64_t first, auto count) {
    for (int64_t side = 0; side < 2; ++side) {
      panel_side<kBits, kSub, kMinimum, kSubScales, decltype(count)::value>(args, first, side);
    }
  });
}

}  // namespace

PanelFunction panel_function_avx2(const PanelFormat& format) {
  return select_panel(format, [](auto bits, auto sub, auto minimum, auto sub_scales) {
    return static_cast<PanelFunction>(panel<decltype(bits)::value, decltype(sub)::value,
                                            decltype(minimum)::value, decltype(sub_scales)::value>);
  });
}

}  // namespace pagezip::cpu

HWY_POP_ATTRIBUTES
#else

namespace pagezip::cpu {
PanelFunction panel_function_avx2(const PanelFormat&) { return nullptr; }
}  // namespace pagezip::cpu

#endif
