// The kernels that are compiled for tensor cores, as lists of instantiations, and how one is found
// by what a page says.
#pragma once

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/score.cuh"

namespace pagezip::cuda {

template <typename... T>
struct TraitsList {};

template <KvType kKey, KvType kValue, bool kTransposed>
using AllDims = TraitsList<TileTraits<kKey, kValue, 64, kTransposed>,
                           TileTraits<kKey, kValue, 128, kTransposed>,
                           TileTraits<kKey, kValue, 256, kTransposed>>;

/// Pages that tensor cores read. All others go to the scalar kernels.
using F16Tiles = AllDims<KvType::kF16, KvType::kF16, false>;
using F16TransposedTiles = AllDims<KvType::kF16, KvType::kF16, true>;
using Bf16Tiles = AllDims<KvType::kBF16, KvType::kBF16, false>;
using Bf16TransposedTiles = AllDims<KvType::kBF16, KvType::kBF16, true>;
using I8Tiles = AllDims<KvType::kI8, KvType::kI8, false>;
using I4Tiles = AllDims<KvType::kI4, KvType::kI4, false>;
using I8I4Tiles = AllDims<KvType::kI8, KvType::kI4, false>;

template <typename T>
bool fits(const PageLayout& page) {
  return page.k_type == T::kKeyType && page.v_type == T::kValueType &&
         page.head_dim == T::kHeadDim &&
         (page.key_order == KeyOrder::kTransposed) == T::kTransposed;
}

/// Calls call<T>() for the one T of the list that fits; false if none does.
template <typename Call, typename... T>
bool call_fitting(const PageLayout& page, TraitsList<T...>, const Call& call) {
  return ((fits<T>(page) && (call.template operator()<T>(), true)) || ...);
}

/// Runs attention (score) if a kernel of the list fits the pages; `status` says how that went.
template <typename List>
bool attend_tiles(const AttendParams& params, bool many_rows, int blocks, Stream stream,
                  Status& status) {
  return call_fitting(params.page, List(), [&]<typename T>() {
    status = params.partial_out != nullptr
                 ? launch_attend<T, true>(params, many_rows, blocks, stream)
                 : launch_attend<T, false>(params, many_rows, blocks, stream);
  });
}
template <typename List>
bool score_tiles(const ScoreParams& params, Stream stream, Status& status) {
  return call_fitting(params.page, List(),
                      [&]<typename T>() { status = launch_score<T>(params, stream); });
}

// Each list is compiled in a file of its own.
#define PAGEZIP_CUDA_TILES(linkage, List)                                           \
  linkage bool attend_tiles<List>(const AttendParams&, bool, int, Stream, Status&); \
  linkage bool score_tiles<List>(const ScoreParams&, Stream, Status&);

}  // namespace pagezip::cuda
