// Selection in the simulator against a full sort, in the order that paging/selection.h defines.
#include "kernels/cuda/select.cuh"

#include <limits>

#include "tests/cuda_sim/sim_select_util.h"

namespace pagezip::test {
namespace {

class CudaSelectTest : public testing::Test {
 protected:
  ~CudaSelectTest() override { cuda_sim::options() = {}; }
};

TEST_F(CudaSelectTest, KeepsTheBest) {
  for (uint64_t seed = 0; seed < 60 && !HasFatalFailure(); ++seed) {
    expect_selection(seed);
  }
}

TEST_F(CudaSelectTest, TiesGoByPlace) {
  SelectProblem problem{2, 2, 5000, 0, std::vector<float>(4 * 5000, -1.5f)};
  problem.scores[5000 * 3 + 4999] = -1;
  const Kept kept = sim_select(problem, 7001, 0, false);
  EXPECT_EQ(kept.first, (std::vector<uint64_t>{0, 5000, 7000, 7000, 7001}));
  EXPECT_EQ(kept.pairs[6999], 1999U);
  EXPECT_EQ(kept.pairs[7000], 4999U);
}

TEST_F(CudaSelectTest, NamesTheFirstBadScore) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    SelectProblem problem{1, 3, 700, 2, std::vector<float>(3 * 702, 0.5f)};
    problem.scores[700] = bad;  // between heads
    EXPECT_EQ(sim_select(problem, 10, 0, false).bad, ~0ull);
    problem.scores[702 * 2 + 5] = problem.scores[702 + 33] = bad;
    EXPECT_EQ(sim_select(problem, 10, 0, false).bad, 733ull);
  }
}

}  // namespace
}  // namespace pagezip::test
