// Which table of operations a user means.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace pagezip {

enum class Backend : uint8_t { kCpu, kReference, kCuda };

/// Throws Error(kUsage) if this build doesn't have it, Error(kRuntime) if this machine can't run
/// it.
const Kernels& kernels_of(Backend backend);

}  // namespace pagezip
