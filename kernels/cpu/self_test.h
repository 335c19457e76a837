// A few operations with known results, run once at start-up: some machines list instructions that
// then give wrong results or none.
#pragma once

namespace pagezip::cpu {

/// True if the chosen 8-bit dense loops (dense.h) agree with plain sums for every packed format.
bool dense_self_test();

/// True if the chosen float operations (simd.h) agree with the reference backend on a small layer:
/// normalisation, RoPE, K/V in 16-bit pages, attention, scores and gates.
bool float_self_test();

}  // namespace pagezip::cpu
