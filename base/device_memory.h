// The memory that a backend's operations work on, and how the host reaches it.
//
// On the CPU that is the host's own memory. A device's may be touched by its operations only; the
// host copies, and every copy is in order with the operations called before and after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace pagezip {

struct DeviceMemory {
  bool is_host = true;
  /// What could still be allocated, about; 0: unknown.
  int64_t (*bytes_free)() = nullptr;
  /// Zeros, aligned to 64 bytes at least; null if there isn't so much.
  std::byte* (*allocate)(size_t bytes) = nullptr;
  void (*release)(std::byte* memory) = nullptr;
  /// When a copy to the device or to the host returns, the host's side is its caller's again.
  void (*to_device)(std::byte* target, const void* source, size_t bytes) = nullptr;
  void (*to_host)(void* target, const std::byte* source, size_t bytes) = nullptr;
  void (*copy)(std::byte* target, const std::byte* source, size_t bytes) = nullptr;
  /// Until all that was called before is done.
  void (*wait)() = nullptr;
};

/// What the CPU's backends work on.
extern const DeviceMemory kHostMemory;

/// Bytes of such a memory, zero at first, owned.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// Throws std::bad_alloc.
  explicit AlignedBytes(size_t bytes, const DeviceMemory& memory = kHostMemory);
  AlignedBytes(AlignedBytes&& other) noexcept;
  AlignedBytes& operator=(AlignedBytes&& other) noexcept;
  ~AlignedBytes();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const DeviceMemory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// An array that only operations touch.
template <typename T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceArray() = default;
  DeviceArray(int64_t size, const DeviceMemory& memory)
      : bytes_(static_cast<size_t>(size) * sizeof(T), memory), size_(size) {}
  DeviceArray(std::span<const T> values, const DeviceMemory& memory)
      : DeviceArray(static_cast<int64_t>(values.size()), memory) {
    memory.to_device(bytes_.data(), values.data(), values.size_bytes());
  }

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// Null if it is empty.
  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }

 private:
  AlignedBytes bytes_;
  int64_t size_ = 0;
};

/// An array that operations and the host take turns at: one memory where the backend works on the
/// host's, else two, of which one is brought up to date by a copy.
template <typename T>
class MirroredArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit MirroredArray(const DeviceMemory& memory) : memory_(&memory) {}

  /// The device's side loses its contents when it grows.
  void resize(int64_t size) {
    host_.resize(static_cast<size_t>(size));
    if (!memory_->is_host && device_.size() < size) {
      device_ = {};  // before there are two
      device_ = DeviceArray<T>(static_cast<int64_t>(host_.capacity()), *memory_);
    }
  }
  int64_t size() const { return static_cast<int64_t>(host_.size()); }
  T* host() { return host_.data(); }
  T* device() { return memory_->is_host ? host_.data() : device_.data(); }
  const T* device() const { return memory_->is_host ? host_.data() : device_.data(); }

  /// [first, first + count) as the host has it, or as operations left it.
  void to_device(int64_t first, int64_t count) {
    if (!memory_->is_host) {
      memory_->to_device(bytes_at(first), host_.data() + first, bytes(count));
    }
  }
  void to_host(int64_t first, int64_t count) {
    if (!memory_->is_host) {
      memory_->to_host(host_.data() + first, bytes_at(first), bytes(count));
    }
  }

 private:
  static size_t bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(T); }
  std::byte* bytes_at(int64_t first) {
    return reinterpret_cast<std::byte*>(device_.data() + first);
  }

  const DeviceMemory* memory_;
  std::vector<T> host_;
  DeviceArray<T> device_;
};

}  // namespace pagezip
