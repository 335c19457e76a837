#include "base/histogram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/prng.h"

namespace pagezip {
namespace {

TEST(Histogram, BucketsCoverAllValuesInOrder) {
  for (size_t bucket = 0; bucket + 1 < Histogram::kBuckets; ++bucket) {
    const int64_t begin = Histogram::begin(bucket);
    const int64_t end = Histogram::begin(bucket + 1);
    ASSERT_LT(begin, end);
    EXPECT_EQ(Histogram::bucket_of(begin), bucket);
    EXPECT_EQ(Histogram::bucket_of(end - 1), bucket);
    EXPECT_LE(end - begin, std::max<int64_t>(begin / 8, 1));
  }
  EXPECT_EQ(Histogram::bucket_of(INT64_MAX), Histogram::kBuckets - 1);
  EXPECT_GE(Histogram::begin(Histogram::kBuckets - 1), int64_t{1} << 35);
}

TEST(Histogram, QuantilesAreRightWithinAnEighth) {
  Prng prng(3);
  for (const double spread : {1.0, 5.0, 15.0}) {
    Histogram histogram;
    std::vector<int64_t> values;
    int64_t sum = 0;
    for (int i = 0; i < 5'000; ++i) {
      values.push_back(static_cast<int64_t>(std::exp(spread * prng.uniform()) * 10));
      histogram.add(values.back());
      sum += values.back();
    }
    std::sort(values.begin(), values.end());
    for (const double q : {0.01, 0.1, 0.5, 0.9, 0.99, 1.0}) {
      const auto exact = static_cast<double>(values[static_cast<size_t>(q * 4'999)]);
      EXPECT_NEAR(histogram.quantile(q), exact, exact / 8 + 1) << spread << ", " << q;
    }
    EXPECT_EQ(histogram.count(), 5'000);
    EXPECT_EQ(histogram.sum(), sum);
    EXPECT_EQ(histogram.max(), values.back());
    EXPECT_EQ(histogram.quantile(1), static_cast<double>(values.back()));
  }
}

TEST(Histogram, OfFewValues) {
  Histogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0);
  EXPECT_EQ(histogram.mean(), 0);
  histogram.add(-5);
  EXPECT_EQ(histogram.quantile(0.99), 0);
  histogram.add(6);
  EXPECT_EQ(histogram.quantile(0.99), 6);
  EXPECT_EQ(histogram.mean(), 3);
  EXPECT_EQ(histogram.in_bucket(0), 1);
}

}  // namespace
}  // namespace pagezip
