// Pages and segments of the C ABI as the kernels know them.
#pragma once

#include "api/c/guard.h"
#include "kernels/kv_view.h"

namespace pagezip::c_api {

// Larger numbers are mistakes, and their products would overflow.
inline constexpr int64_t kSizeMax = int64_t{1} << 31;
inline constexpr int32_t kLayersMax = 4096;
inline constexpr int32_t kHeadsMax = 4096;
inline bool is_size(int64_t value) { return value >= 0 && value < kSizeMax; }

// All throw Error(kUsage) for what can't be.
PageLayout read_page(const pagezip_page* from);
/// REQUIRES: as read_page(); the layers and KV heads that will be read.
Segment read_segment(const pagezip_segment* from, int32_t layer_end, int32_t kv_heads);
pagezip_segment to_c(const Segment& segment);

}  // namespace pagezip::c_api
