// Integer arithmetic that the standard library lacks.
#pragma once

#include <type_traits>

#include "base/host_device.h"

namespace pagezip {

/// a / b, rounded up. REQUIRES: a >= 0, b > 0, and a + b - 1 fits the type of a.
template <typename T>
PAGEZIP_HD constexpr T ceil_div(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}

/// The smallest multiple of `step` that is not below a. REQUIRES: as ceil_div().
template <typename T>
PAGEZIP_HD constexpr T round_up(T a, std::type_identity_t<T> step) {
  return ceil_div(a, step) * step;
}

}  // namespace pagezip
