// Everything that isn't compiled per type of page.
#include "kernels/cuda/append.cuh"
#include "kernels/cuda/compact.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/select.cuh"
