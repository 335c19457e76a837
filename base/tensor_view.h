// A borrowed row-major matrix: the shape travels with the pointer.
#pragma once

#include <cstdint>
#include <type_traits>

namespace pagezip {

/// [rows, cols] values of T; row i starts `stride` values after row i-1. Owns nothing.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  MatrixView() = default;
  MatrixView(T* d, int64_t r, int64_t c) : data(d), rows(r), cols(c), stride(c) {}
  MatrixView(T* d, int64_t r, int64_t c, int64_t s) : data(d), rows(r), cols(c), stride(s) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a mutable view is a const view.
  operator MatrixView<const T>() const requires(!std::is_const_v<T>) {
    return {data, rows, cols, stride};
  }

  T* row(int64_t i) const { return data + i * stride; }
  /// Rows [first, first + count) of this matrix.
  MatrixView slice(int64_t first, int64_t count) const { return {row(first), count, cols, stride}; }
};

}  // namespace pagezip
