// What the simulator's tests find in its place when they run on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagezip::cuda_sim {

/// Threads run in the order that the GPU likes; a seed changes nothing.
struct Options {
  uint64_t seed = 0;
  bool late_work = false;
};
inline Options& options() {
  static Options instance;
  return instance;
}

/// Nobody counts them.
inline size_t device_allocations() { return 0; }

}  // namespace pagezip::cuda_sim
