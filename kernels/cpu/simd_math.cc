// Softmax and what works element by element, in float32.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/simd.h"

// Three levels are enough: one lane (whatever the machine is), AVX2, and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_math.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pagezip::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = hn::MaxLanes(D());

// ---- softmax ----

// exp by 2^n * 2^f with a degree-6 polynomial: below 2 ulp on [-87.3, 88.7], 0 below.
HWY_INLINE V exp_vector(V x) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V low = hn::Set(d, -87.33f);
  const auto underflows = hn::Lt(x, low);
  // The operand order matters: x86 returns the second where one is NaN, and NaN must stay visible.
  x = hn::Min(hn::Set(d, 88.72f), hn::Max(low, x));
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(d, 1.0f)));
  // n may be 128, so the power of two is applied in two halves.
  const auto ni = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(ni);
  const auto bias = hn::Set(di, 127);
  const V first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(ni, half), bias)));
  return hn::IfThenZeroElse(underflows, hn::Mul(hn::Mul(p, first), second));
}

// exp(x) for x <= 0, the only kind softmax needs, in fewer steps: 2^n * 2^f, with n added to the
// exponent. Minimax polynomial, 2e-9; 0 below -87.
HWY_INLINE V exp_negative(V x) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V low = hn::Set(d, -126.0f);
  // As above: NaN must be the second operand.
  const V y = hn::Max(low, hn::Mul(x, hn::Set(d, 1.44269504f)));
  const V n = hn::Round(y);
  const V f = hn::Sub(y, n);
  V p = hn::Set(d, 1.534580224e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339993090e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618489072e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550328642e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402264625e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931471825e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, n));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Le(y, low), scaled);
}

// Lanes of the vector at column i that lie in [low, high).
HWY_INLINE auto range_mask(int64_t i, int64_t low, int64_t high) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto index = hn::Iota(di, static_cast<int32_t>(i));
  const auto inside = hn::And(hn::Gt(index, hn::Set(di, static_cast<int32_t>(low) - 1)),
                              hn::Lt(index, hn::Set(di, static_cast<int32_t>(high))));
  return hn::RebindMask(d, inside);
}

// Calls f(i, whole) for every vector with a lane in [low, high); whole: all its lanes are.
template <typename F>
HWY_INLINE void for_vectors(int64_t low, int64_t high, const F& f) {
  int64_t i = low / kLanes * kLanes;
  if (i < low && i < high) {
    f(i, std::false_type{});
    i += kLanes;
  }
  for (; i + kLanes <= high; i += kLanes) {
    f(i, std::true_type{});
  }
  if (i < high) {
    f(i, std::false_type{});
  }
}

// kWrite: x becomes the exponentials, and 0 outside the range.
template <bool kWrite>
HWY_INLINE SoftmaxState<float> softmax_range(const float* x, float* out, int64_t low, int64_t high,
                                             int64_t width, float scale) {
  const D d;
  const V minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const V scales = hn::Set(d, scale);
  V max = minus_infinity;
  for_vectors(low, high, [&](int64_t i, auto whole) HWY_ATTR {
    const V value = hn::Mul(hn::LoadU(d, x + i), scales);
    max = hn::Max(max,
                  whole ? value : hn::IfThenElse(range_mask(i, low, high), value, minus_infinity));
  });
  SoftmaxState<float> state;
  if (low < high) {
    state.max = hn::GetLane(hn::MaxOfLanes(d, max));
  }
  const V shift = hn::Set(d, state.max);
  V sum = hn::Zero(d);
  for_vectors(low, high, [&](int64_t i, auto whole) HWY_ATTR {
    V e = exp_negative(hn::MulSub(hn::LoadU(d, x + i), scales, shift));
    if constexpr (!decltype(whole)::value) {
      e = hn::IfThenElseZero(range_mask(i, low, high), e);
    }
    sum = hn::Add(sum, e);
    if constexpr (kWrite) {
      hn::StoreU(e, d, out + i);
    }
  });
  if constexpr (kWrite) {
    const int64_t first = low < high ? low / kLanes * kLanes : width;
    const int64_t last = low < high ? (high + kLanes - 1) / kLanes * kLanes : width;
    std::fill(out, out + first, 0.0f);
    std::fill(out + last, out + width, 0.0f);
  }
  state.sum = hn::GetLane(hn::SumOfLanes(d, sum));
  return state;
}

SoftmaxState<float> softmax(float* x, int64_t low, int64_t high, int64_t width, float scale) {
  return softmax_range<true>(x, x, low, high, width, scale);
}

SoftmaxState<float> softmax_state(const float* x, int64_t low, int64_t high, float scale) {
  return softmax_range<false>(x, nullptr, low, high, high, scale);
}

void merge_outputs(float* HWY_RESTRICT out, const float* HWY_RESTRICT from,
                   MergeFactors<float> factors, int64_t count) {
  const D d;
  const V into = hn::Set(d, factors.into);
  const V other = hn::Set(d, factors.from);
  for (int64_t i = 0; i < count; i += kLanes) {
    const V scaled = hn::Mul(hn::LoadU(d, from + i), other);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, out + i), into, scaled), d, out + i);
  }
}

void column_max(const float* x, int64_t ldx, int64_t rows, float scale, const float* lse,
                int64_t lse_stride, float* HWY_RESTRICT best) {
  const D d;
  const V scales = hn::Set(d, scale);
  for (int64_t j = 0; j < 64; j += kLanes) {
    V max = hn::LoadU(d, best + j);
    // max alone forgets a NaN at the next row; value - value is 0, or NaN for good.
    V poison = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) {
      const V shift = hn::Set(d, lse == nullptr ? 0.0f : lse[r * lse_stride]);
      const V value = hn::MulSub(hn::LoadU(d, x + r * ldx + j), scales, shift);
      max = hn::Max(max, value);
      poison = hn::Add(poison, hn::Sub(value, value));
    }
    hn::StoreU(hn::Add(max, poison), d, best + j);
  }
}

// ---- element by element ----

void rms_norm(const float* x, const float* weight, float eps, float* out, int64_t count) {
  const D d;
  V squares = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const V value = hn::LoadU(d, x + i);
    squares = hn::MulAdd(value, value, squares);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, squares));
  for (int64_t tail = i; tail < count; ++tail) {
    sum += x[tail] * x[tail];
  }
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(count) + eps);
  const V factors = hn::Set(d, factor);
  for (i = 0; i + kLanes <= count; i += kLanes) {
    const V scaled = hn::Mul(hn::LoadU(d, x + i), factors);
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < count; ++i) {
    out[i] = x[i] * factor * weight[i];
  }
}

void rope(float* x, int64_t head_dim, RopeStyle style, const float* cos, const float* sin) {
  const int64_t half = head_dim / 2;
  const D d;
  if (style == RopeStyle::kInterleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const V a = hn::LoadU(d, x + i);
    const V b = hn::LoadU(d, x + half + i);
    const V c = hn::LoadU(d, cos + i);
    const V s = hn::LoadU(d, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, x + i);
    hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = a * sin[i] + b * cos[i];
  }
}

// x * sigmoid(argument(x)) * up.
template <typename Argument>
HWY_INLINE void gate_loop(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t count,
                          const Argument& argument) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  HWY_ALIGN float buffer[2 * kLanes];
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = std::min(kLanes, count - i);
    float* values = gate + i;
    const float* ups = up + i;
    if (n < kLanes) {
      std::fill(buffer, buffer + 2 * kLanes, 0.0f);
      std::copy(values, values + n, buffer);
      std::copy(ups, ups + n, buffer + kLanes);
      values = buffer;
      ups = buffer + kLanes;
    }
    const V x = hn::LoadU(d, values);
    const V sigmoid = hn::Div(one, hn::Add(one, exp_vector(hn::Neg(argument(x)))));
    hn::StoreU(hn::Mul(hn::Mul(x, sigmoid), hn::LoadU(d, ups)), d, values);
    if (n < kLanes) {
      std::copy(values, values + n, gate + i);
    }
  }
}

struct SiluArgument {
  HWY_INLINE V operator()(V x) const { return x; }
};

// gelu_tanh(x) = x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluArgument {
  HWY_INLINE V operator()(V x) const {
    const D d;
    const V inner = hn::MulAdd(hn::Mul(hn::Mul(x, x), x), hn::Set(d, 0.044715f), x);
    return hn::Mul(inner, hn::Set(d, 2.0f * 0.7978845608f));
  }
};

void gate(GateFunction function, float* gate, const float* up, int64_t count) {
  if (function == GateFunction::kSilu) {
    gate_loop(gate, up, count, SiluArgument{});
  } else {
    gate_loop(gate, up, count, GeluArgument{});
  }
}

void add(float* HWY_RESTRICT x, const float* HWY_RESTRICT y, int64_t count) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  }
  for (; i < count; ++i) {
    x[i] += y[i];
  }
}

void quantize(const float* x, int8_t* q8, float* scales, int32_t* sums, int64_t count,
              int64_t stride) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  for (int64_t block = 0; block < count / 32; ++block) {
    const float* values = x + 32 * block;
    V max = hn::Zero(d);
    for (int64_t i = 0; i < 32; i += kLanes) {
      max = hn::Max(max, hn::Abs(hn::LoadU(d, values + i)));
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(d, max));
    const bool zero = largest < kQ8Smallest;
    scales[stride * block] = zero ? 0.0f : largest / 127.0f;
    const V inverse = hn::Set(d, zero ? 0.0f : 127.0f / largest);
    for (int64_t half = 0; half < 2; ++half) {
      auto sum = hn::Zero(di);
      for (int64_t i = 16 * half; i < 16 * half + 16; i += kLanes) {
        const auto q = hn::NearestInt(hn::Mul(hn::LoadU(d, values + i), inverse));
        sum = hn::Add(sum, q);
        hn::StoreU(hn::DemoteTo(d8, q), d8, q8 + 32 * stride * block + i);
      }
      sums[stride * (2 * block + half)] = hn::GetLane(hn::SumOfLanes(di, sum));
    }
  }
}

void set_math(SimdOps& ops) {
  ops.softmax = softmax;
  ops.softmax_state = softmax_state;
  ops.merge_outputs = merge_outputs;
  ops.column_max = column_max;
  ops.rms_norm = rms_norm;
  ops.rope = rope;
  ops.gate = gate;
  ops.add = add;
  ops.quantize = quantize;
}

}  // namespace HWY_NAMESPACE
}  // namespace pagezip::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagezip::cpu {

HWY_EXPORT(set_math);

void set_math_ops(SimdOps& ops) { HWY_DYNAMIC_DISPATCH(set_math)(ops); }

}  // namespace pagezip::cpu
#endif
