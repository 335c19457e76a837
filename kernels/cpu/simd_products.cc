// Products of float32 rows with float32 or 16-bit operands, and conversions between them.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/half.h"

// Three levels are enough: one lane (whatever the machine is), AVX2, and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_products.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pagezip::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = hn::MaxLanes(D());

// ---- products ----

// Vector `index` of row i of the right-hand side, widened: float32 rows, rows of 16-bit floats, and
// columns that lie in groups of 16 at separate addresses (pages of keys).
template <typename Element>
HWY_INLINE V load_widened(const Element* p) {
  const D d;
  if constexpr (std::is_same_v<Element, float>) {
    return hn::LoadU(d, p);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<Element, D>(), p));
  }
}

template <typename Element>
struct PlainRows {
  const Element* b;
  int64_t ldb;
  HWY_INLINE V operator()(int64_t i, int64_t index) const {
    return load_widened(b + i * ldb + index * kLanes);
  }
  PlainRows skip(int64_t vectors) const { return {b + vectors * kLanes, ldb}; }
};

template <typename Element>
struct GroupedColumns {
  static constexpr int64_t kVectorsPerGroup = 16 / kLanes;
  const std::byte* const* groups;  // of 16 columns each
  int64_t ldb;
  int64_t first;  // vectors skipped
  HWY_INLINE V operator()(int64_t i, int64_t index) const {
    const int64_t vector = first + index;
    const auto* group = reinterpret_cast<const Element*>(groups[vector / kVectorsPerGroup]);
    return load_widened(group + i * ldb + vector % kVectorsPerGroup * kLanes);
  }
  GroupedColumns skip(int64_t vectors) const { return {groups, ldb, first + vectors}; }
};

// kRows x (kVectors * kLanes) outputs in registers.
template <int kRows, int kVectors, typename Right>
HWY_INLINE void gemm_tile(const float* HWY_RESTRICT a, int64_t lda, const Right& right,
                          float* HWY_RESTRICT c, int64_t ldc, int64_t k, bool accumulate) {
  const D d;
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = accumulate ? hn::LoadU(d, c + r * ldc + v * kLanes) : hn::Zero(d);
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    V column[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      column[v] = right(i, v);
    }
    for (int r = 0; r < kRows; ++r) {
      const V left = hn::Set(d, a[r * lda + i]);
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(left, column[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, c + r * ldc + v * kLanes);
    }
  }
}

constexpr int kTileRows = 6;

// Sums in flight: 24 of 32 or 12 of 16 registers with all rows, and with fewer rows still enough to
// hide the latency of multiply-adds (of AVX2: 4 cycles, two at a time).
constexpr int tile_vectors(int rows) {
  return kLanes == 16 ? 4 : kLanes == 1 || rows > 3 ? 2 : rows > 1 ? 4 : 8;
}

template <int kRows, typename Right>
HWY_INLINE void gemm_rows(const float* a, int64_t lda, const Right& right, float* c, int64_t ldc,
                          int64_t k, int64_t cols, bool accumulate) {
  constexpr int kVectors = tile_vectors(kRows);
  int64_t j = 0;
  for (; j + kVectors * kLanes <= cols; j += kVectors * kLanes) {
    gemm_tile<kRows, kVectors>(a, lda, right.skip(j / kLanes), c + j, ldc, k, accumulate);
  }
  for (; j < cols; j += kLanes) {
    gemm_tile<kRows, 1>(a, lda, right.skip(j / kLanes), c + j, ldc, k, accumulate);
  }
}

template <typename Right>
HWY_INLINE void gemm_all(const float* a, int64_t lda, const Right& right, float* c, int64_t ldc,
                         int64_t rows, int64_t k, int64_t cols, bool accumulate) {
  int64_t r = 0;
  for (; rows - r >= kTileRows && rows - r != kTileRows + 1; r += kTileRows) {
    gemm_rows<kTileRows>(a + r * lda, lda, right, c + r * ldc, ldc, k, cols, accumulate);
  }
  a += r * lda;
  c += r * ldc;
  switch (rows - r) {
    case kTileRows + 1:  // a row alone would be slow
      gemm_rows<4>(a, lda, right, c, ldc, k, cols, accumulate);
      return gemm_rows<3>(a + 4 * lda, lda, right, c + 4 * ldc, ldc, k, cols, accumulate);
    case 5:
      return gemm_rows<5>(a, lda, right, c, ldc, k, cols, accumulate);
    case 4:
      return gemm_rows<4>(a, lda, right, c, ldc, k, cols, accumulate);
    case 3:
      return gemm_rows<3>(a, lda, right, c, ldc, k, cols, accumulate);
    case 2:
      return gemm_rows<2>(a, lda, right, c, ldc, k, cols, accumulate);
    case 1:
      return gemm_rows<1>(a, lda, right, c, ldc, k, cols, accumulate);
    default:
      return;
  }
}

void gemm(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
          int64_t rows, int64_t k, int64_t cols, bool accumulate) {
  gemm_all(a, lda, PlainRows<float>{b, ldb}, c, ldc, rows, k, cols, accumulate);
}

// Calls f with a null pointer of the element type.
template <typename F>
HWY_INLINE void with_element(KvType type, const F& f) {
  switch (type) {
    case KvType::kF32:
      return f(static_cast<const float*>(nullptr));
    case KvType::kF16:
      return f(static_cast<const hwy::float16_t*>(nullptr));
    case KvType::kBF16:
      return f(static_cast<const hwy::bfloat16_t*>(nullptr));
    case KvType::kI8:
    case KvType::kI4:
      break;  // not in pages of this backend
  }
}

void gemm_keys(KvType type, const float* a, int64_t lda, const std::byte* const* groups,
               int64_t ldb, float* c, int64_t ldc, int64_t rows, int64_t k, int64_t cols) {
  with_element(type, [&]<typename Element>(const Element*) {
    gemm_all(a, lda, GroupedColumns<Element>{groups, ldb, 0}, c, ldc, rows, k, cols, false);
  });
}

void gemm_values(KvType type, const float* a, int64_t lda, const std::byte* b, int64_t ldb,
                 float* c, int64_t ldc, int64_t rows, int64_t k, int64_t cols, bool accumulate) {
  with_element(type, [&]<typename Element>(const Element*) {
    gemm_all(a, lda, PlainRows<Element>{reinterpret_cast<const Element*>(b), ldb}, c, ldc, rows, k,
             cols, accumulate);
  });
}

// ---- conversions ----

template <typename Element>
HWY_INLINE void widen_rows(const Element* HWY_RESTRICT source, float* HWY_RESTRICT target,
                           int64_t target_stride, int64_t rows, int64_t cols) {
  const D d;
  const hn::Rebind<Element, D> narrow_tag;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; i += kLanes) {
      const auto values = hn::LoadU(narrow_tag, source + r * cols + i);
      hn::StoreU(hn::PromoteTo(d, values), d, target + r * target_stride + i);
    }
  }
}

void widen(KvType type, const void* source, float* target, int64_t target_stride, int64_t rows,
           int64_t cols) {
  switch (type) {
    case KvType::kF32:
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(target + r * target_stride, static_cast<const float*>(source) + r * cols,
                    static_cast<size_t>(cols) * sizeof(float));
      }
      return;
    case KvType::kF16:
      return widen_rows(static_cast<const hwy::float16_t*>(source), target, target_stride, rows,
                        cols);
    case KvType::kBF16:
      return widen_rows(static_cast<const hwy::bfloat16_t*>(source), target, target_stride, rows,
                        cols);
    case KvType::kI8:
    case KvType::kI4:
      break;
  }
}

void narrow_f16(const float* HWY_RESTRICT source, uint16_t* HWY_RESTRICT target, int64_t count) {
#if HWY_TARGET <= HWY_AVX2  // F16C rounds to nearest even; emulations need not
  const D d;
  const hn::Rebind<hwy::float16_t, D> df16;
  for (int64_t i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::DemoteTo(df16, hn::LoadU(d, source + i)), df16,
               reinterpret_cast<hwy::float16_t*>(target) + i);
  }
#else
  std::transform(source, source + count, target, float_to_f16);
#endif
}

void narrow(KvType type, const float* source, void* target, int64_t count) {
  switch (type) {
    case KvType::kF32:
      std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
      return;
    case KvType::kF16:
      return narrow_f16(source, static_cast<uint16_t*>(target), count);
    case KvType::kBF16:
      std::transform(source, source + count, static_cast<uint16_t*>(target), float_to_bf16);
      return;
    case KvType::kI8:
    case KvType::kI4:
      break;
  }
}

void set_products(SimdOps& ops) {
  ops.isa = hwy::TargetName(HWY_TARGET);
  ops.gemm = gemm;
  ops.gemm_keys = gemm_keys;
  ops.gemm_values = gemm_values;
  ops.widen = widen;
  ops.narrow = narrow;
}

}  // namespace HWY_NAMESPACE
}  // namespace pagezip::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagezip::cpu {

HWY_EXPORT(set_products);

void set_product_ops(SimdOps& ops) { HWY_DYNAMIC_DISPATCH(set_products)(ops); }

namespace {

constexpr int64_t kAvx512Targets = HWY_AVX3 | HWY_AVX3_DL;

SimdOps make_ops() {
  SimdOps ops{};
  set_product_ops(ops);
  set_math_ops(ops);
  return ops;
}

SimdOps& active_ops() {
  static SimdOps ops = make_ops();
  return ops;
}

}  // namespace

const SimdOps& simd_ops() { return active_ops(); }

SimdLevel best_simd_level() {
  static const int64_t kTargets = hwy::SupportedTargets();
  return (kTargets & HWY_AVX3) != 0   ? SimdLevel::kAvx512
         : (kTargets & HWY_AVX2) != 0 ? SimdLevel::kAvx2
                                      : SimdLevel::kBaseline;
}

void use_simd_level(SimdLevel level) {
  CHECK(level <= best_simd_level());
  hwy::SetSupportedTargetsForTest(0);
  int64_t targets = hwy::SupportedTargets();
  if (level < SimdLevel::kAvx512) {
    targets &= ~kAvx512Targets;
  }
  if (level < SimdLevel::kAvx2) {
    targets &= ~HWY_AVX2;
  }
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(targets);
  active_ops() = make_ops();
}

}  // namespace pagezip::cpu
#endif
