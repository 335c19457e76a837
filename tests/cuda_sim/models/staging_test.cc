// What operations bring to the device arrives as it was put, however late the device is.
#include "kernels/cuda/staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/prng.h"

namespace pagezip::cuda {
namespace {

TEST(CudaStaging, ValuesArriveHoweverLateTheDeviceIs) {
  for (const bool late : {false, true}) {
    cuda_sim::options().late_work = late;
    Staging staging(compute_stream());
    Prng prng(late ? 1 : 2);
    uint64_t expected = 0;
    std::vector<uint64_t> sums(1, 0);
    // About 60 MB through halves of 4, then more at once than a half.
    for (int i = 0; i < 200; ++i) {
      std::vector<uint32_t> values(
          static_cast<size_t>(prng.range(0, i == 150 ? 3'000'000 : 75'000)));
      for (uint32_t& value : values) {
        value = static_cast<uint32_t>(prng.next());
        expected = expected * 31 + value;
      }
      const char tail = static_cast<char>(i);
      staging.begin(Staging::room<uint32_t>(static_cast<int64_t>(values.size())) +
                    Staging::room<char>(1));
      const uint32_t* there = staging.put(std::span<const uint32_t>(values));
      const char* there_too = staging.put(std::span(&tail, 1));
      staging.send();
      cuda_sim::run_on(compute_stream(), [&sums, there, there_too, count = values.size(), tail] {
        for (size_t k = 0; k < count; ++k) {
          sums[0] = sums[0] * 31 + there[k];
        }
        EXPECT_EQ(*there_too, tail);
      });
    }
    require(synchronize(compute_stream()), "");
    EXPECT_EQ(sums[0], expected);
  }
  cuda_sim::options() = {};
}

TEST(CudaStagingDeath, MoreThanSaid) {
  Staging staging(compute_stream());
  const std::vector<char> values(65);
  staging.begin(64);
  EXPECT_DEATH(staging.put(std::span<const char>(values)), "limit_");
}

}  // namespace
}  // namespace pagezip::cuda
