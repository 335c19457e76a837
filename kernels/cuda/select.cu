// Selection on the device. The table of operations has none yet: the host selects.
#include "kernels/cuda/select.cuh"
