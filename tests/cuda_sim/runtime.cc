// What the CUDA backend asks of its device, answered by the simulator.
#include "kernels/cuda/runtime.h"

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/half.h"

namespace pagezip::cuda {
namespace {

/// Pinned blocks, by where they begin.
std::map<const std::byte*, size_t>& pinned() {
  static std::map<const std::byte*, size_t> instance;
  return instance;
}

bool is_pinned(const void* pointer) {
  const auto* address = static_cast<const std::byte*>(pointer);
  auto next = pinned().upper_bound(address);
  return next != pinned().begin() && address < (--next)->first + next->second;
}

}  // namespace

void open_device() {}
const char* device_name() { return "simulator"; }
int multiprocessors() { return 1; }
Stream compute_stream() {
  static cuda_sim::Stream stream;
  return &stream;
}

int64_t bytes_free() { return int64_t{1} << 30; }
std::byte* allocate(size_t bytes) {
  std::byte* memory = cuda_sim::allocate_device(bytes);
  cuda_sim::run_on(compute_stream(), [=] { std::memset(memory, 0, bytes); });
  return memory;
}
void release(std::byte* memory) {
  require(synchronize(compute_stream()), "waiting");
  cuda_sim::release_device(memory);
}
std::byte* allocate_pinned(size_t bytes) {
  auto* memory = new std::byte[bytes];
  pinned()[memory] = bytes;
  return memory;
}
void release_pinned(std::byte* memory) {
  pinned().erase(memory);
  delete[] memory;
}

Status copy(void* target, const void* source, size_t bytes, Stream stream) {
  if (bytes == 0) {
    return 0;
  }
  CHECK(cuda_sim::is_device_memory(target) || cuda_sim::is_device_memory(source));
  if (cuda_sim::is_device_memory(source) || is_pinned(source)) {
    cuda_sim::run_on(stream, [=] { std::memcpy(target, source, bytes); });
    return 0;
  }
  const auto* begin = static_cast<const std::byte*>(source);
  std::vector<std::byte> now(begin, begin + bytes);
  cuda_sim::run_on(stream,
                   [target, now = std::move(now)] { std::memcpy(target, now.data(), now.size()); });
  return 0;
}
Status synchronize(Stream stream) {
  stream->run_until(stream->added());
  return 0;
}

struct Mark {
  Stream stream = nullptr;
  size_t added = 0;
};
Event::Event() : state_(new Mark) {}
Event::~Event() { delete static_cast<Mark*>(state_); }
void Event::record(Stream stream) { *static_cast<Mark*>(state_) = {stream, stream->added()}; }
void Event::wait() {
  const Mark mark = *static_cast<Mark*>(state_);
  if (mark.stream != nullptr) {
    mark.stream->run_until(mark.added);
  }
}

void require(Status status, const char* what) {
  if (status != 0) {
    detail::check_failed(__FILE__, __LINE__, what);
  }
}

void dense(const DenseParams& params, Stream stream) {
  cuda_sim::run_on(stream, [p = params] {
    const auto at = [&](const void* values, int64_t i) -> double {
      return p.bf16 ? bf16_to_float(static_cast<const uint16_t*>(values)[i])
                    : static_cast<const float*>(values)[i];
    };
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t o = 0; o < p.outputs; ++o) {
        double sum = p.bias == nullptr ? 0.0 : p.bias[o];
        for (int64_t k = 0; k < p.cols; ++k) {
          sum += at(p.x, r * p.x_stride + k) * at(p.weight, o * p.cols + k);
        }
        p.out[r * p.out_stride + o] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace pagezip::cuda
