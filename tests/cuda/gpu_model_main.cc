// Runs the simulator's tests of whole models on a GPU. Exit code 77: there is none.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/error.h"
#include "kernels/cuda/cuda_kernels.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    pagezip::cuda_kernels();
  } catch (const pagezip::Error& error) {
    std::fprintf(stderr, "skipped: %s\n", error.what());
    return 77;
  }
  std::printf("on %s\n", pagezip::cuda_device_name());
  return RUN_ALL_TESTS();
}
