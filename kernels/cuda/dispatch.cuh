// From what a page says at run time to the kernel that is compiled for it: one table.
#pragma once

#include "kernels/cuda/scalar.cuh"
#include "kernels/cuda/tile_kernels.cuh"

namespace pagezip::cuda {

PAGEZIP_CUDA_TILES(extern template, F16Tiles)
PAGEZIP_CUDA_TILES(extern template, F16TransposedTiles)
PAGEZIP_CUDA_TILES(extern template, Bf16Tiles)
PAGEZIP_CUDA_TILES(extern template, Bf16TransposedTiles)
PAGEZIP_CUDA_TILES(extern template, I8Tiles)
PAGEZIP_CUDA_TILES(extern template, I4Tiles)
PAGEZIP_CUDA_TILES(extern template, I8I4Tiles)

/// call<List>() for each list until one returns true.
template <typename Call>
bool any_list(const Call& call) {
  return call.template operator()<F16Tiles>() || call.template operator()<F16TransposedTiles>() ||
         call.template operator()<Bf16Tiles>() || call.template operator()<Bf16TransposedTiles>() ||
         call.template operator()<I8Tiles>() || call.template operator()<I4Tiles>() ||
         call.template operator()<I8I4Tiles>();
}

template <typename... T>
bool any_fits(const PageLayout& page, TraitsList<T...>) {
  return (fits<T>(page) || ...);
}
inline bool uses_tensor_cores(const PageLayout& page) {
  return any_list([&]<typename List>() { return any_fits(page, List()); });
}

/// Fills the partial results. REQUIRES: head_dim <= kHeadDimMax.
inline Status attend(const AttendParams& params, bool many_rows, int blocks, Stream stream) {
  if (params.item_count == 0) {
    return {};
  }
  Status status{};
  const bool found = any_list([&]<typename List>() {
    return attend_tiles<List>(params, many_rows, blocks, stream, status);
  });
  return found ? status : launch_attend_scalar(params, blocks, stream);
}

inline Status score(const ScoreParams& params, Stream stream) {
  if (params.chunk_begin == params.chunk_end || params.rows == 0) {
    return {};
  }
  Status status{};
  const bool found =
      any_list([&]<typename List>() { return score_tiles<List>(params, stream, status); });
  return found ? status : launch_score_scalar(params, stream);
}

}  // namespace pagezip::cuda
