// The simulated device: what the host may not do shows, and streams keep their order.
#include "tests/cuda_sim/device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/device_ops.cuh"

namespace pagezip::cuda_sim {
namespace {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : memory_(allocate_device(bytes)) {}
  ~DeviceMemory() { release_device(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  float* floats() const { return reinterpret_cast<float*>(memory_); }

 private:
  std::byte* memory_;
};

struct AddOne {
  float* values;
};
__global__ void add_one(AddOne p) { p.values[threadIdx.x] += 1; }

TEST(CudaSimDeviceDeath, TheHostMayNotTouchIt) {
  const DeviceMemory memory(64);
  EXPECT_DEATH(memory.floats()[0] = 1, "");
  {
    const DeviceAccess access;
    memory.floats()[0] = 1;
  }
  EXPECT_DEATH(memory.floats()[0] = 1, "");
}

TEST(CudaSimDeviceDeath, NothingLiesBehindIt) {
  const DeviceMemory memory(256);
  const DeviceMemory other(256);
  EXPECT_DEATH(
      {
        const DeviceAccess access;
        memory.floats()[64] = 1;
      },
      "");
}

TEST(CudaSimDevice, BeginsAsNoNumber) {
  const DeviceMemory memory(4096 + 64);
  const DeviceAccess access;
  for (int i = 0; i < (4096 + 64) / 4; ++i) {
    ASSERT_TRUE(std::isnan(memory.floats()[i]));
  }
}

TEST(CudaSimDevice, KnowsItsMemory) {
  const size_t before = device_allocations();
  const DeviceMemory memory(100);
  float host = 0;
  EXPECT_TRUE(is_device_memory(memory.floats() + 3));
  EXPECT_FALSE(is_device_memory(&host));
  EXPECT_EQ(device_allocations(), before + 1);
}

TEST(CudaSimDevice, LateWorkWaitsAndKeepsItsOrder) {
  for (const bool late : {false, true}) {
    options().late_work = late;
    Stream stream;
    std::vector<int> done;
    stream.add([&] { done.push_back(1); });
    stream.add([&] { done.push_back(2); });
    const size_t two = stream.added();
    stream.add([&] { done.push_back(3); });
    EXPECT_EQ(done.size(), late ? 0U : 3U);
    stream.run_until(two);
    EXPECT_EQ(done.size(), late ? 2U : 3U);
    stream.run_until(stream.added());
    EXPECT_EQ(done, (std::vector<int>{1, 2, 3}));
  }
  options() = {};
}

TEST(CudaSimDevice, KernelsOnAStreamTouchIt) {
  options().late_work = true;
  Stream stream;
  const DeviceMemory memory(64 * sizeof(float));
  stream.add([&] { std::memset(memory.floats(), 0, 64 * sizeof(float)); });
  cuda::launch(add_one, {}, 64, 0, &stream, AddOne{memory.floats()});
  stream.run_until(stream.added());
  options() = {};
  const DeviceAccess access;
  EXPECT_EQ(memory.floats()[63], 1);
}

}  // namespace
}  // namespace pagezip::cuda_sim
