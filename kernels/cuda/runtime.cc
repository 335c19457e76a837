#include "kernels/cuda/runtime.h"

#include <cstdio>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace pagezip::cuda {
namespace {

struct Device {
  std::string name;
  int multiprocessors = 0;
  Stream stream = nullptr;
};
Device& device() {
  static Device instance;
  return instance;
}

[[noreturn]] void no_device(const std::string& why) {
  throw Error(ErrorKind::kRuntime, "no CUDA device can be used: " + why);
}

void require_open(Status status) {
  if (status == cudaErrorInsufficientDriver) {  // also where there is none at all
    no_device("there is no NVIDIA driver, or it is older than CUDA " +
              std::to_string(CUDART_VERSION / 1000) + "." +
              std::to_string(CUDART_VERSION % 1000 / 10));
  }
  if (status != cudaSuccess) {
    no_device(cudaGetErrorString(status));
  }
}

}  // namespace

void open_device() {
  if (device().stream != nullptr) {
    return;
  }
  int count = 0;
  require_open(cudaGetDeviceCount(&count));
  if (count == 0) {
    no_device("this machine has none");
  }
  int number = 0;
  require_open(cudaGetDevice(&number));
  cudaDeviceProp properties{};
  require_open(cudaGetDeviceProperties(&properties, number));
  const std::string architecture =
      "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
  if (properties.major < 8) {
    no_device(std::string(properties.name) + " is " + architecture + ", sm_80 is needed");
  }
  char memory[32];
  std::snprintf(memory, sizeof(memory), "%.1f GiB",
                static_cast<double>(properties.totalGlobalMem) / 1073741824.0);
  device().name = std::string(properties.name) + ", " + architecture + ", " + memory;
  device().multiprocessors = properties.multiProcessorCount;
  require_open(cudaStreamCreateWithFlags(&device().stream, cudaStreamNonBlocking));
}

const char* device_name() { return device().name.c_str(); }
int multiprocessors() { return device().multiprocessors; }
Stream compute_stream() { return device().stream; }

int64_t bytes_free() {
  size_t free = 0;
  size_t total = 0;
  require(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<int64_t>(free);
}

std::byte* allocate(size_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    cudaGetLastError();  // of cudaMalloc; not the next launch's
    return nullptr;
  }
  require(cudaMemsetAsync(memory, 0, bytes, device().stream), "clearing memory");
  return static_cast<std::byte*>(memory);
}

void release(std::byte* memory) {
  require(synchronize(device().stream), "waiting for the device");
  require(cudaFree(memory), "freeing memory");
}

std::byte* allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  if (cudaMallocHost(&memory, bytes) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return static_cast<std::byte*>(memory);
}

void release_pinned(std::byte* memory) { require(cudaFreeHost(memory), "freeing pinned memory"); }

Status copy(void* target, const void* source, size_t bytes, Stream stream) {
  return bytes == 0 ? cudaSuccess
                    : cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream);
}

Status synchronize(Stream stream) { return cudaStreamSynchronize(stream); }

Event::Event() {
  cudaEvent_t event = nullptr;
  require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  state_ = event;
}
Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(state_)); }
void Event::record(Stream stream) {
  require(cudaEventRecord(static_cast<cudaEvent_t>(state_), stream), "recording an event");
}
void Event::wait() {
  require(cudaEventSynchronize(static_cast<cudaEvent_t>(state_)), "waiting for an event");
}

void require(Status status, const char* what) {
  if (status != cudaSuccess) {
    detail::check_failed(__FILE__, __LINE__,
                         std::string(what) + " on the GPU failed: " + cudaGetErrorString(status));
  }
}

}  // namespace pagezip::cuda
