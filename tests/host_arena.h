// A host's own KV pool, in which a BlockPool may work beside others.
//
// Blocks that the host has are filled with one byte; whoever writes to one that it wasn't given is
// seen when the block is handed out next, or by intact().
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/prng.h"
#include "kernels/kernels.h"
#include "paging/block_pool.h"

namespace pagezip {

class HostArena : public BlockSource {
 public:
  static constexpr std::byte kHostByte{0x77};

  HostArena(const KvGeometry& geometry, int64_t blocks, uint64_t seed)
      : prng_(seed),
        block_bytes_(static_cast<size_t>(geometry.block_bytes())),
        memory_(block_bytes_ * static_cast<size_t>(blocks)) {
    for (int64_t id = 0; id < blocks; ++id) {
      free_.push_back(static_cast<uint32_t>(id));
    }
    std::memset(memory_.data(), static_cast<int>(kHostByte), memory_.size());
  }

  BlockArena arena() {
    return {memory_.data(), static_cast<int64_t>(memory_.size() / block_bytes_), this};
  }
  size_t blocks_free() const { return free_.size(); }
  /// Nobody wrote into a block of the host's, or gave one back that wasn't given.
  bool intact() const {
    return intact_ &&
           std::all_of(free_.begin(), free_.end(), [&](uint32_t id) { return is_ours(id); });
  }

  bool take(std::span<uint32_t> ids) override {
    if (ids.size() > free_.size()) {
      return false;
    }
    for (uint32_t& id : ids) {
      std::swap(free_[prng_.below(free_.size())], free_.back());
      id = free_.back();
      free_.pop_back();
      intact_ = intact_ && is_ours(id);
    }
    return true;
  }
  void give_back(std::span<const uint32_t> ids) noexcept override {
    for (const uint32_t id : ids) {
      intact_ = intact_ && std::find(free_.begin(), free_.end(), id) == free_.end();
      std::memset(block(id), static_cast<int>(kHostByte), block_bytes_);
      free_.push_back(id);
    }
  }

 private:
  std::byte* block(uint32_t id) const { return memory_.data() + id * block_bytes_; }
  bool is_ours(uint32_t id) const {
    return std::all_of(block(id), block(id) + block_bytes_,
                       [](std::byte b) { return b == kHostByte; });
  }

  Prng prng_;
  size_t block_bytes_;
  AlignedBytes memory_;
  std::vector<uint32_t> free_;
  bool intact_ = true;
};

}  // namespace pagezip
