// Turns a PanelFormat and a row count into template arguments: the one table of formats.
#pragma once

#include <type_traits>

#include "kernels/cpu/dense.h"

namespace pagezip::cpu {

/// Calls make(bits, sub, has_minimum, has_sub_scales) with integral constants; null for a format
/// that no GGUF type has.
template <typename Make>
PanelFunction select_panel(const PanelFormat& f, Make make) {
  const auto match = [&](int bits, int sub, bool minimum, bool sub_scales) {
    return f.bits == bits && f.sub == sub && f.has_minimum == minimum &&
           f.has_sub_scales == sub_scales;
  };
  const auto with = [&]<int kBits, int kSub, bool kMinimum, bool kSubScales>() {
    return make(std::integral_constant<int, kBits>{}, std::integral_constant<int, kSub>{},
                std::bool_constant<kMinimum>{}, std::bool_constant<kSubScales>{});
  };
  if (match(4, 32, false, false)) return with.template operator()<4, 32, false, false>();  // Q4_0
  if (match(4, 32, true, false)) return with.template operator()<4, 32, true, false>();    // Q4_1
  if (match(5, 32, false, false)) return with.template operator()<5, 32, false, false>();  // Q5_0
  if (match(5, 32, true, false)) return with.template operator()<5, 32, true, false>();    // Q5_1
  if (match(8, 32, false, false)) return with.template operator()<8, 32, false, false>();  // Q8_0
  if (match(4, 16, true, true)) return with.template operator()<4, 16, true, true>();      // Q2_K
  if (match(4, 16, false, true)) return with.template operator()<4, 16, false, true>();    // Q3_K
  if (match(4, 32, true, true)) return with.template operator()<4, 32, true, true>();      // Q4_K
  if (match(5, 32, true, true)) return with.template operator()<5, 32, true, true>();      // Q5_K
  if (match(6, 16, false, true)) return with.template operator()<6, 16, false, true>();    // Q6_K
  return nullptr;
}

/// The same arguments, `rows` rows further.
inline PanelArgs skip_rows(PanelArgs args, int64_t rows, int scales_per_block) {
  args.q8 += rows * args.blocks * 32;
  args.scales += rows * args.blocks;
  args.offset_sums += rows * args.blocks * scales_per_block;
  args.scaled_sums += rows * args.blocks * scales_per_block;
  args.out += rows * args.out_stride;
  return args;
}

/// Covers `rows` rows by groups of kMax, then kMax / 2 or 4, 2, 1: call(args, integral_constant).
template <int kMax, int kScales, typename Call>
void split_rows(PanelArgs args, int64_t rows, Call call) {
  for (; rows >= kMax; rows -= kMax) {
    call(args, std::integral_constant<int, kMax>{});
    args = skip_rows(args, kMax, kScales);
  }
  if constexpr (kMax > 1) {
    split_rows<(kMax > 8 ? 8 : kMax / 2), kScales>(args, rows, call);
  }
}

}  // namespace pagezip::cpu
