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

/// Covers rows [first, rows) by groups of kMax, then of half of it and so on: call(first row of
/// the group, integral_constant).
template <int kMax, typename Call>
void split_rows(int64_t first, int64_t rows, const Call& call) {
  for (; first + kMax <= rows; first += kMax) {
    call(first, std::integral_constant<int, kMax>{});
  }
  if constexpr (kMax > 1) {
    split_rows<kMax / 2>(first, rows, call);
  }
}

}  // namespace pagezip::cpu
