#include "tests/cuda_sim/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "tests/cuda_sim/cuda_sim.h"

namespace pagezip::cuda_sim {
namespace {

constexpr int kPoison = 0xff;
constexpr size_t kAlignment = 64;

struct Region {
  std::byte* start = nullptr;  // of its pages; the guard behind them isn't counted
  size_t bytes = 0;
};

/// All that was allocated, by the address that was handed out.
struct Memory {
  std::recursive_mutex mutex;  // of this and of all streams
  std::map<std::byte*, Region> regions;
  int users = 0;
};
Memory& memory() {
  static Memory instance;
  return instance;
}

auto locked() { return std::unique_lock(memory().mutex); }

void protect(const Region& region, int protection) {
  CHECK_EQ(mprotect(region.start, region.bytes, protection), 0);
}

}  // namespace

std::byte* allocate_device(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t aligned = ceil_div(std::max<size_t>(bytes, 1), kAlignment) * kAlignment;
  const size_t pages = ceil_div(aligned, page) * page;
  void* mapped =
      mmap(nullptr, pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapped != MAP_FAILED);
  const Region region{static_cast<std::byte*>(mapped), pages};
  const auto lock = locked();
  std::byte* address = region.start + (pages - aligned);
  memory().regions.emplace(address, region);
  protect(region, PROT_READ | PROT_WRITE);
  std::memset(address, kPoison, aligned);
  protect(region, memory().users > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  return address;
}

void release_device(std::byte* address) {
  const auto lock = locked();
  const auto found = memory().regions.find(address);
  CHECK(found != memory().regions.end());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  CHECK_EQ(munmap(found->second.start, found->second.bytes + page), 0);
  memory().regions.erase(found);
}

bool is_device_memory(const void* pointer) {
  const auto lock = locked();
  const auto* address = static_cast<const std::byte*>(pointer);
  return std::any_of(memory().regions.begin(), memory().regions.end(), [&](const auto& entry) {
    const Region& region = entry.second;
    return address >= region.start && address < region.start + region.bytes;
  });
}

size_t device_allocations() {
  const auto lock = locked();
  return memory().regions.size();
}

DeviceAccess::DeviceAccess() {
  memory().mutex.lock();
  if (memory().users++ == 0) {
    for (const auto& [address, region] : memory().regions) {
      protect(region, PROT_READ | PROT_WRITE);
    }
  }
}

DeviceAccess::~DeviceAccess() {
  if (--memory().users == 0) {
    for (const auto& [address, region] : memory().regions) {
      protect(region, PROT_NONE);
    }
  }
  memory().mutex.unlock();
}

void Stream::add(std::function<void()> work) {
  const auto lock = locked();
  waiting_.push_back(std::move(work));
  if (!options().late_work) {
    run_until(added());
  }
}

void Stream::run_until(size_t added) {
  const DeviceAccess access;
  while (done_ < added) {
    CHECK(!waiting_.empty());
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    ++done_;
    work();
  }
}

void run_on(Stream* stream, std::function<void()> work) {
  if (stream != nullptr) {
    stream->add(std::move(work));
    return;
  }
  const DeviceAccess access;
  work();
}

}  // namespace pagezip::cuda_sim
