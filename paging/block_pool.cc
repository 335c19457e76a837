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

void check_size(const KvGeometry& geometry, int64_t blocks) {
  CHECK_GT(blocks, 0);
  CHECK_GT(geometry.block_bytes(), 0);
  CHECK_LT(blocks, (int64_t{1} << 32) / geometry.pages_per_block());
}

std::byte* make_arena(const KvGeometry& geometry, int64_t blocks, const DeviceMemory& memory) {
  check_size(geometry, blocks);
  const auto size = static_cast<size_t>(blocks * geometry.block_bytes());
  if (!memory.is_host) {
    std::byte* arena = memory.allocate(size);
    if (arena == nullptr) {
      throw Error(ErrorKind::kOutOfMemory,
                  "the device has no " + std::to_string(size) + " bytes for the KV cache");
    }
    return arena;
  }
  void* arena = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    throw Error(ErrorKind::kOutOfMemory,
                "cannot map " + std::to_string(size) + " bytes for the KV cache");
  }
  return static_cast<std::byte*>(arena);
}

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

BlockPool::BlockPool(const KvGeometry& geometry, int64_t blocks, const DeviceMemory& memory)
    : BlockPool(geometry, {make_arena(geometry, blocks, memory), blocks, nullptr, &memory}, true) {}

BlockPool::BlockPool(const KvGeometry& geometry, const BlockArena& arena)
    : BlockPool(geometry, arena, false) {}

BlockPool::BlockPool(const KvGeometry& geometry, const BlockArena& arena, bool owns_arena)
    : geometry_(geometry),
      base_(arena.base),
      owns_arena_(owns_arena),
      memory_(arena.memory),
      source_(arena.source) {
  check_size(geometry, arena.blocks);
  CHECK_EQ(reinterpret_cast<uintptr_t>(base_) % PageLayout::kUnit, 0u);
  refs_.assign(static_cast<size_t>(arena.blocks), 0);
  if (source_ != nullptr) {
    is_held_.assign(refs_.size(), false);
    return;
  }
  held_ = arena.blocks;
  free_.resize(refs_.size());
  for (size_t i = 0; i < free_.size(); ++i) {
    free_[i] = static_cast<uint32_t>(free_.size() - 1 - i);  // block 0 is taken first
  }
  if (poisons()) {
    ASAN_POISON_MEMORY_REGION(base_, static_cast<size_t>(bytes()));
  }
}

BlockPool::~BlockPool() {
  CHECK_EQ(blocks_in_use(), 0);
  CHECK_EQ(reserved_, 0);
  const auto size = static_cast<size_t>(bytes());
  if (poisons()) {
    ASAN_UNPOISON_MEMORY_REGION(base_, size);
  }
  if (owns_arena_ && memory_->is_host) {
    munmap(base_, size);
  } else if (owns_arena_) {
    memory_->release(base_);
  }
}

std::optional<BlockReservation> BlockPool::reserve(int64_t blocks) {
  CHECK_GE(blocks, 0);
  if (blocks > blocks_available() && !take_from_source(blocks - blocks_available())) {
    return std::nullopt;
  }
  reserved_ += blocks;
  return BlockReservation(*this, blocks);
}

bool BlockPool::take_from_source(int64_t blocks) {
  if (source_ == nullptr || blocks > blocks_total() - held_) {
    return false;
  }
  std::vector<uint32_t> ids(static_cast<size_t>(blocks));
  free_.reserve(free_.size() + ids.size());
  if (!source_->take(ids)) {
    return false;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= refs_.size() || is_held_[ids[i]]) {
      for (size_t j = 0; j < i; ++j) {
        is_held_[ids[j]] = false;
      }
      throw Error(ErrorKind::kUsage, "the block source handed out block " + std::to_string(ids[i]) +
                                         ", which is outside of the arena or in use");
    }
    is_held_[ids[i]] = true;
  }
  free_.insert(free_.end(), ids.rbegin(), ids.rend());  // taken in the order of the source
  held_ += blocks;
  return true;
}

void BlockPool::give_to_source(std::span<const uint32_t> ids) {
  for (uint32_t id : ids) {
    is_held_[id] = false;
  }
  held_ -= static_cast<int64_t>(ids.size());
  source_->give_back(ids);
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
  if (poisons()) {
    const auto size = static_cast<size_t>(geometry_.block_bytes());
    ASAN_UNPOISON_MEMORY_REGION(base_ + id.value * size, size);
  }
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
  if (source_ != nullptr) {
    give_to_source({&id.value, 1});
    return;
  }
  free_.push_back(id.value);
  if (poisons()) {
    const auto size = static_cast<size_t>(geometry_.block_bytes());
    std::memset(base_ + id.value * size, kFreedByte, size);
    ASAN_POISON_MEMORY_REGION(base_ + id.value * size, size);
  }
}

void BlockPool::give_back(int64_t blocks) {
  reserved_ -= blocks;
  CHECK_GE(reserved_, 0);
  if (source_ != nullptr) {
    const auto first = free_.end() - blocks;
    give_to_source({first, free_.end()});
    free_.erase(first, free_.end());
  }
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
    const bool held = source_ == nullptr || is_held_[id];
    if (held != (refs_[id] > 0 || is_free[id])) {
      return "block " + std::to_string(id) +
             (held ? " is lost: not free and not pinned" : " is the source's, and in use here");
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
