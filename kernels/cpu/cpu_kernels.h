// The CPU backend's table, before the choice of instruction sets.
#pragma once

#include "kernels/kernels.h"

namespace pagezip::cpu {

/// Uses whatever instruction sets are chosen at the time of each call.
const Kernels& cpu_table();

}  // namespace pagezip::cpu
