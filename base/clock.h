// Time as an argument, so that simulations and tests decide what it is.
#pragma once

#include <chrono>
#include <cstdint>

namespace pagezip {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Microseconds since some fixed moment; never goes back.
  virtual int64_t now_us() const = 0;
  /// Seconds since 1970; may be set back.
  virtual int64_t unix_s() const = 0;
};

/// Any thread.
class SteadyClock : public Clock {
 public:
  int64_t now_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  int64_t unix_s() const override {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace pagezip
