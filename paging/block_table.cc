#include "paging/block_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pagezip {

std::vector<KvGroup> make_kv_groups(const std::vector<bool>& is_global, int window) {
  CHECK(!is_global.empty());
  std::vector<int> global;
  std::vector<int> sliding;
  for (size_t layer = 0; layer < is_global.size(); ++layer) {
    (is_global[layer] ? global : sliding).push_back(static_cast<int>(layer));
  }
  const size_t group_layers = global.empty() ? sliding.size() : global.size();
  std::vector<KvGroup> groups;
  if (!global.empty()) {
    groups.push_back({std::move(global), 0});
  }
  CHECK(sliding.empty() || window > 0);
  for (size_t first = 0; first < sliding.size(); first += group_layers) {
    const size_t last = std::min(first + group_layers, sliding.size());
    groups.push_back({std::vector<int>(sliding.begin() + static_cast<int64_t>(first),
                                       sliding.begin() + static_cast<int64_t>(last)),
                      window});
  }
  return groups;
}

Segment uniform_segment(const BlockPool& pool, const BlockRun& run, int64_t first_position) {
  const KvGeometry& geometry = pool.geometry();
  const auto page_units = static_cast<uint64_t>(geometry.page.page_bytes() / PageLayout::kUnit);
  Segment segment;
  segment.base = pool.base();
  segment.ids = run.blocks.ids();
  segment.uniform_length = run.length;
  segment.first_page = run.first_page;
  segment.first_position = first_position;
  segment.scale = static_cast<uint64_t>(geometry.pages_per_block()) * page_units;
  segment.layer_stride = static_cast<uint64_t>(geometry.layer_stride()) * page_units;
  segment.head_stride = static_cast<uint64_t>(geometry.head_stride()) * page_units;
  segment.heads = geometry.kv_heads;
  return segment;
}

BlockTable::BlockTable(BlockPool& pool, int window, int64_t first_position)
    : pool_(&pool), window_(window), first_position_(first_position), run_{0, 0, BlockList(pool)} {
  CHECK_GE(window, 0);
  CHECK_GE(first_position, 0);
}

int64_t BlockTable::first_page_needed(int64_t row) const {
  if (window_ == 0) {
    return 0;
  }
  return std::max<int64_t>(row - window_ + 1, 0) / pool_->geometry().page.page_tokens;
}

int64_t BlockTable::blocks_needed(int64_t length) const {
  return length <= room() ? 0 : pool_->geometry().pages_for(length) - end_page();
}

void BlockTable::grow(int64_t length, BlockReservation& reservation) {
  CHECK_GE(length, run_.length);
  for (int64_t missing = blocks_needed(length); missing > 0; --missing) {
    run_.blocks.push(pool_->take(reservation));
  }
  run_.length = length;
}

void BlockTable::truncate(int64_t length) {
  CHECK_LE(length, run_.length);
  CHECK_GE(length, frozen_);
  CHECK_LE(run_.first_page, first_page_needed(length));
  run_.blocks.truncate(pool_->geometry().pages_for(length) - run_.first_page);
  run_.length = length;
}

void BlockTable::drop_behind(int64_t row) {
  CHECK_LE(row, run_.length);
  if (window_ == 0) {
    return;
  }
  const int64_t first_page = std::max(first_page_needed(row), run_.first_page);
  run_.blocks.drop_front(first_page - run_.first_page);
  run_.first_page = first_page;
}

BlockRun BlockTable::share(int64_t length) {
  CHECK_LE(length, run_.length);
  const int64_t first_page = first_page_needed(length);
  CHECK_LE(run_.first_page, first_page);
  frozen_ = std::max(frozen_, length);
  const int64_t pages = pool_->geometry().pages_for(length) - first_page;
  return {first_page, length, run_.blocks.share(first_page - run_.first_page, pages)};
}

BlockRef BlockTable::share_page(int64_t page) {
  const int64_t end = (page + 1) * pool_->geometry().page.page_tokens;
  CHECK_LE(run_.first_page, page);
  CHECK_LE(end, run_.length);
  frozen_ = std::max(frozen_, end);
  return run_.blocks.share_one(page - run_.first_page);
}

BlockTable BlockTable::fork(int64_t length, BlockReservation& reservation) {
  BlockTable forked(*pool_, window_, first_position_);
  forked.run_ = share(length);
  const int64_t page_tokens = pool_->geometry().page.page_tokens;
  forked.frozen_ = length / page_tokens * page_tokens;
  if (length > forked.frozen_) {
    forked.run_.blocks.truncate(forked.run_.blocks.size() - 1);
    forked.run_.blocks.push(pool_->take(reservation));
  }
  return forked;
}

void BlockTable::adopt(BlockRun run) {
  CHECK_EQ(run_.length, 0);
  CHECK_EQ(run_.blocks.size(), 0);
  CHECK_EQ(run.length % pool_->geometry().page.page_tokens, 0);
  CHECK_LE(run.first_page, first_page_needed(run.length));
  run_ = std::move(run);
  frozen_ = run_.length;
}

Segment BlockTable::segment() const { return uniform_segment(*pool_, run_, first_position_); }

Sequence::Sequence(BlockPool& pool, std::span<const KvGroup> groups, int64_t first_position)
    : pool_(&pool), first_position_(first_position) {
  CHECK(!groups.empty());
  for (const KvGroup& group : groups) {
    CHECK_LE(group.layers.size(), static_cast<size_t>(pool.geometry().layers_per_block));
    tables_.emplace_back(pool, group.window, first_position);
  }
}

int64_t Sequence::blocks_held() const {
  int64_t blocks = 0;
  for (const BlockTable& table : tables_) {
    blocks += table.blocks_held();
  }
  return blocks;
}

int64_t Sequence::blocks_needed(int64_t length) const {
  int64_t blocks = 0;
  for (const BlockTable& table : tables_) {
    blocks += table.blocks_needed(length);
  }
  return blocks;
}

void Sequence::grow(int64_t length, BlockReservation& reservation) {
  for (BlockTable& table : tables_) {
    table.grow(length, reservation);
  }
}

void Sequence::truncate(int64_t length) {
  for (BlockTable& table : tables_) {
    table.truncate(length);
  }
}

void Sequence::drop_behind(int64_t row) {
  for (BlockTable& table : tables_) {
    table.drop_behind(row);
  }
}

std::vector<BlockRun> Sequence::share(int64_t length) {
  std::vector<BlockRun> runs;
  runs.reserve(tables_.size());
  for (BlockTable& table : tables_) {
    runs.push_back(table.share(length));
  }
  return runs;
}

Sequence Sequence::fork(int64_t length, BlockReservation& reservation) {
  std::vector<BlockTable> tables;
  tables.reserve(tables_.size());
  for (BlockTable& table : tables_) {
    tables.push_back(table.fork(length, reservation));
  }
  return {*pool_, first_position_, std::move(tables)};
}

void Sequence::adopt(std::vector<BlockRun> runs) {
  CHECK_EQ(runs.size(), tables_.size());
  for (size_t group = 0; group < runs.size(); ++group) {
    CHECK_EQ(runs[group].length, runs.front().length);
    tables_[group].adopt(std::move(runs[group]));
  }
}

void Sequence::count_refs(std::span<uint32_t> refs) const {
  for (const BlockTable& table : tables_) {
    table.count_refs(refs);
  }
}

}  // namespace pagezip
