// A fixed set of worker threads for the CPU kernels, and the scratch memory of an operation.
//
// parallel_for hands out items one at a time, so uneven items balance; results must not depend on
// which thread computes an item. Workers spin for a few microseconds between calls and then sleep.
// One caller at a time: the object belongs to the thread that runs the step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace pagezip {

class ThreadPool {
 public:
  /// `threads` counts the caller too; 1 starts no worker. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  /// The calling thread alone, with the caller's memory as scratch: nothing is ever allocated.
  /// REQUIRES: `memory` is aligned to 64 bytes, and as large as the operations need
  /// (Kernels::attend_scratch, score_scratch; store_kv and copy_pairs need none).
  explicit ThreadPool(std::span<std::byte> memory);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(item, thread) once for every item in [0, items); returns when all are done.
  /// `thread` is in [0, threads()). The body must not throw.
  template <typename Body>
  void parallel_for(int64_t items, const Body& body) {
    const auto call = [](const void* erased, int64_t item, int thread) {
      (*static_cast<const Body*>(erased))(item, thread);
    };
    run({call, &body}, items);
  }

  /// At least `bytes` of 64-byte aligned memory that belongs to `thread` until its next call of
  /// scratch(). Contents are not kept. Grows and never shrinks.
  std::byte* scratch(int thread, size_t bytes);
  /// The same for the caller of parallel_for: one buffer that all items may share. An operation
  /// uses either this or scratch(), because they may be the same memory.
  std::byte* shared_scratch(size_t bytes);

 private:
  // A borrowed body, which std::function would copy to the heap.
  struct Work {
    void (*call)(const void* body, int64_t item, int thread) = nullptr;
    const void* body = nullptr;
  };
  struct FreeAligned {
    void operator()(std::byte* p) const;
  };
  struct Scratch {
    std::unique_ptr<std::byte, FreeAligned> memory;
    size_t bytes = 0;
  };
  void run(Work work, int64_t items);
  void worker(int thread);
  void run_items(int thread);
  static std::byte* grown(Scratch& scratch, size_t bytes);

  std::span<std::byte> fixed_;    // the caller's memory, used if there is no scratch of our own
  std::vector<Scratch> scratch_;  // [threads]
  Scratch shared_;
  std::vector<std::thread> workers_;
  Work work_;
  int64_t items_ = 0;
  std::atomic<int64_t> next_item_{0};
  std::atomic<int> workers_busy_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace pagezip
