// Builds of the scheduler with one seeded bug each: the simulation must find every one of them
// within 500 seeds. A seed runs in a process of its own, because a bug may end it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "base/mutant.h"
#include "paging/document_directory.h"
#include "tests/document_world.h"
#include "tests/faulty_files.h"
#include "tests/sim/simulation.h"

namespace pagezip {

Mutant active_mutant = Mutant::kNone;

namespace sim {
namespace {

/// The power goes while a document is written. Whatever the folder lists then must be whole.
std::string lose_power(uint64_t seed) {
  constexpr int64_t kBudget = 4 << 20;
  World world({KvType::kF16, KvType::kF16, 16, 16}, 2, 1, 0, 0, 700);
  const auto document = make_full(world, 5'000, 5);  // several writes
  const auto write = [&](FaultyFiles& files) {
    try {
      DocumentDirectory directory(files, "folder", world.shape, kBudget);
      DocumentListing listing;
      listing.id = "doc_a";
      const auto file = directory.write(
          {"doc_a", 1}, {*document, identity_of(world, *document), nullptr}, listing);
      while (file->step(100'000)) {
      }
    } catch (const Error&) {
    }
  };
  FaultyFiles good;
  write(good);
  Prng prng(seed);
  FaultyFiles files;
  files.set_fault(FaultyFiles::Fault::kPowerLoss, prng.range(1, good.calls()));
  write(files);
  // What survives is drawn several times.
  for (int restart = 0; restart < 20; ++restart) {
    const auto after = files.restarted(FaultyFiles::Survival::kRandom, prng);
    DocumentDirectory directory(*after, "folder", world.shape, kBudget);
    try {
      for (const DocumentDirectory::File& file : directory.take_files()) {
        const auto reader = directory.read(file.key);
        const DocumentShape shape = reader->header().shape();
        auto blocks = world.pool.reserve(Document::blocks_for(world.pool.geometry(), shape));
        const auto loaded = Document::blank(world.pool, shape, *blocks);
        reader->fill(*loaded);
        while (reader->step(100'000)) {
        }
      }
    } catch (const Error& error) {
      return std::string("a torn file is listed: ") + error.what();
    }
  }
  return "";
}

std::string life(Mutant mutant, uint64_t seed) {
  Marks marks;
  return mutant == Mutant::kTornFile ? lose_power(seed) : simulate(seed, marks);
}

bool finds(Mutant mutant, uint64_t seed) {
  const pid_t child = fork();
  if (child == 0) {
    active_mutant = mutant;
    std::fclose(stderr);
    _exit(life(mutant, seed).empty() ? 0 : 1);
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
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(lose_power(seed), "") << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Bugs, MutationTest,
                         testing::Values(Mutant::kPinAfterLookUp, Mutant::kLeakOnCancel,
                                         Mutant::kPublishBeforeCopy, Mutant::kTailNotCopied,
                                         Mutant::kLostWakeUp, Mutant::kDoubleFree,
                                         Mutant::kWrongPosition, Mutant::kSaltLeftOut,
                                         Mutant::kStarvationByScoring, Mutant::kDeferredFreeThrash,
                                         Mutant::kStaleResult, Mutant::kPendingKept,
                                         Mutant::kReservationKept, Mutant::kWindowDroppedEarly,
                                         Mutant::kSharedBlockCompacted, Mutant::kStaleHash,
                                         Mutant::kResumedChunk, Mutant::kTornFile));

}  // namespace
}  // namespace sim
}  // namespace pagezip
