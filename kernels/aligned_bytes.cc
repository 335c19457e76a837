#include <cstring>
#include <new>
#include <utility>

#include "kernels/kernels.h"

namespace pagezip {

AlignedBytes::AlignedBytes(size_t bytes) : size_(bytes) {
  if (bytes > 0) {
    data_ = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
    std::memset(data_, 0, bytes);
  }
}

AlignedBytes::AlignedBytes(AlignedBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBytes& AlignedBytes::operator=(AlignedBytes&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBytes::~AlignedBytes() { ::operator delete (data_, std::align_val_t{64}); }

}  // namespace pagezip
