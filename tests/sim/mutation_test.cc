// Builds of the scheduler with one seeded bug each: the simulation must find every one of them
// within 500 seeds. A seed runs in a process of its own, because a bug may end it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "base/mutant.h"
#include "tests/sim/simulation.h"

namespace pagezip {

Mutant active_mutant = Mutant::kNone;

namespace sim {
namespace {

bool finds(Mutant mutant, uint64_t seed) {
  const pid_t child = fork();
  if (child == 0) {
    active_mutant = mutant;
    std::fclose(stderr);
    Marks marks;
    _exit(simulate(seed, marks).empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

class MutationTest : public testing::TestWithParam<Mutant> {};

TEST_P(MutationTest, IsFoundWithin500Seeds) {
  uint64_t seed = 1;
  while (seed <= 500 && !finds(GetParam(), seed)) {
    ++seed;
  }
  EXPECT_LE(seed, 500u);
  RecordProperty("seed", static_cast<int>(seed));
  std::printf("mutant %d: seed %d\n", static_cast<int>(GetParam()), static_cast<int>(seed));
}

TEST(MutationTest, WithoutABugNothingIsFound) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    EXPECT_FALSE(finds(Mutant::kNone, seed)) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Bugs, MutationTest,
                         testing::Values(Mutant::kPinAfterLookUp, Mutant::kLeakOnCancel,
                                         Mutant::kPublishBeforeCopy, Mutant::kTailNotCopied,
                                         Mutant::kLostWakeUp, Mutant::kDoubleFree,
                                         Mutant::kWrongPosition, Mutant::kSaltLeftOut,
                                         Mutant::kStarvationByScoring, Mutant::kDeferredFreeThrash,
                                         Mutant::kStaleResult, Mutant::kPendingKept,
                                         Mutant::kReservationKept, Mutant::kWindowDroppedEarly));

}  // namespace
}  // namespace sim
}  // namespace pagezip
