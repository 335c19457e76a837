// Says which seed of a simulation a failed CHECK belongs to, before it ends the process.
#pragma once

#include <cinttypes>
#include <csignal>
#include <cstdint>
#include <cstdio>

namespace pagezip {

/// While it lives, SIGABRT prints the seed. One at a time.
class SeedReport {
 public:
  explicit SeedReport(uint64_t seed) {
    running = seed;
    std::signal(SIGABRT, [](int) { std::fprintf(stderr, "SIM_SEED=%" PRIu64 "\n", running); });
  }
  ~SeedReport() { std::signal(SIGABRT, SIG_DFL); }
  SeedReport(const SeedReport&) = delete;
  SeedReport& operator=(const SeedReport&) = delete;

 private:
  static inline uint64_t running = 0;
};

}  // namespace pagezip
