// Reading, writing and copying pairs in pages.
#pragma once

#include "kernels/kernels.h"

namespace pagezip::cpu {

/// Pairs widened at a time; a multiple of every page size.
inline constexpr int64_t kWidenedPairs = 64;

/// target[d][kWidenedPairs] = K of pairs [step, step + kWidenedPairs), as far as the pages of pairs
/// [low, high) hold them. The other columns are left as they are. step: a multiple of
/// kWidenedPairs.
void widen_keys(const PageLayout& page, const Segment& segment, int layer, int head, int64_t step,
                int64_t low, int64_t high, float* target);

/// target[i][head_dim] = V of pair first + i, up to `end`, at most kWidenedPairs of them.
void widen_values(const PageLayout& page, const Segment& segment, int layer, int head,
                  int64_t first, int64_t end, float* target);

void store_kv(const StoreKvArgs& args, ThreadPool& pool);
void copy_pairs(const CopyPairsArgs& args, ThreadPool& pool);

}  // namespace pagezip::cpu
