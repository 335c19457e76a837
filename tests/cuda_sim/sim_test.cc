// The simulator itself: threads see what CUDA promises, and each check fires.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/device_ops.cuh"

namespace pagezip::cuda_sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaSimTest : public testing::Test {
 protected:
  ~CudaSimTest() override { options() = {}; }

  /// What run_grid() throws, or "".
  static std::string failure(Index3 grid, Index3 block, size_t shared_bytes,
                             const std::function<void()>& body, bool cooperative = false) {
    try {
      run_grid(grid, block, shared_bytes, cooperative, body);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }
};

constexpr Index3 kOne{1, 1, 1};
constexpr Index3 kWarp{32, 1, 1};

TEST_F(CudaSimTest, EachThreadRunsOnce) {
  for (const uint64_t seed : {0, 1, 2}) {
    options().seed = seed;
    std::vector<int> runs(3 * 2 * 2 * 5 * 4 * 3);
    run_grid({3, 2, 2}, {5, 4, 3}, 0, false, [&] {
      const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      ++runs[block * 60 + thread];
    });
    EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
  }
}

TEST_F(CudaSimTest, SeedsChooseTheOrder) {
  const auto order = [](uint64_t seed) {
    options().seed = seed;
    std::vector<unsigned> seen;
    run_grid({4, 1, 1}, {64, 1, 1}, 0, false,
             [&] { seen.push_back(blockIdx.x * 64 + threadIdx.x); });
    return seen;
  };
  const auto program_order = order(0);
  EXPECT_TRUE(std::is_sorted(program_order.begin(), program_order.end()));
  EXPECT_NE(order(1), program_order);
  EXPECT_NE(order(1), order(2));
  EXPECT_EQ(order(1), order(1));
}

TEST_F(CudaSimTest, WarpOperations) {
  options().seed = 3;
  run_grid(kOne, {40, 1, 1}, 0, false, [] {
    const int lane = cuda_sim::lane();
    const uint32_t mask = threadIdx.x < 32 ? kAllLanes : 0xffu;
    EXPECT_EQ(__shfl_sync(mask, lane * 3, 5), 15);
    EXPECT_EQ(__shfl_sync(mask, lane, 1, 4), lane / 4 * 4 + 1);
    EXPECT_EQ(__shfl_xor_sync(mask, 0.5 * lane, 4), 0.5 * (lane ^ 4));
    EXPECT_EQ(__shfl_up_sync(mask, lane, 3, 8), lane % 8 < 3 ? lane : lane - 3);
    EXPECT_EQ(__shfl_down_sync(mask, lane, 3, 8), lane % 8 > 4 ? lane : lane + 3);
    EXPECT_EQ(__ballot_sync(mask, lane % 2), mask & 0xaaaaaaaau);
    EXPECT_TRUE(__any_sync(mask, lane == 7));
    EXPECT_FALSE(__any_sync(mask, lane == 99));
    EXPECT_TRUE(__all_sync(mask, lane < 32));
    EXPECT_FALSE(__all_sync(mask, lane != 7));
    const int last = threadIdx.x < 32 ? 31 : 7;
    EXPECT_EQ(__reduce_add_sync(mask, lane), last * (last + 1) / 2);
    EXPECT_EQ(__reduce_max_sync(mask, 10 - lane), 10);
    EXPECT_EQ(__reduce_min_sync(mask, 10 - lane), 10 - last);
    // Parts of a warp may go different ways.
    if (lane < 4) {
      EXPECT_EQ(__reduce_add_sync(0xfu, 1), 4);
    } else {
      EXPECT_EQ(__shfl_sync(mask & ~0xfu, lane, 6), 6);
    }
    __syncwarp(mask);
  });
  EXPECT_GT(counters().meetings, 20U);
}

TEST_F(CudaSimTest, BlockOperations) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    options().seed = seed;
    run_grid({2, 1, 1}, {96, 1, 1}, 96 * sizeof(int), false, [] {
      auto* values = reinterpret_cast<int*>(shared_memory());
      for (int round = 0; round < 3; ++round) {
        values[threadIdx.x] = static_cast<int>(threadIdx.x) + round;
        __syncthreads();
        EXPECT_EQ(values[95 - threadIdx.x], static_cast<int>(95 - threadIdx.x) + round);
        __syncthreads();
      }
      EXPECT_EQ(__syncthreads_count(threadIdx.x % 3 == 0), 32);
      EXPECT_TRUE(__syncthreads_or(threadIdx.x == 50));
      EXPECT_FALSE(__syncthreads_or(0));
      EXPECT_TRUE(__syncthreads_and(1));
      EXPECT_FALSE(__syncthreads_and(threadIdx.x != 50));
    });
  }
}

TEST_F(CudaSimTest, Atomics) {
  options().seed = 1;
  int sum = 0;
  uint32_t largest = 0;
  int smallest = 1000;
  int taken = -1;
  run_grid({3, 1, 1}, {50, 1, 1}, 0, false, [&] {
    const auto id = static_cast<int>(blockIdx.x * 50 + threadIdx.x);
    atomicAdd(&sum, id);
    atomicMax(&largest, static_cast<uint32_t>(id));
    atomicMin(&smallest, id + 7);
    atomicCAS(&taken, -1, id);
  });
  EXPECT_EQ(sum, 149 * 150 / 2);
  EXPECT_EQ(largest, 149U);
  EXPECT_EQ(smallest, 7);
  EXPECT_GE(taken, 0);
}

TEST_F(CudaSimTest, GridBarrier) {
  for (const uint64_t seed : {0, 1, 2}) {
    options().seed = seed;
    std::vector<int> arrived(4 * 40);
    const auto body = [&] {
      arrived[blockIdx.x * 40 + threadIdx.x] = 1;
      __syncthreads();
      meet_grid();
      EXPECT_EQ(arrived[(3 - blockIdx.x) * 40 + threadIdx.x], 1);
    };
    run_grid({4, 1, 1}, {40, 1, 1}, 0, true, body);
  }
  EXPECT_THAT(failure(
                  {2, 1, 1}, kWarp, 0, [] { meet_grid(); }, false),
              "");
  EXPECT_THAT(failure(
                  {2, 1, 1}, kWarp, 0,
                  [] {
                    if (blockIdx.x == 0) meet_grid();
                  },
                  true),
              HasSubstr("deadlock: 32 threads at the grid barrier"));
}

TEST_F(CudaSimTest, SharedMemoryIsPoison) {
  run_grid({2, 1, 1}, kWarp, 256, false, [] {
    float value;
    std::memcpy(&value, shared_memory() + 4 * threadIdx.x, 4);
    EXPECT_TRUE(std::isnan(value));
    std::memset(shared_memory() + 4 * threadIdx.x, 0, 4);
  });
}

TEST_F(CudaSimTest, DivergenceIsFound) {
  EXPECT_THAT(failure(kOne, kWarp, 0,
                      [] {
                        if (threadIdx.x < 8) {
                          __syncthreads();
                        } else {
                          __syncwarp();
                        }
                      }),
              AllOf(HasSubstr("__syncthreads"), HasSubstr("is at __syncwarp")));
  EXPECT_THAT(failure(kOne, kWarp, 0,
                      [] {
                        if (threadIdx.x == 5) {
                          __ballot_sync(kAllLanes, 1);
                        } else {
                          __shfl_sync(kAllLanes, 1, 0);
                        }
                      }),
              HasSubstr("of the mask is at"));
  EXPECT_THAT(failure(kOne, kWarp, 0, [] { __syncwarp(threadIdx.x == 0 ? 3u : kAllLanes); }),
              HasSubstr("names another mask"));
  EXPECT_THAT(failure(kOne, {64, 1, 1}, 0,
                      [] {
                        if (threadIdx.x < 32) __syncthreads();
                      }),
              HasSubstr("has exited"));
  EXPECT_THAT(failure(kOne, kWarp, 0,
                      [] {
                        if (threadIdx.x % 2 == 0) {
                          __syncthreads();
                        } else {
                          __syncthreads_count(1);
                        }
                      }),
              HasSubstr("__syncthreads_count"));
}

TEST_F(CudaSimTest, WrongMasksAreFound) {
  EXPECT_THAT(failure(kOne, kWarp, 0,
                      [] {
                        if (threadIdx.x != 3) __syncwarp();
                      }),
              HasSubstr("lane 3, which has exited"));
  EXPECT_THAT(failure(kOne, {20, 1, 1}, 0, [] { __syncwarp(); }), HasSubstr("beyond the block"));
  EXPECT_THAT(failure(kOne, kWarp, 0, [] { __syncwarp(2u); }), HasSubstr("not in its own mask"));
  EXPECT_THAT(failure(kOne, {4, 1, 1}, 0, [] { __shfl_sync(0xfu, 1, 9); }),
              HasSubstr("lane 9, which is not in the mask"));
  EXPECT_THAT(failure(kOne, {4, 1, 1}, 512,
                      [] {
                        uint32_t out[4];
                        cuda::load_matrices(out, shared_memory());
                      }),
              HasSubstr("beyond the block"));
}

// Warps that read what another writes before they synchronise.
TEST_F(CudaSimTest, SomeSeedShowsAMissingBarrier) {
  const auto wrong = [](uint64_t seed, bool barrier) {
    options().seed = seed;
    bool nan = false;
    run_grid(kOne, {128, 1, 1}, 128 * sizeof(float), false, [&] {
      auto* values = reinterpret_cast<float*>(shared_memory());
      for (int i = 0; i < 4; ++i) __syncwarp();  // equal work before and after
      values[threadIdx.x] = 1;
      for (int i = 0; i < 2; ++i) __syncwarp();
      if (barrier) __syncthreads();
      nan |= std::isnan(values[127 - threadIdx.x]);
    });
    return nan;
  };
  EXPECT_FALSE(wrong(0, false)) << "program order hides it";
  int found = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    found += wrong(seed, false) ? 1 : 0;
    EXPECT_FALSE(wrong(seed, true));
  }
  EXPECT_GE(found, 8);
}

TEST_F(CudaSimTest, CopiesLandWhenWaitedFor) {
  const std::vector<float> source{1, 2, 3, 4, 5, 6, 7, 8};
  run_grid(kOne, kOne, 64, false, [&] {
    auto* target = reinterpret_cast<float*>(shared_memory());
    cuda::copy_async<16>(target, source.data(), true);
    cuda::commit_copies();
    cuda::copy_async<4>(target + 4, source.data() + 4, true);
    cuda::copy_async<16>(target + 8, source.data() + 4, false);
    cuda::commit_copies();
    EXPECT_TRUE(std::isnan(target[0]));
    cuda::wait_copies<1>();
    EXPECT_EQ(target[3], 4);
    EXPECT_TRUE(std::isnan(target[4]));
    EXPECT_TRUE(std::isnan(target[8]));
    cuda::wait_copies<0>();
    EXPECT_EQ(target[4], 5);
    EXPECT_TRUE(std::isnan(target[5]));
    EXPECT_EQ(target[8], 0);
    EXPECT_EQ(target[11], 0);
    cuda::commit_copies();  // an empty group needs no wait
  });
}

TEST_F(CudaSimTest, WrongCopiesAreFound) {
  alignas(16) static const float source[8] = {};
  const auto copy = [](size_t target, size_t from) {
    return failure(kOne, kOne, 64, [&] {
      cuda::copy_async<16>(shared_memory() + target, source + from, true);
      cuda::commit_copies();
      cuda::wait_copies<0>();
    });
  };
  EXPECT_EQ(copy(16, 4), "");
  EXPECT_THAT(copy(8, 0), HasSubstr("not aligned to 16"));
  EXPECT_THAT(copy(0, 1), HasSubstr("source is not aligned"));
  EXPECT_THAT(copy(64, 0), HasSubstr("not in shared memory"));
  EXPECT_THAT(failure(kOne, kOne, 64,
                      [] {
                        cuda::copy_async<16>(shared_memory(), source, true);
                        cuda::commit_copies();
                      }),
              HasSubstr("didn't wait for"));
  EXPECT_THAT(failure(kOne, kOne, 64, [] { cuda::copy_async<16>(shared_memory(), source, true); }),
              HasSubstr("didn't wait for"));
}

/// Calls itself until the stack has grown by `bytes`.
__attribute__((noinline)) int deep(const volatile char* top, int64_t bytes) {
  volatile char frame[256];
  frame[0] = 1;
  return top - frame >= bytes ? frame[0] : deep(top, bytes) + frame[0];
}

TEST_F(CudaSimTest, StackOverflowIsFound) {
  const auto grow = [](int64_t bytes) {
    return failure(kOne, kOne, 0, [&] {
      volatile char top = 0;
      deep(&top, bytes);
    });
  };
  constexpr auto kBytes = static_cast<int64_t>(kStackBytes);
  EXPECT_EQ(grow(kBytes - 8192), "");
  EXPECT_THAT(grow(kBytes - 2600), HasSubstr("stack overflow"));  // within the guard
}

TEST_F(CudaSimTest, FailuresNameThePlaceAndLeaveTheMachineUsable) {
  EXPECT_THAT(failure({3, 1, 1}, {64, 1, 1}, 0,
                      [] {
                        if (blockIdx.x == 2 && threadIdx.x == 33) throw Failure("here");
                        __syncthreads();
                      }),
              "here");
  EXPECT_THAT(failure({3, 1, 1}, {64, 1, 1}, 0,
                      [] {
                        if (blockIdx.x == 2) __shfl_sync(2u, 0, 1);
                      }),
              HasSubstr("block 2,0,0 thread"));
  EXPECT_EQ(failure(kOne, {64, 1, 1}, 0, [] { __syncthreads(); }), "");
}

}  // namespace
}  // namespace pagezip::cuda_sim
