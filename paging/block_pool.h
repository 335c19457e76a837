// The memory of KV caches: one arena of equal blocks, counted before they are taken.
//
// A block holds `page_tokens` positions of K and V for the layers and heads of one KV group, cut
// into pages (kernels/kv_view.h). Blocks are ref-counted: a block has one writer, any number of
// readers, and returns to the pool with its last pin. Whoever needs blocks reserves their number
// first, so that running short is one answer (std::nullopt) before any work, never an event in the
// middle of it.
//
// A pool has an arena of its own, or works in one that belongs to a host (a serving stack that has
// a KV pool already). There it may share the blocks with others: then a BlockSource of the host
// hands them out, and gets each back as soon as nobody in here needs it.
//
// Engine thread only: counts are not atomic. The pool outlives every pin and reservation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/device_memory.h"
#include "base/ids.h"
#include "base/math.h"
#include "kernels/kv_view.h"

namespace pagezip {

class BlockPool;

/// How the pages of a block lie in it: [layers, heads], or [heads, layers].
enum class BlockOrder : uint8_t { kLayerMajor, kHeadMajor };

/// What a block consists of. All KV groups of a model share one geometry: groups with fewer layers
/// leave the last pages of their blocks unused.
struct KvGeometry {
  PageLayout page;
  int kv_heads = 0;
  int layers_per_block = 0;  // layers of the largest KV group
  BlockOrder order = BlockOrder::kLayerMajor;

  int64_t pages_per_block() const { return int64_t{layers_per_block} * kv_heads; }
  int64_t block_bytes() const { return pages_per_block() * page.page_bytes(); }
  /// Where the page of (layer, head) lies in its block, in pages; `layer` counts in the KV group.
  int64_t page_index(int layer, int head) const {
    return layer * layer_stride() + head * head_stride();
  }
  /// Pages from a layer's to the next layer's, and likewise for heads.
  int64_t layer_stride() const { return order == BlockOrder::kLayerMajor ? kv_heads : 1; }
  int64_t head_stride() const { return order == BlockOrder::kLayerMajor ? 1 : layers_per_block; }
  /// Pages of one (layer, head) that hold `pairs` pairs: also the blocks of a uniform table.
  int64_t pages_for(int64_t pairs) const { return ceil_div(pairs, page.page_tokens); }
};

/// The host's side of an arena that a pool shares with others.
class BlockSource {
 public:
  BlockSource() = default;
  virtual ~BlockSource() = default;
  BlockSource(const BlockSource&) = delete;
  BlockSource& operator=(const BlockSource&) = delete;

  /// Fills `ids` with blocks that nobody uses. False if there aren't so many: none is taken then.
  virtual bool take(std::span<uint32_t> ids) = 0;
  virtual void give_back(std::span<const uint32_t> ids) noexcept = 0;
};

/// Memory of the host's. Both are borrowed.
struct BlockArena {
  std::byte* base = nullptr;  // aligned to 64 bytes
  int64_t blocks = 0;
  BlockSource* source = nullptr;  // null: all blocks are the pool's while it lives
  const DeviceMemory* memory = &kHostMemory;
};

/// A number of blocks promised by the pool but not taken yet. The destructor gives back the rest.
class BlockReservation {
 public:
  BlockReservation() = default;  // holds nothing
  BlockReservation(BlockReservation&& other) noexcept;
  BlockReservation& operator=(BlockReservation&& other) noexcept;
  ~BlockReservation();

  int64_t blocks() const { return blocks_; }
  /// Cuts `blocks` off into a reservation of their own. REQUIRES: blocks <= blocks().
  BlockReservation split(int64_t blocks);
  /// Takes over what `other` holds. REQUIRES: the same pool, or one of the two holds nothing.
  void merge(BlockReservation other);

 private:
  friend class BlockPool;
  BlockReservation(BlockPool& pool, int64_t blocks) : pool_(&pool), blocks_(blocks) {}

  BlockPool* pool_ = nullptr;
  int64_t blocks_ = 0;
};

/// Pins one block, or none. Move-only; a second pin is made by share(), so that its cost is
/// visible.
class BlockRef {
 public:
  BlockRef() = default;  // pins none, as one that was moved from
  BlockRef(BlockRef&& other) noexcept;
  BlockRef& operator=(BlockRef&& other) noexcept;
  ~BlockRef();

  bool empty() const { return pool_ == nullptr; }
  // Both REQUIRE: not empty().
  BlockRef share() const;
  BlockId id() const { return id_; }

 private:
  friend class BlockPool;
  friend class BlockList;
  BlockRef(BlockPool& pool, BlockId id) : pool_(&pool), id_(id) {}

  BlockPool* pool_ = nullptr;
  BlockId id_;
};

/// Pins a list of blocks; their ids lie in one array, as a Segment reads them. Move-only.
class BlockList {
 public:
  explicit BlockList(BlockPool& pool) : pool_(&pool) {}
  BlockList(BlockList&& other) noexcept;
  BlockList& operator=(BlockList&& other) noexcept;
  ~BlockList();

  int64_t size() const { return static_cast<int64_t>(ids_.size()) - front_; }
  /// [size()]; valid until the list grows beyond what was reserved.
  const uint32_t* ids() const { return ids_.data() + front_; }

  void reserve(int64_t count) { ids_.reserve(static_cast<size_t>(count + front_)); }
  void push(BlockRef block);
  /// Unpins all but the first `count` blocks. REQUIRES: count <= size().
  void truncate(int64_t count);
  /// Unpins the first `count` blocks. REQUIRES: count <= size().
  void drop_front(int64_t count);
  /// Pins blocks [first, first + count) once more.
  BlockList share(int64_t first, int64_t count) const;
  /// Pins block `index` once more.
  BlockRef share_one(int64_t index) const;
  /// ++refs[id] for every pin; for BlockPool::audit_owners. refs: [blocks_total].
  void count_refs(std::span<uint32_t> refs) const;

 private:
  void release(int64_t first, int64_t last);

  BlockPool* pool_;
  std::vector<uint32_t> ids_;
  int64_t front_ = 0;  // ids before it are dropped; they stay, so that ids() doesn't move
};

class BlockPool {
 public:
  /// In debug and ASan builds a freed block is filled with 0xff (NaN in every KV type), and under
  /// ASan any access to a free block is reported. Not where a source hands out the blocks.
#if defined(__SANITIZE_ADDRESS__) || !defined(NDEBUG)
  static constexpr bool kPoisonsFreed = true;
#else
  static constexpr bool kPoisonsFreed = false;
#endif

  /// Takes `blocks` blocks of `memory`; of the host's the system commits them at first touch.
  /// Throws Error(kOutOfMemory) if there isn't so much. REQUIRES: blocks > 0, and fewer than 2^32
  /// pages in all.
  BlockPool(const KvGeometry& geometry, int64_t blocks, const DeviceMemory& memory = kHostMemory);
  /// REQUIRES: likewise, and the alignment of arena.base.
  BlockPool(const KvGeometry& geometry, const BlockArena& arena);
  ~BlockPool();  // REQUIRES: nothing is pinned or reserved
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  const KvGeometry& geometry() const { return geometry_; }
  std::byte* base() const { return base_; }
  const DeviceMemory& memory() const { return *memory_; }
  /// Page p of the pool starts at base() + p * page_bytes().
  PageId page_id(BlockId block, int64_t page_index) const {
    return {static_cast<uint32_t>(block.value * geometry_.pages_per_block() + page_index)};
  }

  int64_t blocks_total() const { return static_cast<int64_t>(refs_.size()); }
  /// Of a shared arena only those that are reserved: the source has the others.
  int64_t blocks_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t blocks_in_use() const { return held_ - blocks_free(); }
  /// Promised and not taken yet; part of blocks_free().
  int64_t blocks_reserved() const { return reserved_; }
  /// What reserve() can still promise, without a source.
  int64_t blocks_available() const { return blocks_free() - reserved_; }
  int64_t bytes() const { return blocks_total() * geometry_.block_bytes(); }
  /// How many pins keep the block; 0 if it is free.
  uint32_t pins(BlockId id) const { return refs_[id.value]; }

  /// std::nullopt if fewer than `blocks` are available; nothing changes then. Throws Error(kUsage)
  /// if the source hands out a block that isn't in the arena, or that it has handed out already.
  std::optional<BlockReservation> reserve(int64_t blocks);
  /// A block that nobody else pins, with unspecified contents. REQUIRES: reservation.blocks() > 0.
  BlockRef take(BlockReservation& reservation);

  /// Checks the pool's own books in O(blocks). Returns the first violation, or "" if there is none.
  std::string audit() const;
  /// audit(), and that the owners' pins (per block) and reservations add up to the pool's counts.
  /// pins: [blocks_total], filled by the owners' count_refs().
  std::string audit_owners(std::span<const uint32_t> pins, int64_t reserved) const;

 private:
  friend class BlockReservation;
  friend class BlockRef;
  friend class BlockList;

  void pin(BlockId id);
  void unpin(BlockId id);
  void give_back(int64_t blocks);
  // The part that both constructors share.
  BlockPool(const KvGeometry& geometry, const BlockArena& arena, bool owns_arena);
  bool take_from_source(int64_t blocks);
  void give_to_source(std::span<const uint32_t> ids);

  KvGeometry geometry_;
  std::vector<uint32_t> refs_;  // [blocks], pins per block; 0: free
  std::vector<uint32_t> free_;  // LIFO: the block freed last is likely still in the CPU's caches
  int64_t reserved_ = 0;
  int64_t held_ = 0;  // blocks that are the pool's: free_ and the pinned ones
  bool poisons() const { return kPoisonsFreed && source_ == nullptr && memory_->is_host; }
  std::byte* base_;  // bytes()
  bool owns_arena_;
  const DeviceMemory* memory_;
  BlockSource* source_;        // null: held_ is blocks_total()
  std::vector<bool> is_held_;  // [blocks], only with a source
};

}  // namespace pagezip
