// The simulator's tests as one file, because kernels that aren't templates have one definition.
#include "tests/cuda_sim/attend_test.cc"
#include "tests/cuda_sim/pages_test.cc"
#include "tests/cuda_sim/rows_test.cc"
#include "tests/cuda_sim/select_test.cc"
