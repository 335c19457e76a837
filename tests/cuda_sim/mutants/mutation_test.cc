// Builds of the kernels with one seeded bug each: the tests of the simulator must find every one of
// them. A run has a process of its own, because a bug may end it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "base/mutant.h"
#include "tests/cuda_sim/sim_score_util.h"
#include "tests/cuda_sim/sim_select_util.h"

namespace pagezip {

Mutant active_mutant = Mutant::kNone;

namespace test {
namespace {

void attend(uint64_t seed) {
  Prng prng(seed);
  expect_matches(random_sim_problem(prng, seed), seed, "");
}

struct Case {
  Mutant mutant;
  void (*scenario)(uint64_t seed);
};
constexpr Case kCases[] = {
    {Mutant::kBarrierLeftOut, attend},
    {Mutant::kWaitLeftOut, attend},
    {Mutant::kWrongTailMask, attend},
    {Mutant::kWrongScaleRow, attend},
    {Mutant::kOffByOnePage, attend},
    {Mutant::kMergeWithoutRescale, attend},
    {Mutant::kCausalOffByOne, attend},
    {Mutant::kGroupRowMixUp, attend},
    {Mutant::kScoreBarrierLeftOut, expect_score},
    {Mutant::kUninitialisedShared, expect_selection},
    {Mutant::kUnstableCompaction, expect_selection},
    {Mutant::kTiesUncounted, expect_selection},
};

bool finds(Mutant mutant, void (*scenario)(uint64_t), uint64_t seed) {
  std::fflush(stdout);  // or the child writes it once more
  const pid_t child = fork();
  if (child == 0) {
    active_mutant = mutant;
    std::fclose(stdout);
    std::fclose(stderr);
    try {
      scenario(seed);
    } catch (const cuda_sim::Failure&) {
      _exit(1);
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(CudaMutationTest, EveryBugIsFound) {
  constexpr uint64_t kSeeds = 40;
  for (const Case& mutant : kCases) {
    uint64_t seed = 0;
    while (seed < kSeeds && !finds(mutant.mutant, mutant.scenario, seed)) {
      ++seed;
    }
    EXPECT_LT(seed, kSeeds) << "mutant " << static_cast<int>(mutant.mutant);
    std::printf("mutant %d: found by seed %d\n", static_cast<int>(mutant.mutant),
                static_cast<int>(seed));
  }
}

// What finds a bug must find nothing where there is none.
TEST(CudaMutationTest, NothingIsFoundWithoutABug) {
  for (void (*scenario)(uint64_t) : {attend, expect_score, expect_selection}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      EXPECT_FALSE(finds(Mutant::kNone, scenario, seed));
    }
  }
}

}  // namespace
}  // namespace test
}  // namespace pagezip
