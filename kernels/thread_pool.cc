#include "kernels/thread_pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pagezip {
namespace {

// Long enough to bridge the serial parts between two kernels of a decode step, short enough that an
// idle engine leaves the core to others.
constexpr int kSpins = 2'000;
constexpr int kSpinsBeforeYield = 500;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

void ThreadPool::FreeAligned::operator()(std::byte* p) const {
  ::operator delete (p, std::align_val_t{64});
}

ThreadPool::ThreadPool(int threads) : scratch_(static_cast<size_t>(std::max(threads, 1))) {
  CHECK_GE(threads, 1);
  for (int t = 1; t < threads; ++t) {
    workers_.emplace_back([this, t] { worker(t); });
  }
}

ThreadPool::ThreadPool(std::span<std::byte> memory) : fixed_(memory) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0U);
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& thread : workers_) {
    thread.join();
  }
}

void ThreadPool::run(Work work, int64_t items) {
  if (workers_.empty() || items <= 1) {
    for (int64_t i = 0; i < items; ++i) {
      work.call(work.body, i, 0);
    }
    return;
  }
  work_ = work;
  items_ = items;
  next_item_.store(0, std::memory_order_relaxed);
  workers_busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  run_items(0);
  // Workers leave as soon as no item is left; they must have left before the body dies.
  for (int spin = 0; workers_busy_.load(std::memory_order_acquire) != 0; ++spin) {
    // A worker that has lost its core to another process needs ours to come back.
    spin < kSpinsBeforeYield ? relax() : std::this_thread::yield();
  }
}

std::byte* ThreadPool::scratch(int thread, size_t bytes) {
  return scratch_.empty() ? shared_scratch(bytes)
                          : grown(scratch_[static_cast<size_t>(thread)], bytes);
}

std::byte* ThreadPool::shared_scratch(size_t bytes) {
  if (!scratch_.empty()) {
    return grown(shared_, bytes);
  }
  CHECK_LE(bytes, fixed_.size());
  return fixed_.data();
}

std::byte* ThreadPool::grown(Scratch& scratch, size_t bytes) {
  if (scratch.bytes < bytes) {
    scratch.memory.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    scratch.bytes = bytes;
  }
  return scratch.memory.get();
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++spin) {
      relax();
    }
    epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) {
      return;
    }
    run_items(thread);
    workers_busy_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::run_items(int thread) {
  while (true) {
    const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= items_) {
      return;
    }
    work_.call(work_.body, item, thread);
  }
}

}  // namespace pagezip
