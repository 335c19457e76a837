// Counts of values in buckets whose width grows with the value, so that a quantile is right within
// an eighth. Of fixed size: adding allocates nothing, and a copy is a copy of bytes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace pagezip {

class Histogram {
 public:
  /// Values below 8 have a bucket each, and every power of two from there on has eight.
  static constexpr int kParts = 8;
  static constexpr int kPowers =
      33;  // values from 2^36 on (19 hours in microseconds) share a bucket
  static constexpr size_t kBuckets = size_t{kParts} * (kPowers + 1);

  /// Negative values count as 0.
  void add(int64_t value) {
    value = std::max<int64_t>(value, 0);
    ++counts_[bucket_of(value)];
    ++count_;
    sum_ += value;
    max_ = std::max(max_, value);
  }

  int64_t count() const { return count_; }
  int64_t sum() const { return sum_; }
  int64_t max() const { return max_; }
  double mean() const {
    return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_);
  }
  /// About the value that the part `q` of all values doesn't exceed; 0 without values.
  double quantile(double q) const {
    double left = q * static_cast<double>(count_);
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      const auto here = static_cast<double>(counts_[bucket]);
      if (here > 0 && left <= here) {
        const double first = static_cast<double>(begin(bucket));
        const double last = static_cast<double>(std::min(begin(bucket + 1) - 1, max_));
        return first + (last - first) * std::max(left, 0.0) / here;
      }
      left -= here;
    }
    return static_cast<double>(max_);
  }

  /// How many values are in a bucket: those from begin(bucket) up to begin(bucket + 1).
  int64_t in_bucket(size_t bucket) const { return counts_[bucket]; }
  static constexpr int64_t begin(size_t bucket) {
    if (bucket < kParts) {
      return static_cast<int64_t>(bucket);
    }
    return static_cast<int64_t>(kParts + bucket % kParts) << (bucket / kParts - 1);
  }
  static constexpr size_t bucket_of(int64_t value) {
    if (value < kParts) {
      return static_cast<size_t>(value);
    }
    const int power = std::bit_width(static_cast<uint64_t>(value)) - std::bit_width(kParts - 1u);
    const size_t bucket =
        static_cast<size_t>(power) * kParts + static_cast<size_t>(value >> (power - 1)) % kParts;
    return std::min(bucket, kBuckets - 1);
  }

 private:
  std::array<int64_t, kBuckets> counts_{};
  int64_t count_ = 0;
  int64_t sum_ = 0;
  int64_t max_ = 0;
};

}  // namespace pagezip
