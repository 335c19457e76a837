// Attention and scores over bfloat16 pages.
#include "kernels/cuda/tile_kernels.cuh"

namespace pagezip::cuda {

PAGEZIP_CUDA_TILES(template, Bf16Tiles)
PAGEZIP_CUDA_TILES(template, Bf16TransposedTiles)

}  // namespace pagezip::cuda
