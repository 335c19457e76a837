// Attention and scores over quantised pages.
#include "kernels/cuda/tile_kernels.cuh"

namespace pagezip::cuda {

PAGEZIP_CUDA_TILES(template, I8Tiles)
PAGEZIP_CUDA_TILES(template, I4Tiles)
PAGEZIP_CUDA_TILES(template, I8I4Tiles)

}  // namespace pagezip::cuda
