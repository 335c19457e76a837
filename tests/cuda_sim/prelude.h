// What the compiler includes before each source of a simulated target.
#pragma once

#define PAGEZIP_CUDA_SIM

#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/device.h"
#include "tests/cuda_sim/intrinsics.h"
#include "tests/cuda_sim/twins.h"
