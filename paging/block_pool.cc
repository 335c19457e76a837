#include "paging/block_pool.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/mutant.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace pagezip {
namespace {

constexpr uint8_t kFreedByte = 0xff;  // NaN in every KV type

}  // namespace

BlockReservation::BlockReservation(BlockReservation&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), blocks_(std::exchange(other.blocks_, 0)) {}

BlockReservation& BlockReservation::operator=(BlockReservation&& other) noexcept {
  BlockReservation taken(std::move(other));  // ends with what this held before
  std::swap(pool_, taken.pool_);
  std::swap(blocks_, taken.blocks_);
  return *this;
}

BlockReservation::~BlockReservation() {
  if (blocks_ > 0) {
    pool_->give_back(blocks_);
  }
}

BlockReservation BlockReservation::split(int64_t blocks) {
  CHECK_GE(blocks, 0);
  CHECK_LE(blocks, blocks_);
  if (blocks == 0) {
    return {};
  }
  blocks_ -= blocks;
  return {*pool_, blocks};
}

void BlockReservation::merge(BlockReservation other) {
  if (other.blocks_ == 0) {
    return;
  }
  CHECK(blocks_ == 0 || pool_ == other.pool_);
  pool_ = other.pool_;
  blocks_ += std::exchange(other.blocks_, 0);
}

BlockRef::BlockRef(BlockRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  BlockRef taken(std::move(other));  // ends with what this held before
  std::swap(pool_, taken.pool_);
  std::swap(id_, taken.id_);
  return *this;
}

BlockRef::~BlockRef() {
  if (pool_ != nullptr) {
    pool_->unpin(id_);
  }
}

BlockRef BlockRef::share() const {
  CHECK(pool_ != nullptr);
  pool_->pin(id_);
  return {*pool_, id_};
}

BlockList::BlockList(BlockList&& other) noexcept
    : pool_(other.pool_),
      ids_(std::exchange(other.ids_, {})),
      front_(std::exchange(other.front_, 0)) {}

BlockList& BlockList::operator=(BlockList&& other) noexcept {
  BlockList taken(std::move(other));  // ends with what this held before
  std::swap(pool_, taken.pool_);
  std::swap(ids_, taken.ids_);
  std::swap(front_, taken.front_);
  return *this;
}

BlockList::~BlockList() { release(0, size()); }

void BlockList::push(BlockRef block) {
  CHECK(block.pool_ == pool_);
  ids_.push_back(block.id_.value);
  block.pool_ = nullptr;  // the pin is the list's now
}

void BlockList::truncate(int64_t count) {
  CHECK_GE(count, 0);
  CHECK_LE(count, size());
  release(count, size());
  ids_.resize(static_cast<size_t>(front_ + count));
}

void BlockList::drop_front(int64_t count) {
  CHECK_GE(count, 0);
  CHECK_LE(count, size());
  release(0, count);
  if (MUTANT(kDoubleFree)) {
    release(0, count);
  }
  front_ += count;
}

BlockList BlockList::share(int64_t first, int64_t count) const {
  CHECK_GE(first, 0);
  CHECK_GE(count, 0);
  CHECK_LE(first + count, size());
  BlockList shared(*pool_);
  shared.ids_.assign(ids() + first, ids() + first + count);
  for (uint32_t id : shared.ids_) {
    pool_->pin({id});
  }
  return shared;
}

BlockRef BlockList::share_one(int64_t index) const {
  CHECK_GE(index, 0);
  CHECK_LT(index, size());
  const BlockId id{ids()[index]};
  pool_->pin(id);
  return {*pool_, id};
}

void BlockList::count_refs(std::span<uint32_t> refs) const {
  for (int64_t i = 0; i < size(); ++i) {
    ++refs[ids()[i]];
  }
}

void BlockList::release(int64_t first, int64_t last) {
  // Backwards, so that the LIFO free list hands the blocks out in their old order.
  for (int64_t i = last; i-- > first;) {
    pool_->unpin({ids()[i]});
  }
}

BlockPool::BlockPool(const KvGeometry& geometry, int64_t blocks) : geometry_(geometry) {
  CHECK_GT(blocks, 0);
  CHECK_GT(geometry.block_bytes(), 0);
  CHECK_LT(blocks, (int64_t{1} << 32) / geometry.pages_per_block());
  refs_.assign(static_cast<size_t>(blocks), 0);
  free_.resize(static_cast<size_t>(blocks));
  for (size_t i = 0; i < free_.size(); ++i) {
    free_[i] = static_cast<uint32_t>(free_.size() - 1 - i);  // block 0 is taken first
  }
  const auto size = static_cast<size_t>(bytes());
  void* arena = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    throw Error(ErrorKind::kOutOfMemory,
                "cannot map " + std::to_string(size) + " bytes for the KV cache");
  }
  base_ = static_cast<std::byte*>(arena);
  ASAN_POISON_MEMORY_REGION(base_, size);
}

BlockPool::~BlockPool() {
  CHECK_EQ(blocks_in_use(), 0);
  CHECK_EQ(reserved_, 0);
  const auto size = static_cast<size_t>(bytes());
  ASAN_UNPOISON_MEMORY_REGION(base_, size);
  munmap(base_, size);
}

std::optional<BlockReservation> BlockPool::reserve(int64_t blocks) {
  CHECK_GE(blocks, 0);
  if (blocks > blocks_available()) {
    return std::nullopt;
  }
  reserved_ += blocks;
  return BlockReservation(*this, blocks);
}

BlockRef BlockPool::take(BlockReservation& reservation) {
  CHECK(reservation.pool_ == this);
  CHECK_GT(reservation.blocks_, 0);
  CHECK(!free_.empty());
  const BlockId id{free_.back()};
  free_.pop_back();
  CHECK_EQ(refs_[id.value], 0u);
  refs_[id.value] = 1;
  --reservation.blocks_;
  --reserved_;
  const auto size = static_cast<size_t>(geometry_.block_bytes());
  ASAN_UNPOISON_MEMORY_REGION(base_ + id.value * size, size);
  return {*this, id};
}

void BlockPool::pin(BlockId id) {
  CHECK_GT(refs_[id.value], 0u);
  ++refs_[id.value];
}

void BlockPool::unpin(BlockId id) {
  CHECK_GT(refs_[id.value], 0u);
  if (--refs_[id.value] > 0) {
    return;
  }
  free_.push_back(id.value);
  if constexpr (kPoisonsFreed) {
    const auto size = static_cast<size_t>(geometry_.block_bytes());
    std::memset(base_ + id.value * size, kFreedByte, size);
    ASAN_POISON_MEMORY_REGION(base_ + id.value * size, size);
  }
}

void BlockPool::give_back(int64_t blocks) {
  reserved_ -= blocks;
  CHECK_GE(reserved_, 0);
}

std::string BlockPool::audit() const {
  std::vector<bool> is_free(refs_.size(), false);
  for (uint32_t id : free_) {
    const std::string name = "block " + std::to_string(id);
    if (id >= refs_.size()) {
      return name + " is free but outside the pool";
    }
    if (is_free[id]) {
      return name + " is free twice";
    }
    if (refs_[id] != 0) {
      return name + " is free with " + std::to_string(refs_[id]) + " pins";
    }
    is_free[id] = true;
  }
  for (size_t id = 0; id < refs_.size(); ++id) {
    if (refs_[id] == 0 && !is_free[id]) {
      return "block " + std::to_string(id) + " is lost: not free and not pinned";
    }
  }
  if (reserved_ < 0 || reserved_ > blocks_free()) {
    return std::to_string(reserved_) + " blocks reserved of " + std::to_string(blocks_free()) +
           " free";
  }
  return "";
}

std::string BlockPool::audit_owners(std::span<const uint32_t> pins, int64_t reserved) const {
  CHECK_EQ(pins.size(), refs_.size());
  std::string violation = audit();
  if (!violation.empty()) {
    return violation;
  }
  for (size_t id = 0; id < refs_.size(); ++id) {
    if (refs_[id] != pins[id]) {
      return "block " + std::to_string(id) + " has " + std::to_string(refs_[id]) +
             " pins, its owners hold " + std::to_string(pins[id]);
    }
  }
  if (reserved != reserved_) {
    return std::to_string(reserved_) + " blocks reserved, their owners hold " +
           std::to_string(reserved);
  }
  return "";
}

}  // namespace pagezip
