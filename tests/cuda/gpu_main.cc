// Runs the kernels' tests on a GPU. The tests pass pointers to their own vectors; so all memory of
// this program is managed memory, which both sides see. Launches have to be synchronous
// (CUDA_LAUNCH_BLOCKING=1). Exit code 77: there is no GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

/// Room before each allocation for how it was made; keeps the alignment that CUDA and AlignedBytes
/// want.
constexpr size_t kHeader = 256;

void* allocate(size_t bytes) {
  void* memory = nullptr;
  const bool managed = cudaMallocManaged(&memory, bytes + kHeader) == cudaSuccess;
  if (!managed) {  // no GPU: main() says so
    memory = std::aligned_alloc(kHeader, (bytes + 2 * kHeader - 1) / kHeader * kHeader);
  }
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  *static_cast<bool*>(memory) = managed;
  return static_cast<char*>(memory) + kHeader;
}

void release(void* pointer) noexcept {
  if (pointer == nullptr) {
    return;
  }
  void* memory = static_cast<char*>(pointer) - kHeader;
  if (*static_cast<bool*>(memory)) {
    cudaFree(memory);
  } else {
    std::free(memory);
  }
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t) { return allocate(bytes); }
void operator delete(void* pointer) noexcept { release(pointer); }
void operator delete[](void* pointer) noexcept { release(pointer); }
void operator delete(void* pointer, size_t) noexcept { release(pointer); }
void operator delete[](void* pointer, size_t) noexcept { release(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { release(pointer); }

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "skipped: this machine has no CUDA device\n");
    return 77;
  }
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking == nullptr || *blocking != '1') {
    std::fprintf(stderr, "error: set CUDA_LAUNCH_BLOCKING=1\n");
    return 2;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
