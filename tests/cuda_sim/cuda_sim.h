// Runs CUDA kernels as C++ on the host: each CUDA thread is a fiber, so `__global__` functions run
// from the very source that nvcc compiles. The targets that simulate have this header included
// before everything else, as nvcc includes the runtime's.
//
// What is checked, each failure being a Failure with the place: lanes of a warp that meet at
// different operations or name different masks; an exited lane, or one beyond the block, in a mask;
// a caller outside its own mask; a shuffle from a lane outside the mask; a barrier that part of the
// block doesn't reach; copies that nobody waited for; unaligned or foreign shared addresses; a
// stack that overflows. Dynamic shared memory begins as NaN and has the exact size of the launch,
// so that AddressSanitizer sees what lies beyond it.
//
// Seed 0 runs threads in program order. Any other shuffles threads and blocks, and makes some warps
// much slower than others, so that a missing barrier shows although every warp does the same work.
//
// What it can't find: memory is sequentially consistent, so a missing fence is invisible; threads
// change only where they synchronise; a thread that spins on another's write never ends.
//
// One simulation per OS thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's
#define __global__ inline  // kernels are defined in headers
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// NOLINTEND(bugprone-reserved-identifier)

namespace pagezip::cuda_sim {

inline constexpr int kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Index3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

/// Of each thread; the last 4 KiB are a guard.
inline constexpr size_t kStackBytes = size_t{256} * 1024;

struct Options {
  uint64_t seed = 0;
  bool late_work = false;  // on streams (device.h)
};
/// Of the launches that follow on this thread.
Options& options();

/// What threads meet for. `combine` runs once, when all have arrived: operands[i] is what lane i
/// brought (null for a lane outside the mask), and it writes the results there. Two threads do the
/// same thing if they wait for the same Meeting.
struct Meeting {
  const char* name;
  void (*combine)(void** operands, uint32_t mask);
};

/// Meets the other lanes of `mask`.
void meet_warp(const Meeting& meeting, uint32_t mask, void* operand);
/// Meets all threads of the block; `value` is summed over them.
int64_t meet_block(const Meeting& meeting, int64_t value);
/// Meets all threads of the grid. REQUIRES: launched with launch_cooperative().
void meet_grid();

const Index3& thread_index();
const Index3& block_index();
const Index3& block_dimension();
const Index3& grid_dimension();
int lane();

/// The dynamic shared memory of the block.
std::byte* shared_memory();
/// Fails unless [address, address + bytes) is shared memory, aligned to `alignment`.
void check_shared(const void* address, size_t bytes, size_t alignment, const char* operation);

/// cp.async: the copy lands when a wait covers its group, not before; until then the target holds
/// NaN. The first `source_bytes` come from `source`, the others are zero.
void copy_async(void* target, const void* source, size_t bytes, size_t source_bytes);
void commit_copies();
/// Waits for all but the last `groups_left` groups of this thread.
void wait_copies(size_t groups_left);

/// Counts of the last launch on this thread.
struct Counters {
  uint64_t switches = 0;
  uint64_t meetings = 0;
};
const Counters& counters();

/// Runs `body` once for each thread. Blocks run one after the other; cooperative ones all at once.
void run_grid(Index3 grid, Index3 block, size_t shared_bytes, bool cooperative,
              const std::function<void()>& body);

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, Index3 grid, Index3 block, size_t shared_bytes,
            const Arguments&... arguments) {
  run_grid(grid, block, shared_bytes, false, [&] { kernel(arguments...); });
}

template <typename Kernel, typename... Arguments>
void launch_cooperative(Kernel kernel, Index3 grid, Index3 block, size_t shared_bytes,
                        const Arguments&... arguments) {
  run_grid(grid, block, shared_bytes, true, [&] { kernel(arguments...); });
}

}  // namespace pagezip::cuda_sim
