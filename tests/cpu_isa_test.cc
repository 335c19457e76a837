// The choice of instruction sets. The suites over the backends run once more for each lesser one
// (tests/CMakeLists.txt).
#include <gtest/gtest.h>

#include "kernels/cpu/dense.h"
#include "kernels/cpu/self_test.h"
#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"

namespace pagezip::cpu {
namespace {

// Puts the choice of start-up back.
struct ChosenIsa {
  ChosenIsa() { cpu_kernels(); }
  ~ChosenIsa() {
    use_simd_level(best_simd_level());
    set_dense_isa(best_dense_isa());
  }
};

TEST(CpuIsa, EveryDenseLevelPassesItsSelfTest) {
  const ChosenIsa restore;
  for (int isa = 0; isa <= static_cast<int>(best_dense_isa()); ++isa) {
    set_dense_isa(static_cast<DenseIsa>(isa));
    EXPECT_TRUE(dense_self_test()) << isa;
  }
}

TEST(CpuIsa, EveryFloatLevelPassesItsSelfTest) {
  const ChosenIsa restore;
  std::string last;
  for (int level = 0; level <= static_cast<int>(best_simd_level()); ++level) {
    use_simd_level(static_cast<SimdLevel>(level));
    EXPECT_TRUE(float_self_test()) << simd_ops().isa;
    EXPECT_NE(simd_ops().isa, last) << "the level did not change";
    last = simd_ops().isa;
  }
}

TEST(CpuIsa, NamesWhatIsInUse) {
  EXPECT_NE(cpu_kernels_isa().find(simd_ops().isa), std::string::npos);
}

}  // namespace
}  // namespace pagezip::cpu
