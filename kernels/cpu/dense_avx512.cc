// Quantised panels on AVX-512 with VNNI: 16 outputs in a register, one byte dot product per four
// columns. Highway 1.0.3 has no 8-bit dot product, hence intrinsics.
#include "kernels/cpu/dense.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include "kernels/cpu/dense_select.h"

// Everything below is compiled for these instructions and reached only behind the cpuid check in
// best_dense_isa(). Includes stay above, so that no inline function of theirs is compiled so.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma");
#pragma GCC diagnostic push
#if !defined(__clang__)
// g++ 12's own intrinsics start from deliberately undefined registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace pagezip::cpu {
namespace {

inline __m512 load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512 load_int8(const std::byte* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline __m512 load_uint8(const std::byte* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// The 8 vectors of 32 columns as unsigned bytes; returns the bytes read.
template <int kBits>
inline int unpack(const std::byte* p, __m512i (&w)[8]) {
  if constexpr (kBits == 8) {
    for (int64_t v = 0; v < 8; ++v) {
      w[v] = _mm512_loadu_si512(p + 64 * v);
    }
    return 512;
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int64_t v = 0; v < 4; ++v) {
      const __m512i both = _mm512_loadu_si512(p + 64 * v);
      w[v] = _mm512_and_si512(both, nibble);
      w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
    if constexpr (kBits == 5) {
      const auto* masks = reinterpret_cast<const __mmask64*>(p + 256);
      const __m512i sixteen = _mm512_set1_epi8(16);
      for (int64_t v = 0; v < 8; ++v) {
        w[v] = _mm512_mask_add_epi8(w[v], masks[v], w[v], sixteen);
      }
      return 320;
    }
    if constexpr (kBits == 6) {
      const __m512i two_bits = _mm512_set1_epi8(0x30);
      const __m512i high[2] = {_mm512_loadu_si512(p + 256), _mm512_loadu_si512(p + 320)};
      for (int64_t v = 0; v < 8; ++v) {
        // Field v % 4 of each byte, moved to bits 4 and 5.
        const int field = static_cast<int>(2 * (v % 4));
        const __m512i moved = field >= 4 ? _mm512_srli_epi16(high[v / 4], field - 4)
                                         : _mm512_slli_epi16(high[v / 4], 4 - field);
        w[v] = _mm512_or_si512(w[v], _mm512_and_si512(moved, two_bits));
      }
      return 384;
    }
    return 256;
  }
}

// sum + the byte products of w with the four activations at a. The memory operand is spelled out
// because g++ 12 otherwise broadcasts into a register first, and that second instruction for every
// product costs a third of the speed.
inline __m512i dot4(__m512i sum, __m512i w, const int8_t* a) {
  struct Four {
    int8_t values[4];
  };
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Four*>(a)));
  return sum;
}

template <int kVectors>
inline __m512i dot(__m512i sum, const __m512i* w, const int8_t* a) {
  for (int64_t v = 0; v < kVectors; ++v) {
    sum = dot4(sum, w[v], a + 4 * v);
  }
  return sum;
}

template <int kBits, int kSub, bool kMinimum, bool kSubScales, int kRows>
void panel_rows(const PanelArgs& args, int64_t first) {
  const int8_t* q8 = args.q8 + first * 32;
  const float* scales = args.scales + first;
  const int32_t* offset_sums = args.offset_sums + first;
  const float* scaled_sums = args.scaled_sums + first;
  float* out = args.out + first * args.out_stride;
  constexpr int64_t kScales = 32 / kSub;
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sums[r] = _mm512_setzero_ps();
  }
  const std::byte* p = args.panel;
  for (int64_t chunk = 0; chunk < args.chunks; ++chunk) {
    const __m512 d = load_f16(p);
    p += 32;
    __m512 dmin = _mm512_setzero_ps();
    if constexpr (kMinimum) {
      dmin = load_f16(p);
      p += 32;
    }
    for (int in_chunk = 0; in_chunk < (kSubScales ? 8 : 1); ++in_chunk) {
      __m512i w[8];
      p += unpack<kBits>(p, w);
      __m512 scale[kScales];
      __m512 minimum[kScales];
      for (int64_t s = 0; s < kScales; ++s) {
        scale[s] = kSubScales ? _mm512_mul_ps(d, load_int8(p + 16 * s)) : d;
        if constexpr (kMinimum) {
          minimum[s] = kSubScales ? _mm512_mul_ps(dmin, load_uint8(p + 16 * (kScales + s))) : dmin;
        }
      }
      p += kSubScales ? 16 * kScales * (kMinimum ? 2 : 1) : 0;
#pragma GCC unroll 16  // else g++ keeps the sums in memory
      for (int64_t r = 0; r < kRows; ++r) {
        const int8_t* a = q8 + r * 32;
        const __m512 activation = _mm512_set1_ps(scales[r]);
        for (int64_t s = 0; s < kScales; ++s) {
          const int64_t group = s * args.tile + r;
          __m512i dots = _mm512_setzero_si512();
          if constexpr (!kMinimum) {
            dots = _mm512_set1_epi32(offset_sums[group]);
          }
          dots = dot<8 / kScales>(dots, w + s * (8 / kScales), a + s * kSub);
          sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_mul_ps(scale[s], activation),
                                    sums[r]);
          if constexpr (kMinimum) {
            sums[r] = _mm512_fnmadd_ps(minimum[s], _mm512_set1_ps(scaled_sums[group]), sums[r]);
          }
        }
      }
      q8 += args.tile * 32;
      scales += args.tile;
      offset_sums += args.tile * kScales;
      scaled_sums += args.tile * kScales;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(out + r * args.out_stride, sums[r]);
  }
}

// 16 rows fill the registers: 8 of weights, 16 of sums, the rest for scales.
template <int kBits, int kSub, bool kMinimum, bool kSubScales>
void panel(const PanelArgs& args, int64_t rows) {
  split_rows<16>(0, rows, [&](int64_t first, auto count) {
    panel_rows<kBits, kSub, kMinimum, kSubScales, decltype(count)::value>(args, first);
  });
}

}  // namespace

PanelFunction panel_function_avx512(const PanelFormat& format) {
  return select_panel(format, [](auto bits, auto sub, auto minimum, auto sub_scales) {
    return static_cast<PanelFunction>(panel<decltype(bits)::value, decltype(sub)::value,
                                            decltype(minimum)::value, decltype(sub_scales)::value>);
  });
}

}  // namespace pagezip::cpu

#pragma GCC diagnostic pop
HWY_POP_ATTRIBUTES
#else

namespace pagezip::cpu {
PanelFunction panel_function_avx512(const PanelFormat&) { return nullptr; }
}  // namespace pagezip::cpu

#endif
