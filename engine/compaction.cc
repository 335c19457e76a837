#include "engine/compaction.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pagezip {

void copy_layer(const DocumentBuilder& builder, const Kernels& kernels, ThreadPool& threads,
                int layer) {
  const PageLayout& page = builder.page();
  const Segment source = builder.source();
  const Segment target = builder.target();
  std::vector<std::vector<uint32_t>> lists(static_cast<size_t>(source.heads));
  threads.parallel_for(source.heads, [&](int64_t head, int) {
    lists[static_cast<size_t>(head)] = builder.source_pairs(layer, static_cast<int>(head));
  });
  const std::vector<std::span<const uint32_t>> pairs(lists.begin(), lists.end());
  kernels.copy_pairs({page, &source, page, &target, layer, 0, pairs, builder.target_first()},
                     threads);
}

}  // namespace pagezip
