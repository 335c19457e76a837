// Appending, scoring and compacting in the simulator, against plain loops on the host.
#include <numeric>

#include "kernels/cuda/compact.cuh"
#include "tests/cuda_sim/sim_score_util.h"

namespace pagezip::test {
namespace {

class CudaPagesTest : public testing::Test {
 protected:
  ~CudaPagesTest() override { cuda_sim::options() = {}; }
};

PageLayout random_page(Prng& prng, uint64_t seed) {
  AttendProblem shape = random_sim_shape(prng, seed);
  shape.page.head_dim = pick(prng, {16, 64, 80, 128, 256});
  return shape.page;
}

// Rows of a decode step that go to different sequences, and runs of a prompt.
TEST_F(CudaPagesTest, AppendWritesItsPairsOnly) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Prng prng(seed);
    cuda_sim::options().seed = seed % 4;
    const PageLayout page = random_page(prng, seed);
    const int kv_heads = pick(prng, {1, 2, 3});
    const int layer = static_cast<int>(prng.below(kLayers));
    std::vector<PagedSegment> actual, expected;
    std::vector<Segment> segments;
    for (uint64_t s = 0; s < 3; ++s) {
      actual.push_back(make_empty_pages(page, kLayers, kv_heads, {208}, s, seed + s));
      expected.push_back(make_empty_pages(page, kLayers, kv_heads, {208}, s, seed + s));
      segments.push_back(actual.back().segment);
    }
    const int64_t rows = pick<int64_t>(prng, {0, 1, 2, 17, 50});
    // From beyond float16's largest value down to its subnormals, and constant rows.
    const double bound = pick(prng, {1.0, 2.0, 1e5, 1e-6, 0.0});
    const Matrix k = random_matrix(prng, rows, kv_heads * page.head_dim, bound, 3);
    const Matrix v = random_matrix(prng, rows, kv_heads * page.head_dim, bound);
    std::vector<cuda::AppendRow> targets;
    const std::vector<uint32_t> places = shuffled(prng, 80);
    for (int64_t i = 0; i < rows; ++i) {
      const auto segment = static_cast<int32_t>(prng.below(3));
      const int64_t pair = segment * page.page_tokens + places[static_cast<size_t>(i)];
      targets.push_back({pair, segment});
      for (int head = 0; head < kv_heads; ++head) {
        write_pair(page,
                   expected[segment].segment.page(layer, head, targets[i].pair / page.page_tokens),
                   targets[i].pair % page.page_tokens, k.row(i) + head * page.head_dim,
                   v.row(i) + head * page.head_dim);
      }
    }
    cuda::append({.page = page,
                  .kv_heads = kv_heads,
                  .layer = layer,
                  .k = k.data.data(),
                  .v = v.data.data(),
                  .k_stride = k.stride,
                  .v_stride = v.stride,
                  .rows = rows,
                  .targets = targets.data(),
                  .segments = segments.data()},
                 {});
    for (size_t s = 0; s < 3; ++s) {
      ASSERT_EQ(std::memcmp(actual[s].memory.data(), expected[s].memory.data(),
                            expected[s].memory.size()),
                0)
          << "seed " << seed;
    }
  }
}

// The step between two codes bounds the error of a quantised value.
TEST_F(CudaPagesTest, QuantisedValuesAreClose) {
  for (const auto& [type, levels] : {std::pair{KvType::kI8, 255.0}, std::pair{KvType::kI4, 15.0}}) {
    Prng prng(1);
    const PageLayout page{type, type, 16, 64, KeyOrder::kPlain};
    AlignedBytes memory(static_cast<size_t>(page.page_bytes()));
    for (int slot = 0; slot < 16; ++slot) {
      const double middle = pick(prng, {0.0, 10.0, -300.0});
      std::vector<float> values(64);
      for (float& value : values) {
        value = static_cast<float>(middle) + random_float(prng, 2);
      }
      write_pair(page, memory.data(), slot, values.data(), values.data());
      const double error = 2.01 / levels + std::fabs(middle) * 0x1p-10;
      for (int d = 0; d < 64; ++d) {
        EXPECT_NEAR(cuda::load_key(page, memory.data(), slot, d), values[d], error);
        EXPECT_EQ(cuda::load_value(page, memory.data(), slot, d),
                  cuda::load_key(page, memory.data(), slot, d));
      }
    }
  }
}

TEST_F(CudaPagesTest, LogSumExpOfTheScoredPairs) {
  for (uint64_t seed = 0; seed < 40 && !HasFatalFailure(); ++seed) {
    Prng prng(100 + seed);
    cuda_sim::options().seed = seed % 4;
    std::vector<AttendProblem> problems{random_score_problem(prng, seed)};
    const SimBatch batch = make_batch(problems, seed);
    const PairRanges& ranges = *problems[0].score;
    const ScoreRange score{ranges.prefix_end, ranges.chunk_begin, ranges.chunk_end, {}, 0};
    expect_output(problems[0], sim_attend(problems[0], batch, &score), 0, false,
                  "seed " + std::to_string(seed));
  }
}

TEST_F(CudaPagesTest, Score) {
  for (uint64_t seed = 0; seed < 60 && !HasFatalFailure(); ++seed) {
    expect_score(seed);
  }
}

// ---- compaction ----

/// Lists of pairs to keep, with a CSR over [kLayers, heads]; some are empty or whole.
struct KeptLists {
  std::vector<uint64_t> first{0};
  std::vector<uint32_t> pairs;
};

KeptLists random_lists(Prng& prng, int lists, int64_t length) {
  KeptLists kept;
  for (int i = 0; i < lists; ++i) {
    const double share = pick(prng, {0.0, 0.3, 0.5, 1.0});
    for (uint32_t pair = 0; pair < length; ++pair) {
      if (prng.chance(share)) {
        kept.pairs.push_back(pair);
      }
    }
    kept.first.push_back(kept.pairs.size());
  }
  return kept;
}

void copy_bits(KvType type, const std::byte* source, int64_t from, std::byte* target, int64_t to,
               int64_t count) {
  const int64_t bits = bits_of(type);
  std::memcpy(target + to * bits / 8, source + from * bits / 8,
              static_cast<size_t>(count * bits / 8));
}

void copy_pair(const PageLayout& from, const std::byte* source, int64_t from_slot,
               const PageLayout& to, std::byte* target, int64_t to_slot) {
  const bool plain = from.key_order == KeyOrder::kPlain && to.key_order == KeyOrder::kPlain;
  const int step = plain ? from.head_dim : 1;
  for (int d = 0; d < from.head_dim; d += step) {
    copy_bits(from.k_type, source, key_element(from, from_slot, d), target,
              key_element(to, to_slot, d), step);
  }
  copy_bits(from.v_type, source + from.k_bytes(), from_slot * from.head_dim, target + to.k_bytes(),
            to_slot * from.head_dim, from.head_dim);
  if (is_quantised(from.k_type)) {
    std::memcpy(target + to.k_elements_bytes() + 4 * to_slot,
                source + from.k_elements_bytes() + 4 * from_slot, 4);
  }
  if (is_quantised(from.v_type)) {
    std::memcpy(target + to.k_bytes() + to.v_elements_bytes() + 4 * to_slot,
                source + from.k_bytes() + from.v_elements_bytes() + 4 * from_slot, 4);
  }
}

// Pairs hold random bits, among them NaNs, and arrive unchanged, in order, in pages of other sizes.
TEST_F(CudaPagesTest, CompactMovesBits) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Prng prng(300 + seed);
    cuda_sim::options().seed = seed % 4;
    const PageLayout page = random_page(prng, seed);
    const int heads = pick(prng, {1, 3});
    const int64_t length = pick<int64_t>(prng, {0, 1, page.page_tokens + 1, 200});
    const int64_t prefix = pick<int64_t>(prng, {0, 5});
    PagedSegment source = make_empty_pages(page, kLayers, heads, {prefix + length}, 0, seed);
    for (size_t i = 0; i < source.memory.size(); ++i) {
      source.memory.data()[i] = static_cast<std::byte>(prng.next());
    }
    const KeptLists kept = random_lists(prng, kLayers * heads, length);
    const int64_t target_first = pick<int64_t>(prng, {0, 1, 13});
    std::vector<int64_t> lengths;
    for (size_t i = 0; i + 1 < kept.first.size(); ++i) {
      lengths.push_back(target_first + static_cast<int64_t>(kept.first[i + 1] - kept.first[i]));
    }
    PageLayout target = page;
    target.page_tokens = pick(prng, {16, 32, 64});
    if (!is_quantised(page.k_type)) {
      target.key_order = pick(prng, {KeyOrder::kPlain, KeyOrder::kTransposed});
    }
    PagedSegment actual = make_empty_pages(target, kLayers, heads, lengths, 0, seed + 1);
    PagedSegment expected = make_empty_pages(target, kLayers, heads, lengths, 0, seed + 1);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < heads; ++head) {
        const auto list = static_cast<size_t>(layer * heads + head);
        for (uint64_t i = kept.first[list]; i < kept.first[list + 1]; ++i) {
          const int64_t from = prefix + kept.pairs[i];
          const int64_t to = target_first + static_cast<int64_t>(i - kept.first[list]);
          copy_pair(page, source.segment.page(layer, head, from / page.page_tokens),
                    from % page.page_tokens, target,
                    expected.segment.page(layer, head, to / target.page_tokens),
                    to % target.page_tokens);
        }
      }
      cuda::compact({.source_page = page,
                     .target_page = target,
                     .source = source.segment,
                     .target = actual.segment,
                     .layer = layer,
                     .heads = heads,
                     .first = kept.first.data(),
                     .pairs = kept.pairs.data(),
                     .source_first = prefix,
                     .target_first = target_first},
                    pick(prng, {1, 2, 5}), {});
    }
    ASSERT_EQ(std::memcmp(actual.memory.data(), expected.memory.data(), expected.memory.size()), 0)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace pagezip::test
