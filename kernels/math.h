// The online-softmax state and its merge, shared by every backend and the tests.
//
// Milakov & Gimelshein 2018; the merge of partial states as in FlashAttention/FlashDecoding.
#pragma once

#include <cmath>
#include <limits>

#include "base/host_device.h"

namespace pagezip {

/// The state of a softmax over some pairs: the largest logit and the sum of exp(logit - max). The
/// output that goes with it is sum of exp(logit - max) * v, not yet divided. An empty state has
/// max == -inf and sum == 0.
template <typename T>
struct SoftmaxState {
  T max = -std::numeric_limits<T>::infinity();
  T sum = 0;

  PAGEZIP_HD bool empty() const { return sum == 0; }
  /// Natural log of the sum of exp(logit); -inf when empty.
  PAGEZIP_HD T log_sum_exp() const { return empty() ? max : max + std::log(sum); }
};

/// Factors by which two unnormalised outputs are scaled to become one.
template <typename T>
struct MergeFactors {
  T into;
  T from;
};

/// into = into ⊕ from; returns the factors for their outputs. An empty side gets factor 0.
template <typename T>
PAGEZIP_HD MergeFactors<T> merge(SoftmaxState<T>& into, const SoftmaxState<T>& from) {
  if (from.empty()) {
    return {1, 0};
  }
  if (into.empty()) {
    into = from;
    return {0, 1};
  }
  const T max = into.max > from.max ? into.max : from.max;
  const MergeFactors<T> factors{std::exp(into.max - max), std::exp(from.max - max)};
  into.sum = into.sum * factors.into + from.sum * factors.from;
  into.max = max;
  return factors;
}

}  // namespace pagezip
