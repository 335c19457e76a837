// The way of small things to the device: an operation puts its tables side by side into pinned
// memory, and one copy brings them over.
//
// Two halves take turns. One is written again only when the copies out of it, and the kernels that
// read their targets, are behind the device.
#pragma once

#include <cstring>
#include <span>

#include "base/check.h"
#include "base/math.h"
#include "kernels/cuda/runtime.h"

namespace pagezip::cuda {

class Staging {
 public:
  explicit Staging(Stream stream) : stream_(stream) {}
  ~Staging() { drop(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// What put() takes of begin()'s bytes.
  template <typename T>
  static int64_t room(int64_t count) {
    return round_up(count * static_cast<int64_t>(sizeof(T)), kAlignment);
  }

  /// Starts an operation that will put up to `bytes`.
  void begin(int64_t bytes) {
    if (bytes > half_bytes_) {
      grow(bytes);
    } else if (end_ + bytes > half_bytes_) {
      passed_[half_].record(stream_);
      half_ = 1 - half_;
      passed_[half_].wait();
      end_ = 0;
    }
    begin_ = end_;
    limit_ = end_ + bytes;
  }
  /// RETURNS: where the values will be on the device.
  template <typename T>
  T* put(std::span<const T> values) {
    const int64_t at = half_ * half_bytes_ + end_;
    if (!values.empty()) {
      std::memcpy(host_ + at, values.data(), values.size_bytes());
    }
    end_ += room<T>(static_cast<int64_t>(values.size()));
    CHECK_LE(end_, limit_);
    return reinterpret_cast<T*>(device_ + at);
  }
  /// Copies what was put since begin().
  void send() {
    const int64_t at = half_ * half_bytes_ + begin_;
    if (end_ > begin_) {
      require(copy(device_ + at, host_ + at, static_cast<size_t>(end_ - begin_), stream_),
              "a copy of tables");
    }
  }

 private:
  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t kHalfBytes = int64_t{4} << 20;  // at first

  void grow(int64_t bytes) {
    require(synchronize(stream_), "waiting for the device");
    drop();
    while (half_bytes_ < bytes) {
      half_bytes_ = half_bytes_ == 0 ? kHalfBytes : 2 * half_bytes_;
    }
    host_ = allocate_pinned(static_cast<size_t>(2 * half_bytes_));
    device_ = allocate(static_cast<size_t>(2 * half_bytes_));
    CHECK(host_ != nullptr && device_ != nullptr);
    end_ = 0;
  }
  void drop() {
    if (host_ != nullptr) {
      release_pinned(host_);
      release(device_);
    }
  }

  Stream stream_;
  std::byte* host_ = nullptr;    // [2, half_bytes_], pinned
  std::byte* device_ = nullptr;  // likewise
  int64_t half_bytes_ = 0;
  int half_ = 0;
  Event passed_[2];    // behind the last operation that used the half
  int64_t begin_ = 0;  // of the operation in hand, in its half
  int64_t end_ = 0;
  int64_t limit_ = 0;
};

}  // namespace pagezip::cuda
