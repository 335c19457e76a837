#include "base/device_memory.h"

#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <utility>

namespace pagezip {
namespace {

constexpr std::align_val_t kAlignment{64};

// Linux's word.
int64_t bytes_free() {
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;) {
    if (word == "MemAvailable:") {
      int64_t kib = 0;
      in >> kib;
      return kib << 10;
    }
  }
  return 0;
}

std::byte* allocate(size_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow));
  if (memory != nullptr) {
    std::memset(memory, 0, bytes);
  }
  return memory;
}

void release(std::byte* memory) { ::operator delete(memory, kAlignment); }

void copy(void* target, const void* source, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(target, source, bytes);
  }
}

}  // namespace

constexpr DeviceMemory kHostMemory{
    .is_host = true,
    .bytes_free = bytes_free,
    .allocate = allocate,
    .release = release,
    .to_device = [](std::byte* t, const void* s, size_t n) { copy(t, s, n); },
    .to_host = [](void* t, const std::byte* s, size_t n) { copy(t, s, n); },
    .copy = [](std::byte* t, const std::byte* s, size_t n) { copy(t, s, n); },
    .wait = [] {},
};

AlignedBytes::AlignedBytes(size_t bytes, const DeviceMemory& memory)
    : memory_(&memory), size_(bytes) {
  if (bytes > 0) {
    data_ = memory.allocate(bytes);
    if (data_ == nullptr) {
      throw std::bad_alloc();
    }
  }
}

AlignedBytes::AlignedBytes(AlignedBytes&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

AlignedBytes& AlignedBytes::operator=(AlignedBytes&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBytes::~AlignedBytes() {
  if (data_ != nullptr) {
    memory_->release(data_);
  }
}

}  // namespace pagezip
