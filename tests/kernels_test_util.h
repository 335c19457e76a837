// What the suites over the kernel backends share: the list of backends, random inputs, pages made
// from plain arrays, and naive attention on those arrays as the source of expected values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "gtest/gtest.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

namespace pagezip::test {

/// Every suite runs over each of these.
inline std::vector<const Kernels*> backends() {
  return {
      &reference_kernels(),
      &cpu_kernels(),
  };
}

inline std::string backend_name(const testing::TestParamInfo<const Kernels*>& backend) {
  return backend.param->name;
}

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Tolerances are for float32 arithmetic: half an ulp of 1 per rounding.
inline constexpr double kRounding = 0x1.0p-24;
/// Roundings granted to exp() and a final division.
inline constexpr double kFunctionRoundings = 32;

/// An owned matrix. `padding` extra values separate rows, so that the stride counts.
struct Matrix {
  int64_t rows;
  int64_t cols;
  int64_t stride;
  std::vector<float> data;

  Matrix(int64_t r, int64_t c, float fill = 0, int64_t padding = 0)
      : rows(r), cols(c), stride(c + padding), data(static_cast<size_t>(r * stride + 1), fill) {}
  MatrixView<float> view() { return {data.data(), rows, cols, stride}; }
  MatrixView<const float> view() const { return {data.data(), rows, cols, stride}; }
  float* row(int64_t i) { return data.data() + i * stride; }
  const float* row(int64_t i) const { return data.data() + i * stride; }
};

inline float random_float(Prng& prng, double bound) {
  return static_cast<float>((2 * prng.uniform() - 1) * bound);
}

/// Uniform in [-bound, bound]; the padding is NaN.
inline Matrix random_matrix(Prng& prng, int64_t rows, int64_t cols, double bound = 1,
                            int64_t padding = 0) {
  Matrix matrix(rows, cols, kNan, padding);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < cols; ++k) {
      matrix.row(i)[k] = random_float(prng, bound);
    }
  }
  return matrix;
}

template <typename T>
T pick(Prng& prng, std::initializer_list<T> choices) {
  return choices.begin()[prng.below(choices.size())];
}

inline std::vector<uint32_t> shuffled(Prng& prng, uint32_t count) {
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) {
    order[i] = i;
    std::swap(order[i], order[prng.below(i + 1)]);
  }
  return order;
}

/// Equality of bits, so that NaN equals itself and -0 differs from 0.
inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                             const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << ", value " << i << ": " << a[i] << " vs " << b[i];
  }
}

/// A weight matrix of random blocks with the bytes that it borrows.
struct TestWeight {
  std::vector<std::byte> bytes;
  Weight weight;
};

inline std::vector<WeightType> all_weight_types() {
  std::vector<WeightType> types;
  for (int i = 0; i < kWeightTypes; ++i) {
    types.push_back(static_cast<WeightType>(i));
  }
  return types;
}

/// Byte offsets of the float16 scales in a block of a quantised type.
inline std::vector<size_t> scale_offsets(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

inline TestWeight random_weight(Prng& prng, WeightType type, int64_t rows, int64_t cols) {
  TestWeight result;
  const auto put_half = [&](size_t at, uint16_t half) {
    std::memcpy(&result.bytes[at], &half, sizeof(half));
  };
  result.bytes.resize(static_cast<size_t>(rows * row_bytes(type, cols)));
  const auto block_bytes = static_cast<size_t>(info(type).block_bytes);
  for (size_t block = 0; block < result.bytes.size(); block += block_bytes) {
    const float value = random_float(prng, 1);
    if (type == WeightType::kF32) {
      std::memcpy(&result.bytes[block], &value, sizeof(value));
    } else if (type == WeightType::kF16 || type == WeightType::kBF16) {
      put_half(block, type == WeightType::kF16 ? float_to_f16(value) : float_to_bf16(value));
    } else {
      for (size_t i = 0; i < block_bytes; ++i) {
        result.bytes[block + i] = static_cast<std::byte>(prng.next());
      }
      for (const size_t offset : scale_offsets(type)) {
        put_half(block + offset, float_to_f16(random_float(prng, 0.1)));
      }
    }
  }
  result.weight.type = type;
  result.weight.rows = rows;
  result.weight.cols = cols;
  result.weight.source = result.bytes.data();
  return result;
}

inline float round_to(KvType type, float value) {
  switch (type) {
    case KvType::kF16:
      return f16_to_float(float_to_f16(value));
    case KvType::kBF16:
      return bf16_to_float(float_to_bf16(value));
    case KvType::kF32:
      break;
  }
  return value;
}

/// Writes one element of a page by the published layout: K [head_dim, page_tokens], V transposed.
inline void put_element(KvType type, std::byte* elements, int64_t index, float value) {
  if (type == KvType::kF32) {
    std::memcpy(elements + 4 * index, &value, 4);
    return;
  }
  const uint16_t half = type == KvType::kF16 ? float_to_f16(value) : float_to_bf16(value);
  std::memcpy(elements + 2 * index, &half, 2);
}

inline void put_pair(const PageLayout& page, std::byte* page_start, int64_t slot, const float* k,
                     const float* v) {
  for (int d = 0; d < page.head_dim; ++d) {
    put_element(page.k_type, page_start, int64_t{d} * page.page_tokens + slot, k[d]);
    put_element(page.v_type, page_start + page.k_bytes(), slot * page.head_dim + d, v[d]);
  }
}

/// Keys and values of one segment in plain arrays, already rounded to the types of the pages.
struct PlainSegment {
  bool ragged = false;
  int64_t first_position = 0;
  int64_t first_pair = 0;                // whole pages before it are not kept
  std::vector<std::vector<float>> k, v;  // [layers * kv_heads] of [length, head_dim]

  int64_t length(int layer_head, int head_dim) const {
    return static_cast<int64_t>(k[static_cast<size_t>(layer_head)].size()) / head_dim;
  }
};

/// One length for a uniform segment, or one for each (layer, head) of a ragged one.
inline PlainSegment random_segment(Prng& prng, const PageLayout& page, int layers, int kv_heads,
                                   const std::vector<int64_t>& lengths) {
  PlainSegment segment;
  segment.ragged = lengths.size() > 1;
  for (int i = 0; i < layers * kv_heads; ++i) {
    const int64_t length = lengths[segment.ragged ? static_cast<size_t>(i) : 0];
    auto& k = segment.k.emplace_back(static_cast<size_t>(length * page.head_dim));
    auto& v = segment.v.emplace_back(k.size());
    for (size_t j = 0; j < k.size(); ++j) {
      k[j] = round_to(page.k_type, random_float(prng, 2));
      v[j] = round_to(page.v_type, random_float(prng, 1));
    }
  }
  return segment;
}

/// A segment in pages of its own, in shuffled order. All bytes that hold no pair are 0xff, which is
/// a NaN in every type.
struct PagedSegment {
  AlignedBytes memory;
  std::vector<uint32_t> ids;
  std::vector<uint32_t> first;
  std::vector<uint32_t> lengths;
  Segment segment;
};

inline int64_t pages_for(int64_t pairs, int page_tokens) {
  return (pairs + page_tokens - 1) / page_tokens;
}

/// Empty pages: `lengths` as in random_segment(), for which there is room.
inline PagedSegment make_empty_pages(const PageLayout& page, int layers, int kv_heads,
                                     const std::vector<int64_t>& lengths, int64_t first_page,
                                     uint64_t seed) {
  constexpr uint32_t kSpare = 3;  // pages or blocks in the pool that belong to nobody
  constexpr uint64_t kOffset = 2;
  PagedSegment paged;
  Segment& segment = paged.segment;
  const auto page_units = static_cast<uint64_t>(page.page_bytes() / PageLayout::kUnit);
  const bool ragged = lengths.size() > 1;
  uint32_t ids = 0;
  if (ragged) {
    for (const int64_t length : lengths) {
      paged.first.push_back(ids);
      paged.lengths.push_back(static_cast<uint32_t>(length));
      ids += static_cast<uint32_t>(pages_for(length, page.page_tokens));
    }
    segment.scale = page_units;
  } else {
    ids = static_cast<uint32_t>(
        std::max<int64_t>(0, pages_for(lengths[0], page.page_tokens) - first_page));
    segment.uniform_length = lengths[0];
    segment.first_page = first_page;
    segment.head_stride = page_units;
    segment.layer_stride = page_units * static_cast<uint64_t>(kv_heads);
    segment.scale = segment.layer_stride * static_cast<uint64_t>(layers);
  }
  Prng prng(seed);
  paged.ids = shuffled(prng, ids + kSpare);
  paged.memory =
      AlignedBytes(PageLayout::kUnit * ((ids + kSpare) * segment.scale + kOffset + page_units));
  std::memset(paged.memory.data(), 0xff, paged.memory.size());
  segment.base = paged.memory.data();
  segment.ids = paged.ids.data();
  segment.first = ragged ? paged.first.data() : nullptr;
  segment.lengths = ragged ? paged.lengths.data() : nullptr;
  segment.offset = kOffset;
  segment.heads = kv_heads;
  return paged;
}

/// Uniform segments are written by the backend's store_kv() in a few calls, ragged ones by hand.
inline PagedSegment make_pages(const Kernels& kernels, ThreadPool& pool, const PageLayout& page,
                               int layers, int kv_heads, const PlainSegment& plain, uint64_t seed) {
  const int64_t first_page = plain.first_pair / page.page_tokens;
  std::vector<int64_t> lengths;
  for (int i = 0; i < (plain.ragged ? layers * kv_heads : 1); ++i) {
    lengths.push_back(plain.length(i, page.head_dim));
  }
  PagedSegment paged = make_empty_pages(page, layers, kv_heads, lengths, first_page, seed);
  paged.segment.first_position = plain.first_position;
  Prng prng(seed);
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; plain.ragged && head < kv_heads; ++head) {
      const auto at = static_cast<size_t>(layer * kv_heads + head);
      for (int64_t i = 0; i < lengths[at]; ++i) {
        put_pair(page, paged.segment.page(layer, head, i / page.page_tokens), i % page.page_tokens,
                 &plain.k[at][static_cast<size_t>(i * page.head_dim)],
                 &plain.v[at][static_cast<size_t>(i * page.head_dim)]);
      }
    }
    int64_t begin = first_page * page.page_tokens;
    while (!plain.ragged && begin < lengths[0]) {
      const int64_t rows = prng.range(1, lengths[0] - begin);
      Matrix k(rows, kv_heads * page.head_dim);
      Matrix v(rows, kv_heads * page.head_dim);
      for (int64_t i = 0; i < rows * kv_heads; ++i) {
        const auto at = static_cast<size_t>(layer * kv_heads + i % kv_heads);
        const int64_t from = (begin + i / kv_heads) * page.head_dim;
        std::copy_n(plain.k[at].data() + from, page.head_dim, &k.data[i * page.head_dim]);
        std::copy_n(plain.v[at].data() + from, page.head_dim, &v.data[i * page.head_dim]);
      }
      kernels.store_kv({page, kv_heads, k.view(), v.view(), &paged.segment, layer, begin}, pool);
      begin += rows;
    }
  }
  return paged;
}

struct PairRanges {
  int64_t prefix_end = 0;
  int64_t chunk_begin = 0;
  int64_t chunk_end = 0;
};

/// One span with all that it reads.
struct AttendProblem {
  PageLayout page;
  int layers = 2;
  int layer = 1;
  int heads = 1;
  int kv_heads = 1;
  float scale = 1;
  std::vector<PlainSegment> segments;
  int64_t first_position = 0;
  int window = 0;
  Matrix q{0, 0};
  std::optional<PairRanges> score;
};

/// [rows * heads * head_dim] and [rows * heads]; with expected values, the error that float32
/// arithmetic may make.
struct AttendExpected {
  std::vector<double> out, out_error;
  std::vector<double> lse, lse_error;
};

/// Naive softmax over the pairs that one row and head sees.
class NaiveSoftmax {
 public:
  void add(double logit, double logit_error, const float* v) {
    logits_.push_back(logit);
    values_.push_back(v);
    logit_error_ = std::max(logit_error_, logit_error);
    max_ = std::max(max_, logit);
  }
  double error() const {
    double spread = 0;
    for (const double logit : logits_) {
      spread = std::max(spread, max_ - logit);
    }
    const auto pairs = static_cast<double>(logits_.size());
    const double terms = std::min<double>(pairs, kUnitPairs) + pairs / kUnitPairs;
    return 2 * logit_error_ + kRounding * (terms + kFunctionRoundings + std::min(spread, 100.0));
  }
  double log_sum_exp() const { return logits_.empty() ? -kInfinity : max_ + std::log(sum()); }
  /// Appends head_dim channels and their errors.
  void output(int head_dim, std::vector<double>& out, std::vector<double>& out_error) const {
    std::vector<double> value(static_cast<size_t>(head_dim));
    std::vector<double> magnitude(value.size());
    const double total = logits_.empty() ? 1 : sum();
    for (size_t i = 0; i < logits_.size(); ++i) {
      const double p = std::exp(logits_[i] - max_) / total;
      for (size_t d = 0; d < value.size(); ++d) {
        value[d] += p * values_[i][d];
        magnitude[d] += p * std::fabs(values_[i][d]);
      }
    }
    const double relative = error();
    for (size_t d = 0; d < value.size(); ++d) {
      out.push_back(value[d]);
      out_error.push_back(magnitude[d] * relative + 1e-30);
    }
  }

 private:
  double sum() const {
    double total = 0;
    for (const double logit : logits_) {
      total += std::exp(logit - max_);
    }
    return total;
  }
  std::vector<double> logits_;
  std::vector<const float*> values_;
  double logit_error_ = 0;
  double max_ = -kInfinity;
};

struct Logit {
  double value;
  double error;
};

inline Logit naive_logit(const float* q, const float* k, int head_dim, double scale) {
  double sum = 0;
  double magnitude = 0;
  for (int d = 0; d < head_dim; ++d) {
    const double product = static_cast<double>(q[d]) * k[d];
    sum += product;
    magnitude += std::fabs(product);
  }
  return {scale * sum, std::fabs(scale) * magnitude * kRounding * (head_dim + 4)};
}

inline AttendExpected naive_attend(const AttendProblem& problem) {
  const int head_dim = problem.page.head_dim;
  AttendExpected expected;
  for (int64_t item = 0; item < problem.q.rows * problem.heads; ++item) {
    const int64_t row = item / problem.heads;
    const int64_t head = item % problem.heads;
    const int64_t position = problem.first_position + row;
    const int kv_head = static_cast<int>(head) / (problem.heads / problem.kv_heads);
    const int layer_head = problem.layer * problem.kv_heads + kv_head;
    NaiveSoftmax all;
    NaiveSoftmax scored;
    for (size_t s = 0; s < problem.segments.size(); ++s) {
      const PlainSegment& segment = problem.segments[s];
      const float* k = segment.k[static_cast<size_t>(layer_head)].data();
      const float* v = segment.v[static_cast<size_t>(layer_head)].data();
      for (int64_t i = 0; i < segment.length(layer_head, head_dim); ++i) {
        const int64_t at = segment.first_position + i;
        if (at > position || (problem.window > 0 && at <= position - problem.window)) {
          continue;
        }
        const Logit logit = naive_logit(problem.q.row(row) + head * head_dim, k + i * head_dim,
                                        head_dim, static_cast<double>(problem.scale));
        all.add(logit.value, logit.error, v + i * head_dim);
        if (problem.score && (s > 0 || i < problem.score->prefix_end ||
                              (i >= problem.score->chunk_begin && i < problem.score->chunk_end))) {
          scored.add(logit.value, logit.error, v + i * head_dim);
        }
      }
    }
    all.output(head_dim, expected.out, expected.out_error);
    expected.lse.push_back(scored.log_sum_exp());
    expected.lse_error.push_back(scored.error() + kRounding * std::fabs(scored.log_sum_exp()));
  }
  return expected;
}

}  // namespace pagezip::test
