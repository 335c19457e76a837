// Attention and scores over float16 pages.
#include "kernels/cuda/tile_kernels.cuh"

namespace pagezip::cuda {

PAGEZIP_CUDA_TILES(template, F16Tiles)
PAGEZIP_CUDA_TILES(template, F16TransposedTiles)

}  // namespace pagezip::cuda
