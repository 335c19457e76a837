// The device as the host sees it: memory, copies and one stream of work. Implemented on CUDA's
// runtime (runtime.cc), and by the simulator (tests/cuda_sim/runtime.cc).
//
// One device and one stream for a process. Any thread may call, but the order of its work with that
// of others is its callers' affair.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace pagezip::cuda {

/// Throws Error(kRuntime) with the reason if there is no device that these kernels run on.
/// REQUIRES: called before everything else here.
void open_device();
/// For people: "NVIDIA H200, sm_90, 139.8 GiB".
const char* device_name();
int multiprocessors();
Stream compute_stream();

/// What allocate() can still give, about.
int64_t bytes_free();
/// Zeros, aligned to 64 bytes at least; null if there isn't so much.
std::byte* allocate(size_t bytes);
/// Waits for the stream.
void release(std::byte* memory);
/// Host memory that copies read and write while the host goes on; null if there isn't so much.
std::byte* allocate_pinned(size_t bytes);
void release_pinned(std::byte* memory);

/// In either direction or within the device, behind what is in the stream. Of host memory that
/// isn't pinned, a source is read before the call returns; REQUIRES: it isn't the target.
Status copy(void* target, const void* source, size_t bytes, Stream stream);
Status synchronize(Stream stream);

/// A place in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream);
  /// Until the stream has passed the place recorded last; at once if there is none.
  void wait();

 private:
  void* state_ = nullptr;
};

/// Ends the process with a line that says what failed: a device that fails once answers nothing
/// more.
void require(Status status, const char* what);

}  // namespace pagezip::cuda
