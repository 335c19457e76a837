// The simulated device's memory and streams.
//
// Device memory can be touched while a kernel or a copy runs, and at no other time: the host's
// access ends the process with SIGSEGV, as on hardware. Each allocation ends where a page that
// nobody may touch begins, so that what lies behind it is caught too.
//
// Work on a stream may be late (Options::late_work): it then runs when somebody waits for it, so
// that whatever the host changes too early, or reads too soon, is seen.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>

namespace pagezip::cuda_sim {

/// Not zeroed: NaN in every float type.
std::byte* allocate_device(size_t bytes);
void release_device(std::byte* memory);
bool is_device_memory(const void* pointer);
/// Allocations that weren't released.
size_t device_allocations();

/// While one lives, device memory may be touched: by the thread that made it, others wait.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

class Stream {
 public:
  void add(std::function<void()> work);
  /// How much was added so far.
  size_t added() const { return done_ + waiting_.size(); }
  void run_until(size_t added);

 private:
  std::deque<std::function<void()>> waiting_;
  size_t done_ = 0;
};

/// On a stream, or at once where there is none.
void run_on(Stream* stream, std::function<void()> work);

}  // namespace pagezip::cuda_sim
