// Spreads row-wise work over threads where there is enough of it to pay for the wake-up.
#pragma once

#include "base/math.h"
#include "kernels/thread_pool.h"

namespace pagezip::cpu {

/// body(row, thread) for every row of a [rows, cols] matrix.
template <typename Body>
void for_rows(int64_t rows, int64_t cols, ThreadPool& pool, const Body& body) {
  constexpr int64_t kSerialValues = 16'384;
  if (rows * cols <= kSerialValues) {
    for (int64_t r = 0; r < rows; ++r) {
      body(r, 0);
    }
    return;
  }
  constexpr int64_t kRowsPerItem = 8;
  pool.parallel_for(ceil_div(rows, kRowsPerItem), [&](int64_t item, int thread) {
    for (int64_t r = item * kRowsPerItem; r < rows && r < (item + 1) * kRowsPerItem; ++r) {
      body(r, thread);
    }
  });
}

}  // namespace pagezip::cpu
