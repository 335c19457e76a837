// CUDA's names for what kernels use, on top of cuda_sim.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cuda_sim/cuda_sim.h"

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the names are CUDA's
#define threadIdx (::pagezip::cuda_sim::thread_index())
#define blockIdx (::pagezip::cuda_sim::block_index())
#define blockDim (::pagezip::cuda_sim::block_dimension())
#define gridDim (::pagezip::cuda_sim::grid_dimension())

namespace pagezip::cuda_sim {

struct ShuffleOperand {
  uint64_t bits;
  int source;
};

inline void combine_shuffle(void** operands, uint32_t mask) {
  uint64_t before[kWarpLanes] = {};
  for (int i = 0; i < kWarpLanes; ++i) {
    if (mask >> i & 1) {
      before[i] = static_cast<ShuffleOperand*>(operands[i])->bits;
    }
  }
  for (int i = 0; i < kWarpLanes; ++i) {
    if (mask >> i & 1) {
      auto& operand = *static_cast<ShuffleOperand*>(operands[i]);
      if (!(mask >> operand.source & 1)) {
        throw Failure("lane " + std::to_string(i) + " shuffles from lane " +
                      std::to_string(operand.source) + ", which is not in the mask");
      }
      operand.bits = before[operand.source];
    }
  }
}
inline constexpr Meeting kShuffle{"__shfl_sync", combine_shuffle};

template <typename T>
T shuffle(uint32_t mask, T value, int source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  ShuffleOperand operand{0, source};
  std::memcpy(&operand.bits, &value, sizeof(value));
  meet_warp(kShuffle, mask, &operand);
  std::memcpy(&value, &operand.bits, sizeof(value));
  return value;
}

struct VoteOperand {
  bool value;
  uint32_t ballot;
};

inline void combine_vote(void** operands, uint32_t mask) {
  uint32_t ballot = 0;
  for (int i = 0; i < kWarpLanes; ++i) {
    if (mask >> i & 1) {
      ballot |= uint32_t{static_cast<VoteOperand*>(operands[i])->value} << i;
    }
  }
  for (int i = 0; i < kWarpLanes; ++i) {
    if (mask >> i & 1) {
      static_cast<VoteOperand*>(operands[i])->ballot = ballot;
    }
  }
}
inline constexpr Meeting kVote{"a vote", combine_vote};

inline uint32_t vote(uint32_t mask, bool value) {
  VoteOperand operand{value, 0};
  meet_warp(kVote, mask, &operand);
  return operand.ballot;
}

/// All lanes get fold(...fold(first, second)..., last), by lane.
template <typename T, typename Fold>
void combine_reduction(void** operands, uint32_t mask) {
  T result{};
  bool first = true;
  for (int i = 0; i < kWarpLanes; ++i) {
    if (mask >> i & 1) {
      const T value = *static_cast<T*>(operands[i]);
      result = first ? value : Fold()(result, value);
      first = false;
    }
  }
  for (int i = 0; i < kWarpLanes; ++i) {
    if (mask >> i & 1) {
      *static_cast<T*>(operands[i]) = result;
    }
  }
}

template <typename T, typename Fold>
T reduce(uint32_t mask, T value) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  static constexpr Meeting kReduction{"__reduce_sync", combine_reduction<T, Fold>};
  meet_warp(kReduction, mask, &value);
  return value;
}

struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};
struct Smaller {
  template <typename T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};

inline void combine_nothing(void**, uint32_t) {}
inline constexpr Meeting kSyncWarp{"__syncwarp", combine_nothing};
inline constexpr Meeting kSyncThreads{"__syncthreads", nullptr};
inline constexpr Meeting kSyncThreadsCount{"__syncthreads_count", nullptr};

}  // namespace pagezip::cuda_sim

inline void __syncthreads() {
  ::pagezip::cuda_sim::meet_block(::pagezip::cuda_sim::kSyncThreads, 0);
}
inline int __syncthreads_count(int predicate) {
  return static_cast<int>(
      ::pagezip::cuda_sim::meet_block(::pagezip::cuda_sim::kSyncThreadsCount, predicate != 0));
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }
inline void __syncwarp(uint32_t mask = ::pagezip::cuda_sim::kAllLanes) {
  ::pagezip::cuda_sim::meet_warp(::pagezip::cuda_sim::kSyncWarp, mask, nullptr);
}

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
  const int lane = ::pagezip::cuda_sim::lane();
  return ::pagezip::cuda_sim::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const int lane = ::pagezip::cuda_sim::lane();
  const int source = lane - static_cast<int>(delta);
  return ::pagezip::cuda_sim::shuffle(mask, value, source >= (lane & ~(width - 1)) ? source : lane);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const int lane = ::pagezip::cuda_sim::lane();
  const int source = lane + static_cast<int>(delta);
  return ::pagezip::cuda_sim::shuffle(mask, value, source <= (lane | (width - 1)) ? source : lane);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32) {
  const int lane = ::pagezip::cuda_sim::lane();
  const int source = lane ^ lanes;
  return ::pagezip::cuda_sim::shuffle(mask, value, source <= (lane | (width - 1)) ? source : lane);
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  return ::pagezip::cuda_sim::vote(mask, predicate != 0);
}
inline int __any_sync(uint32_t mask, int predicate) {
  return ::pagezip::cuda_sim::vote(mask, predicate != 0) != 0;
}
inline int __all_sync(uint32_t mask, int predicate) {
  return ::pagezip::cuda_sim::vote(mask, predicate != 0) == mask;
}
template <typename T>
T __reduce_add_sync(uint32_t mask, T value) {
  return ::pagezip::cuda_sim::reduce<T, std::plus<T>>(mask, value);
}
template <typename T>
T __reduce_max_sync(uint32_t mask, T value) {
  return ::pagezip::cuda_sim::reduce<T, ::pagezip::cuda_sim::Larger>(mask, value);
}
template <typename T>
T __reduce_min_sync(uint32_t mask, T value) {
  return ::pagezip::cuda_sim::reduce<T, ::pagezip::cuda_sim::Smaller>(mask, value);
}

template <typename T>
T atomicAdd(T* target, std::type_identity_t<T> value) {
  const T before = *target;
  *target = before + value;
  return before;
}
template <typename T>
T atomicMax(T* target, std::type_identity_t<T> value) {
  const T before = *target;
  *target = std::max(before, value);
  return before;
}
template <typename T>
T atomicMin(T* target, std::type_identity_t<T> value) {
  const T before = *target;
  *target = std::min(before, value);
  return before;
}
template <typename T>
T atomicCAS(T* target, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  const T before = *target;
  *target = before == compare ? value : before;
  return before;
}

inline int __popc(uint32_t bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<uint32_t>(bits)); }
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
