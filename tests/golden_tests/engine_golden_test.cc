// Mixes of requests and documents on a real model, with the defaults (8-bit activations): every
// request gets exactly the tokens that it gets alone.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/engine_mix.h"
#include "tests/golden_tests/pipeline_fixture.h"

namespace pagezip {
namespace {

// PAGEZIP_TEST_FULL=1 runs 200 mixes.
TEST(EngineGolden, MixesGiveWhatEachRequestGetsAlone) {
  const Model& model = load_model(kSmolLm2, ActivationType::kQ8);
  ThreadPool threads(2);
  const Tokenizer tokenizer(model.file());
  const MixModel on{model, tokenizer, ActivationType::kQ8, threads};
  const MixLimits limits{100, 24, 300, 120};
  const uint64_t runs = std::getenv("PAGEZIP_TEST_FULL") == nullptr ? 6 : 200;
  Stats all;
  int compared = 0;
  for (uint64_t seed = 1; seed <= runs && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    EngineMix mix(on, limits, seed);
    mix.run();
    compared += mix.compared;
    all.preemptions += mix.stats.preemptions;
    all.tokens_cached += mix.stats.tokens_cached;
    all.versions += mix.stats.versions;
  }
  EXPECT_GT(compared, static_cast<int>(3 * runs));
  EXPECT_GT(all.tokens_cached, 0);
  EXPECT_GT(all.versions, static_cast<int64_t>(runs));
  RecordProperty("compared", compared);
  RecordProperty("preemptions", static_cast<int>(all.preemptions));
}

}  // namespace
}  // namespace pagezip
