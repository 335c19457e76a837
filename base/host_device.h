// Marks what host code and CUDA kernels share: PAGEZIP_HD is empty unless nvcc compiles.
//
// Such a function uses no CHECK, no exception and no allocation.
#pragma once

#if defined(__CUDACC__)
#define PAGEZIP_HD __host__ __device__
#else
#define PAGEZIP_HD
#endif
