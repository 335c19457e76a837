// A fixed set of worker threads for the CPU kernels, with one scratch buffer each.
//
// parallel_for hands out items one at a time, so uneven items balance; results must not depend on
// which thread computes an item. Workers spin for a few microseconds between calls and then sleep.
// One caller at a time: the object belongs to the thread that runs the step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace pagezip {

class ThreadPool {
 public:
  /// `threads` counts the caller too; 1 starts no worker. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(scratch_.size()); }

  /// Calls body(item, thread) once for every item in [0, items); returns when all are done.
  /// `thread` is in [0, threads()). The body must not throw.
  void parallel_for(int64_t items, const std::function<void(int64_t item, int thread)>& body);

  /// At least `bytes` of 64-byte aligned memory that belongs to `thread` until its next call of
  /// scratch(). Contents are not kept. Grows and never shrinks.
  std::byte* scratch(int thread, size_t bytes);
  /// The same for the caller of parallel_for: one buffer that all items may share.
  std::byte* shared_scratch(size_t bytes);

 private:
  struct FreeAligned {
    void operator()(std::byte* p) const;
  };
  struct Scratch {
    std::unique_ptr<std::byte, FreeAligned> memory;
    size_t bytes = 0;
  };
  void worker(int thread);
  void run_items(int thread);
  static std::byte* grown(Scratch& scratch, size_t bytes);

  std::vector<Scratch> scratch_;
  Scratch shared_;
  std::vector<std::thread> workers_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t items_ = 0;
  std::atomic<int64_t> next_item_{0};
  std::atomic<int> workers_busy_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace pagezip
