// Selection in the simulator, and by a full sort.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/prng.h"
#include "kernels/cuda/select.cuh"

namespace pagezip::test {

struct SelectProblem {
  int layers;
  int heads;
  int64_t tokens;
  int64_t padding;            // floats between heads
  std::vector<float> scores;  // [layers * heads] of tokens + padding

  int lists() const { return layers * heads; }
  float score(int64_t list, int64_t i) const {
    return scores[static_cast<size_t>(list * (tokens + padding) + i)];
  }
};

struct Kept {
  std::vector<uint64_t> first;
  std::vector<uint32_t> pairs;
  unsigned long long bad = ~0ull;
  bool operator==(const Kept&) const = default;
};

/// Buffers of the exact size; what isn't input begins as garbage.
inline Kept sim_select(const SelectProblem& problem, int64_t keep, int64_t floor, bool each_list) {
  const int lists = problem.lists();
  const auto pairs = static_cast<size_t>(lists * problem.tokens);
  const int64_t per_list = ceil_div(problem.tokens, cuda::kSelectChunk);
  std::vector<uint32_t> keys(pairs, 0xdeadbeef);
  std::vector<uint32_t> histogram(static_cast<size_t>(lists) * cuda::kSelectBins, 77);
  std::vector<cuda::SelectCut> cuts(static_cast<size_t>(lists), {77, 77});
  std::vector<cuda::SelectCount> counts(static_cast<size_t>(lists * per_list), {-7, -7});
  std::vector<unsigned long long> bad{~0ull};
  Kept kept;
  kept.first.assign(static_cast<size_t>(lists) + 1, 77);
  kept.pairs.assign(static_cast<size_t>(keep * (each_list ? lists : 1)), 0xdeadbeef);
  const int64_t stride = problem.tokens + problem.padding;
  cuda::select({.scores = problem.scores.data(),
                .layer_stride = problem.heads * stride,
                .head_stride = stride,
                .lists = lists,
                .heads = problem.heads,
                .tokens = problem.tokens,
                .lists_per_scope = each_list ? 1 : lists,
                .keep = keep,
                .keys = keys.data(),
                .histogram = histogram.data(),
                .cuts = cuts.data(),
                .counts = counts.data(),
                .first = kept.first.data(),
                .pairs = kept.pairs.data(),
                .bad = bad.data()},
               floor, {});
  kept.bad = bad[0];
  return kept;
}

struct Pair {
  float score;
  int64_t list;
  int64_t position;
};

/// The best `keep` of those `pairs` (in order of memory), marked.
inline void mark_best(std::vector<Pair> pairs, int64_t keep, std::vector<std::vector<bool>>& kept) {
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.score > b.score; });
  for (int64_t i = 0; i < keep; ++i) {
    const Pair& pair = pairs[static_cast<size_t>(i)];
    kept[static_cast<size_t>(pair.list)][static_cast<size_t>(pair.position)] = true;
  }
}

inline Kept sorted_select(const SelectProblem& problem, int64_t keep, int64_t floor,
                          bool each_list) {
  std::vector<std::vector<bool>> kept(static_cast<size_t>(problem.lists()),
                                      std::vector<bool>(static_cast<size_t>(problem.tokens)));
  std::vector<Pair> all;
  for (int64_t list = 0; list < problem.lists(); ++list) {
    std::vector<Pair> own;
    for (int64_t i = 0; i < problem.tokens; ++i) {
      own.push_back({problem.score(list, i), list, i});
    }
    mark_best(own, each_list ? keep : floor, kept);
    all.insert(all.end(), own.begin(), own.end());
  }
  if (!each_list) {
    std::erase_if(all, [&](const Pair& pair) {
      return kept[static_cast<size_t>(pair.list)][static_cast<size_t>(pair.position)];
    });
    mark_best(all, keep - problem.lists() * floor, kept);
  }
  Kept result;
  result.first.push_back(0);
  for (const auto& list : kept) {
    for (uint32_t i = 0; i < list.size(); ++i) {
      if (list[i]) {
        result.pairs.push_back(i);
      }
    }
    result.first.push_back(result.pairs.size());
  }
  return result;
}

inline SelectProblem random_select_problem(Prng& prng) {
  SelectProblem problem{static_cast<int>(prng.range(1, 3)),
                        static_cast<int>(prng.range(1, 3)),
                        0,
                        prng.range(0, 3),
                        {}};
  const int64_t sizes[] = {1, 2, 255, 256, 257, 1000, 4095, 4096, 4097, 9000};
  problem.tokens = sizes[prng.below(std::size(sizes))];
  const int kind = static_cast<int>(prng.below(4));
  for (int64_t i = 0; i < problem.lists() * (problem.tokens + problem.padding); ++i) {
    const double u = prng.uniform();
    problem.scores.push_back(static_cast<float>(
        kind == 0   ? std::log(u + 1e-9)                   // log-probabilities
        : kind == 1 ? -static_cast<double>(prng.below(3))  // mostly ties
        : kind == 2 ? (u - 0.5) * 1e-40                    // subnormals, zeros of both signs
                    : std::ldexp(u - 0.5, static_cast<int>(prng.range(-100, 100)))));
  }
  return problem;
}

/// One random problem.
inline void expect_selection(uint64_t seed) {
  Prng prng(seed);
  cuda_sim::options().seed = seed % 4;
  const SelectProblem problem = random_select_problem(prng);
  const bool each_list = prng.chance(0.3);
  const int64_t scope = problem.tokens * (each_list ? 1 : problem.lists());
  const int64_t floor =
      each_list || prng.chance(0.5) ? 0 : prng.range(0, std::min<int64_t>(5, problem.tokens));
  const int64_t choices[] = {0, 1, scope / 3, scope - 1, scope};
  const int64_t keep = std::max(choices[prng.below(5)], floor * problem.lists());
  ASSERT_EQ(sim_select(problem, keep, floor, each_list),
            sorted_select(problem, keep, floor, each_list))
      << "seed " << seed;
}

}  // namespace pagezip::test
