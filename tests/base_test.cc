#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/math.h"
#include "base/prng.h"
#include "kernels/half.h"

namespace pagezip {
namespace {

TEST(Check, PrintsBothValuesAndAborts) {
  const int pages = 3;
  EXPECT_DEATH(CHECK_EQ(pages, 4), "pages == 4 \\(3 vs 4\\)");
  CHECK_EQ(pages, 3);
}

TEST(Check, PrintsWhatLedThere) {
  const CheckReport outer([] { return "outer report\n"; });
  {
    const CheckReport gone([] { return "of no use\n"; });
  }
  const CheckReport inner([]() -> std::string {
    CHECK_EQ(1, 2);  // fails itself, and isn't asked again
    return "";
  });
  EXPECT_DEATH(CHECK(false), "CHECK failed: false\n.*1 == 2");
  const CheckReport innermost([] { return "last decisions\n"; });
  EXPECT_DEATH(CHECK(false), "CHECK failed: false\nlast decisions\n");
}

TEST(Math, RoundsUp) {
  EXPECT_EQ(ceil_div(0, 16), 0);
  EXPECT_EQ(ceil_div(1, 16), 1);
  EXPECT_EQ(ceil_div(16, 16), 1);
  EXPECT_EQ(ceil_div(17, 16), 2);
  EXPECT_EQ(round_up(int64_t{1} << 40 | 1, 64), (int64_t{1} << 40) + 64);
  static_assert(round_up(size_t{64}, 64) == 64);
}

TEST(Prng, SameSeedSameNumbersAndBoundsHold) {
  Prng a(7);
  Prng b(7);
  for (int i = 0; i < 1000; ++i) {
    const int64_t value = a.range(-3, 5);
    EXPECT_EQ(value, b.range(-3, 5));
    EXPECT_GE(value, -3);
    EXPECT_LE(value, 5);
  }
  // SplitMix64's published first output for seed 0.
  EXPECT_EQ(Prng(0).next(), 0xe220a8397b1dcdafull);
}

TEST(Half, EveryF16PatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
    } else {
      EXPECT_EQ(float_to_f16(value), bits) << value;
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(float_to_f16(1.0f + 0x1.0p-11f), 0x3c00);  // half way, even stays
  EXPECT_EQ(float_to_f16(1.0f + 0x1.8p-10f), 0x3c02);  // half way, odd goes up
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);           // half way above the largest
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(0x1.0p-25f), 0);  // half of the smallest subnormal
  EXPECT_EQ(float_to_f16(0x1.8p-24f), 2);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1.0p-8f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1.8p-7f), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace pagezip
