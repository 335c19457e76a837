// The scheduler under seeded simulation: see tests/sim/simulation.h.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/sim/simulation.h"

namespace pagezip::sim {
namespace {

int64_t number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

// SIM_SEED=n runs one seed, SIM_RUNS=n that many.
TEST(SchedulerSim, Swarm) {
  Marks marks;
  const auto first = static_cast<uint64_t>(number("SIM_SEED", 1));
  const int64_t runs = number("SIM_RUNS", std::getenv("SIM_SEED") == nullptr ? 1000 : 1);
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(runs); ++seed) {
    const std::string failure = simulate(seed, marks);
    if (!failure.empty()) {
      FAIL() << "SIM_SEED=" << seed << " " << failure;
    }
  }
  for (const auto& [path, hits] : marks) {
    RecordProperty(path, static_cast<int>(hits));
  }
  if (runs < 1000) {
    return;
  }
  for (const char* path :
       {"prefix hit", "question on a compressed document", "busy", "too large", "kept scores",
        "cancelled", "failed step", "job done", "documents reclaimed", "preempted", "sent back",
        "joined", "forked", "copied tails", "fenced"}) {
    EXPECT_GT(marks[path], 10) << path;
  }
}

TEST(SchedulerSim, SameSeedSameRun) {
  Marks marks;
  uint64_t first = 0;
  uint64_t second = 1;
  simulate(7, marks, &first);
  simulate(7, marks, &second);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace pagezip::sim
