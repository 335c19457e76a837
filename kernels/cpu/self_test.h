// A few products with known results, run once at start-up: some machines list instructions that
// then give wrong results or none.
#pragma once

namespace pagezip::cpu {

/// True if the chosen 8-bit dense loops (dense.h) agree with plain sums for every packed format.
bool dense_self_test();

}  // namespace pagezip::cpu
