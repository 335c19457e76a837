// The scheduler of simulated threads. A pass resumes every thread that may run; then whoever meets
// is let go: warps first, and only when no warp can go on, whole blocks, and then the grid.
#include "tests/cuda_sim/cuda_sim.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "base/prng.h"
#include "tests/cuda_sim/fiber.h"

namespace pagezip::cuda_sim {
namespace {

constexpr Meeting kGridMeeting{"grid barrier", nullptr};
constexpr std::byte kPoison{0xff};  // NaN in every float type

enum class State : uint8_t { kReady, kInWarp, kInBlock, kInGrid, kDone };

struct Copy {
  void* target;
  const void* source;
  size_t bytes;
  size_t source_bytes;
};

struct Thread {
  Fiber* fiber = nullptr;
  int id = 0;  // in the block
  Index3 index;
  State state = State::kReady;
  const Meeting* meeting = nullptr;
  uint32_t mask = 0;
  void* operand = nullptr;
  int64_t value = 0;                      // of a block meeting: brought, then the sum
  std::vector<Copy> open_copies;          // not committed
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
};

struct Block {
  Index3 index;
  std::vector<Thread> threads;
  std::vector<uint64_t> slowness;  // of each warp: it runs in one of so many passes
  std::unique_ptr<std::byte[]> shared;
  size_t shared_bytes = 0;
};

/// All that one OS thread simulates; fibers and their stacks are used again.
struct Machine {
  Options options;
  Counters counters;
  Index3 grid;
  Index3 block_dimension;
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  FiberOwner owner;
  Block* block = nullptr;
  Thread* thread = nullptr;
  std::exception_ptr error;
};

Machine& machine() {
  static thread_local Machine instance;
  return instance;
}

std::string place(const Block& block, const Thread& thread) {
  return "block " + std::to_string(block.index.x) + "," + std::to_string(block.index.y) + "," +
         std::to_string(block.index.z) + " thread " + std::to_string(thread.id);
}

[[noreturn]] void fail_here(const std::string& what) {
  throw Failure(place(*machine().block, *machine().thread) + ": " + what);
}

void run_body(Thread& thread) {
  (*machine().body)();
  bool in_flight = !thread.open_copies.empty();
  for (const std::vector<Copy>& group : thread.groups) {
    in_flight |= !group.empty();
  }
  if (in_flight) {
    fail_here("ends with asynchronous copies that it didn't wait for");
  }
}

void thread_entry() {
  Machine& m = machine();
  Thread& thread = *m.thread;
  thread.fiber->begin(m.owner);
  try {
    run_body(thread);
  } catch (...) {
    m.error = std::current_exception();
  }
  thread.state = State::kDone;
  thread.fiber->finish(m.owner);
}

void wait_as(State state, const Meeting& meeting) {
  Machine& m = machine();
  Thread& thread = *m.thread;
  thread.state = state;
  thread.meeting = &meeting;
  thread.fiber->yield(m.owner);
}

void resume(Machine& m, Block& block, Thread& thread) {
  m.block = &block;
  m.thread = &thread;
  ++m.counters.switches;
  thread.fiber->resume(m.owner);
  if (m.error) {
    std::rethrow_exception(std::exchange(m.error, nullptr));
  }
  if (thread.state == State::kDone && !thread.fiber->stack_is_intact()) {
    fail_here("stack overflow");
  }
}

/// Whether all lanes of the mask of thread `lane` wait for the same thing. Fails if they never can.
bool lanes_have_met(const Block& block, size_t first, size_t lane) {
  const Thread& thread = block.threads[first + lane];
  const auto fail = [&](const std::string& what) {
    throw Failure(place(block, thread) + " at " + thread.meeting->name + ": " + what);
  };
  if (!(thread.mask >> lane & 1)) {
    fail("the lane is not in its own mask");
  }
  bool all = true;
  for (uint32_t left = thread.mask; left != 0; left &= left - 1) {
    const auto other_lane = static_cast<size_t>(std::countr_zero(left));
    const std::string name = "lane " + std::to_string(other_lane);
    if (first + other_lane >= block.threads.size()) {
      fail("the mask names " + name + ", which is beyond the block");
    }
    const Thread& other = block.threads[first + other_lane];
    if (other.state == State::kDone) {
      fail("the mask names " + name + ", which has exited");
    }
    if (other.state != State::kInWarp) {
      all = false;
    } else if (other.meeting != thread.meeting) {
      fail(name + " of the mask is at " + other.meeting->name);
    } else if (other.mask != thread.mask) {
      fail(name + " of the mask names another mask");
    }
  }
  return all;
}

/// Lets go the lanes of one warp that have met; true if there are any.
bool release_warp(Machine& m, Block& block, size_t first) {
  bool moved = false;
  const size_t lanes = std::min<size_t>(kWarpLanes, block.threads.size() - first);
  for (size_t lane = 0; lane < lanes; ++lane) {
    const Thread& thread = block.threads[first + lane];
    if (thread.state != State::kInWarp || !lanes_have_met(block, first, lane)) {
      continue;
    }
    std::array<void*, kWarpLanes> operands{};
    const uint32_t mask = thread.mask;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
      Thread& other = block.threads[first + static_cast<size_t>(std::countr_zero(left))];
      operands[static_cast<size_t>(std::countr_zero(left))] = other.operand;
      other.state = State::kReady;
    }
    try {
      thread.meeting->combine(operands.data(), mask);
    } catch (const Failure& failure) {
      throw Failure(place(block, thread) + " at " + thread.meeting->name + ": " + failure.what());
    }
    ++m.counters.meetings;
    moved = true;
  }
  return moved;
}

/// Lets a block go that waits as a whole; fails where a part of it can't come.
bool release_block(Block& block) {
  const Thread* waiting = nullptr;
  int64_t sum = 0;
  for (const Thread& thread : block.threads) {
    if (thread.state == State::kInBlock) {
      waiting = &thread;
      sum += thread.value;
    }
  }
  if (waiting == nullptr) {
    return false;
  }
  for (const Thread& thread : block.threads) {
    if (thread.state != State::kInBlock || thread.meeting != waiting->meeting) {
      throw Failure(place(block, *waiting) + " waits at " + waiting->meeting->name +
                    ", but thread " + std::to_string(thread.id) +
                    (thread.state == State::kDone ? " has exited"
                                                  : std::string(" is at ") + thread.meeting->name));
    }
  }
  for (Thread& thread : block.threads) {
    thread.value = sum;
    thread.state = State::kReady;
  }
  return true;
}

bool release_grid(std::vector<Block>& blocks) {
  size_t threads = 0;
  size_t waiting = 0;
  size_t done = 0;
  for (const Block& block : blocks) {
    for (const Thread& thread : block.threads) {
      ++threads;
      waiting += thread.state == State::kInGrid ? 1 : 0;
      done += thread.state == State::kDone ? 1 : 0;
    }
  }
  if (done == threads) {
    return false;
  }
  if (waiting != threads) {
    const size_t in_warp = threads - waiting - done;
    throw Failure("deadlock: " + std::to_string(waiting) + " threads at the grid barrier, " +
                  std::to_string(in_warp) + " at a warp operation, " + std::to_string(done) +
                  " have exited");
  }
  for (Block& block : blocks) {
    for (Thread& thread : block.threads) {
      thread.state = State::kReady;
    }
  }
  return true;
}

bool has_ready_thread(const Block& block) {
  return std::any_of(block.threads.begin(), block.threads.end(),
                     [](const Thread& thread) { return thread.state == State::kReady; });
}

/// False if all threads are done.
bool release(Machine& m, std::vector<Block>& blocks) {
  bool ready = false;
  for (Block& block : blocks) {
    for (size_t first = 0; first < block.threads.size(); first += kWarpLanes) {
      ready |= release_warp(m, block, first);
    }
    ready |= has_ready_thread(block) || release_block(block);
  }
  return ready || release_grid(blocks);
}

template <typename T>
void shuffle_order(Prng& prng, std::vector<T>& order) {
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[prng.below(i)]);
  }
}

struct Ref {
  Block* block;
  Thread* thread;
};

/// Threads that may run now, in the order in which they do; with a seed, slow warps sit out.
std::vector<Ref> runnable(std::vector<Block>& blocks, uint64_t seed, Prng& prng) {
  std::vector<Ref> ready;
  std::vector<Ref> slow;
  for (Block& block : blocks) {
    for (size_t first = 0; first < block.threads.size(); first += kWarpLanes) {
      const bool runs = seed == 0 || prng.below(block.slowness[first / kWarpLanes]) == 0;
      for (size_t i = first; i < std::min(first + kWarpLanes, block.threads.size()); ++i) {
        if (block.threads[i].state == State::kReady) {
          (runs ? ready : slow).push_back({&block, &block.threads[i]});
        }
      }
    }
  }
  std::vector<Ref>& chosen = ready.empty() ? slow : ready;
  if (seed != 0) {
    shuffle_order(prng, chosen);
  }
  return chosen;
}

void run_blocks(Machine& m, std::vector<Block>& blocks, Prng& prng) {
  do {
    for (const Ref& ref : runnable(blocks, m.options.seed, prng)) {
      resume(m, *ref.block, *ref.thread);
    }
  } while (release(m, blocks));
}

Index3 unflatten(size_t i, Index3 size) {
  const auto flat = static_cast<unsigned>(i);
  return {flat % size.x, flat / size.x % size.y, flat / size.x / size.y};
}

Block make_block(Machine& m, size_t i, size_t shared_bytes, size_t first_fiber, Prng& prng) {
  Block block;
  block.index = unflatten(i, m.grid);
  block.shared = std::make_unique_for_overwrite<std::byte[]>(shared_bytes);
  block.shared_bytes = shared_bytes;
  std::fill_n(block.shared.get(), shared_bytes, kPoison);
  const size_t threads = size_t{m.block_dimension.x} * m.block_dimension.y * m.block_dimension.z;
  block.threads.resize(threads);
  for (size_t t = 0; t < threads; ++t) {
    while (m.fibers.size() <= first_fiber + t) {
      m.fibers.push_back(std::make_unique<Fiber>(kStackBytes));
    }
    Thread& thread = block.threads[t];
    thread.fiber = m.fibers[first_fiber + t].get();
    thread.fiber->start(thread_entry);
    thread.id = static_cast<int>(t);
    thread.index = unflatten(t, m.block_dimension);
    if (t % kWarpLanes == 0) {
      block.slowness.push_back(uint64_t{1} << (3 * prng.below(3)));
    }
  }
  return block;
}

}  // namespace

Options& options() { return machine().options; }
const Counters& counters() { return machine().counters; }

void meet_warp(const Meeting& meeting, uint32_t mask, void* operand) {
  Thread& thread = *machine().thread;
  thread.mask = mask;
  thread.operand = operand;
  wait_as(State::kInWarp, meeting);
}

int64_t meet_block(const Meeting& meeting, int64_t value) {
  Thread& thread = *machine().thread;
  thread.value = value;
  wait_as(State::kInBlock, meeting);
  return thread.value;
}

void meet_grid() { wait_as(State::kInGrid, kGridMeeting); }

const Index3& thread_index() { return machine().thread->index; }
const Index3& block_index() { return machine().block->index; }
const Index3& block_dimension() { return machine().block_dimension; }
const Index3& grid_dimension() { return machine().grid; }
int lane() { return machine().thread->id % kWarpLanes; }
std::byte* shared_memory() { return machine().block->shared.get(); }

void check_shared(const void* address, size_t bytes, size_t alignment, const char* operation) {
  const Block& block = *machine().block;
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto begin = reinterpret_cast<uintptr_t>(block.shared.get());
  if (at < begin || at + bytes > begin + block.shared_bytes) {
    fail_here(std::string(operation) + ": the address is not in shared memory");
  }
  if ((at - begin) % alignment != 0) {
    fail_here(std::string(operation) + ": the address is not aligned to " +
              std::to_string(alignment) + " bytes");
  }
}

void copy_async(void* target, const void* source, size_t bytes, size_t source_bytes) {
  check_shared(target, bytes, bytes, "cp.async");
  if (source_bytes > 0 && reinterpret_cast<uintptr_t>(source) % bytes != 0) {
    fail_here("cp.async: the source is not aligned to its size");
  }
  std::memset(target, static_cast<int>(kPoison), bytes);
  machine().thread->open_copies.push_back({target, source, bytes, source_bytes});
}

void commit_copies() {
  Thread& thread = *machine().thread;
  thread.groups.push_back(std::exchange(thread.open_copies, {}));
}

void wait_copies(size_t groups_left) {
  Thread& thread = *machine().thread;
  while (thread.groups.size() > groups_left) {
    for (const Copy& copy : thread.groups.front()) {
      if (copy.source_bytes > 0) {
        std::memcpy(copy.target, copy.source, copy.source_bytes);
      }
      std::memset(static_cast<std::byte*>(copy.target) + copy.source_bytes, 0,
                  copy.bytes - copy.source_bytes);
    }
    thread.groups.erase(thread.groups.begin());
  }
}

void run_grid(Index3 grid, Index3 block, size_t shared_bytes, bool cooperative,
              const std::function<void()>& body) {
  Machine& m = machine();
  Prng prng(m.options.seed);
  m.counters = {};
  m.grid = grid;
  m.block_dimension = block;
  m.body = &body;
  std::vector<size_t> order(size_t{grid.x} * grid.y * grid.z);
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  if (m.options.seed != 0) {
    shuffle_order(prng, order);
  }
  const size_t threads = size_t{block.x} * block.y * block.z;
  std::vector<Block> alive;
  for (const size_t i : order) {
    alive.push_back(make_block(m, i, shared_bytes, cooperative ? alive.size() * threads : 0, prng));
    if (!cooperative) {
      run_blocks(m, alive, prng);
      alive.clear();
    }
  }
  run_blocks(m, alive, prng);
}

}  // namespace pagezip::cuda_sim
