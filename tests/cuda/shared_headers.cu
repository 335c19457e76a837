// Not a test that runs: it shows that the headers which a CUDA backend would share with the CPU
// backends compile as device code. The kernel does one thread's part of decode attention for one
// (layer, head): a softmax state for each page of a view, merged into one.
#include "kernels/kv_view.h"
#include "kernels/math.h"

namespace pagezip {
namespace {

__device__ float dot(const PageLayout& layout, const std::byte* page, const float* query,
                     int64_t slot) {
  const auto* keys = reinterpret_cast<const float*>(page);
  float sum = 0;
  for (int channel = 0; channel < layout.head_dim; ++channel) {
    sum += query[channel] * keys[channel * layout.page_tokens + slot];
  }
  return sum;
}

__device__ float value(const PageLayout& layout, const std::byte* page, int64_t slot, int channel) {
  const auto* values = reinterpret_cast<const float*>(page + layout.k_bytes());
  return values[slot * layout.head_dim + channel];
}

}  // namespace

/// out[channel] and log_sum_exp of the pairs of (layer, blockIdx.x); a thread takes one channel.
/// REQUIRES: keys and values are float32, blockDim.x == head_dim.
__global__ void attend(PageLayout layout, KvView view, int layer, const float* query, float* out,
                       float* log_sum_exp) {
  const int head = static_cast<int>(blockIdx.x);
  const int channel = static_cast<int>(threadIdx.x);
  const float* own_query = query + static_cast<int64_t>(head) * layout.head_dim;
  SoftmaxState<float> all;
  float sum = 0;
  for (int s = 0; s < view.count; ++s) {
    const Segment& segment = view.segments[s];
    const int64_t length = segment.length(layer, head);
    for (int64_t p = segment.first_page; p * layout.page_tokens < length; ++p) {
      const std::byte* page = segment.page(layer, head, p);
      const int64_t left = length - p * layout.page_tokens;
      const int64_t pairs = left < layout.page_tokens ? left : layout.page_tokens;
      SoftmaxState<float> unit;
      float unit_sum = 0;
      for (int64_t slot = 0; slot < pairs; ++slot) {
        const SoftmaxState<float> pair{dot(layout, page, own_query, slot), 1};
        const MergeFactors<float> factors = merge(unit, pair);
        unit_sum = unit_sum * factors.into + value(layout, page, slot, channel) * factors.from;
      }
      const MergeFactors<float> factors = merge(all, unit);
      sum = sum * factors.into + unit_sum * factors.from;
    }
  }
  out[static_cast<int64_t>(head) * layout.head_dim + channel] = all.empty() ? 0 : sum / all.sum;
  if (channel == 0) {
    log_sum_exp[head] = all.log_sum_exp();
  }
}

}  // namespace pagezip
