#include "paging/document.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "base/mutant.h"

namespace pagezip {
namespace {

// As in Segment, however a block's pages lie.
size_t list_index(const KvGeometry& geometry, int layer, int head) {
  return static_cast<size_t>(layer) * static_cast<size_t>(geometry.kv_heads) +
         static_cast<size_t>(head);
}

void check_kept(const KeptSets& kept, const Document& source, const KvGeometry& geometry) {
  CHECK_EQ(kept.layers, source.global_layers());
  CHECK_EQ(kept.heads, geometry.kv_heads);
  for (int layer = 0; layer < kept.layers; ++layer) {
    for (int head = 0; head < kept.heads; ++head) {
      const int64_t own_length = source.retained_own(layer, head);
      int64_t previous = -1;
      for (uint32_t pair : kept.head(layer, head)) {
        CHECK_LT(previous, int64_t{pair});
        previous = pair;
      }
      CHECK_LT(previous, own_length);
    }
  }
}

// Turns token indexes into indexes of the pairs that `source` holds of `source_kept`.
KeptSets indexes_in(const Document& source, const KeptSets& source_kept, KeptSets kept) {
  CHECK(source.compressed());
  CHECK_EQ(kept.layers, source_kept.layers);
  CHECK_EQ(kept.heads, source_kept.heads);
  for (int layer = 0; layer < kept.layers; ++layer) {
    for (int head = 0; head < kept.heads; ++head) {
      const std::span<const uint32_t> outer = source_kept.head(layer, head);
      CHECK_EQ(static_cast<int64_t>(outer.size()), source.retained_own(layer, head));
      const size_t list = list_index(source.geometry(), layer, head);
      auto at = outer.begin();
      for (size_t i = kept.first[list]; i < kept.first[list + 1]; ++i) {
        at = std::lower_bound(at, outer.end(), kept.pairs[i]);
        CHECK(at != outer.end() && *at == kept.pairs[i]);
        kept.pairs[i] = static_cast<uint32_t>(at - outer.begin());
      }
    }
  }
  return kept;
}

// Blocks of a bag whose lists begin behind `shared_pairs` pairs of the prefix.
int64_t bag_blocks(const KvGeometry& geometry, std::span<const uint32_t> lengths,
                   int64_t shared_pairs) {
  int64_t pages = 0;
  for (uint32_t length : lengths) {
    pages += geometry.pages_for(int64_t{length} - shared_pairs);
  }
  return ceil_div(pages, geometry.pages_per_block());
}

}  // namespace

Document::Document(BlockPool& pool, int64_t length, int64_t prefix_length,
                   std::shared_ptr<const Document> parent)
    : pool_(&pool),
      parent_(std::move(parent)),
      length_(length),
      prefix_length_(prefix_length),
      bag_(pool) {}

std::shared_ptr<const Document> Document::full(Sequence& sequence, int64_t prefix_length,
                                               std::shared_ptr<const Document> parent) {
  CHECK_EQ(sequence.first_position(), parent == nullptr ? 0 : parent->logical_length());
  CHECK(parent == nullptr || (prefix_length == 0 && parent->segments() < kSegmentsMax));
  CHECK_GE(prefix_length, 0);
  CHECK_LE(prefix_length, sequence.length());
  BlockPool& pool = sequence.pool();
  std::shared_ptr<Document> document(
      new Document(pool, sequence.length(), prefix_length, std::move(parent)));
  const bool has_global = sequence.table(0).window() == 0;
  document->global_layers_ = has_global ? pool.geometry().layers_per_block : 0;
  document->runs_ = sequence.share(sequence.length());
  return document;
}

int64_t Document::blocks_for(const KvGeometry& geometry, const DocumentShape& shape) {
  const int64_t page_tokens = geometry.page.page_tokens;
  const int64_t shared_pages = shape.prefix_length / page_tokens;
  int64_t blocks = shape.compressed ? shared_pages + bag_blocks(geometry, shape.lengths,
                                                                shared_pages * page_tokens)
                                    : geometry.pages_for(shape.logical_length);
  for (int64_t first_page : shape.first_pages) {
    blocks += geometry.pages_for(shape.logical_length) - first_page;
  }
  return blocks;
}

std::shared_ptr<const Document> Document::blank(BlockPool& pool, DocumentShape shape,
                                                BlockReservation& reservation) {
  const KvGeometry& geometry = pool.geometry();
  std::shared_ptr<Document> document(
      new Document(pool, shape.logical_length, shape.prefix_length, nullptr));
  document->global_layers_ = geometry.layers_per_block;
  document->compressed_ = shape.compressed;
  const auto add_run = [&](int64_t first_page, int64_t end_page, int64_t length) {
    BlockRun run{first_page, length, BlockList(pool)};
    for (int64_t page = first_page; page < end_page; ++page) {
      run.blocks.push(pool.take(reservation));
    }
    document->runs_.push_back(std::move(run));
  };
  const int64_t pages = geometry.pages_for(shape.logical_length);
  const int64_t shared_pages = shape.prefix_length / geometry.page.page_tokens;
  if (shape.compressed) {
    add_run(0, shared_pages, shared_pages * geometry.page.page_tokens);
  } else {
    add_run(0, pages, shape.logical_length);
  }
  for (int64_t first_page : shape.first_pages) {
    add_run(first_page, pages, shape.logical_length);
  }
  if (shape.compressed) {
    CHECK_EQ(static_cast<int64_t>(shape.lengths.size()), geometry.pages_per_block());
    document->lengths_ = std::move(shape.lengths);
    document->take_bag(reservation);
  }
  return document;
}

void Document::take_bag(BlockReservation& reservation) {
  const KvGeometry& geometry = pool_->geometry();
  const BlockRun& prefix = runs_[0];
  for (int64_t i = bag_blocks(geometry, lengths_, prefix.length); i > 0; --i) {
    bag_.push(pool_->take(reservation));
  }
  int64_t bag_page = 0;  // the bag's pages go to the lists in order
  for (size_t list = 0; list < lengths_.size(); ++list) {
    const auto layer = static_cast<int>(list) / geometry.kv_heads;
    const auto head = static_cast<int>(list) % geometry.kv_heads;
    first_.push_back(static_cast<uint32_t>(pages_.size()));
    for (int64_t i = 0; i < prefix.blocks.size(); ++i) {
      const PageId page =
          pool_->page_id({prefix.blocks.ids()[i]}, geometry.page_index(layer, head));
      pages_.push_back(page.value);
    }
    const int64_t own_pairs = lengths_[list] - prefix.length;
    for (int64_t i = geometry.pages_for(own_pairs); i > 0; --i, ++bag_page) {
      const BlockId block{bag_.ids()[bag_page / geometry.pages_per_block()]};
      const PageId page = pool_->page_id(block, bag_page % geometry.pages_per_block());
      pages_.push_back(page.value);
    }
  }
}

int64_t Document::retained(int layer, int head) const {
  CHECK_LT(layer, global_layers_);
  return compressed_ ? lengths_[list_index(pool_->geometry(), layer, head)] : length_;
}

int64_t Document::pairs() const {
  int64_t pairs = parent_ == nullptr ? 0 : parent_->pairs();
  if (!compressed_) {
    return pairs + int64_t{global_layers_} * pool_->geometry().kv_heads * length_;
  }
  for (const uint32_t length : lengths_) {
    pairs += length;
  }
  return pairs;
}

int64_t Document::pages_used() const {
  if (compressed_) {
    return static_cast<int64_t>(pages_.size());
  }
  const KvGeometry& geometry = pool_->geometry();
  return int64_t{global_layers_} * geometry.kv_heads * geometry.pages_for(length_);
}

int64_t Document::blocks_held() const {
  int64_t blocks = bag_.size() + (parent_ == nullptr ? 0 : parent_->blocks_held());
  for (const BlockRun& run : runs_) {
    blocks += run.blocks.size();
  }
  return blocks;
}

DocumentShape Document::shape() const {
  CHECK(parent_ == nullptr);
  DocumentShape shape;
  shape.compressed = compressed_;
  shape.logical_length = length_;
  shape.prefix_length = prefix_length_;
  shape.lengths = lengths_;
  for (size_t group = global_layers_ > 0 ? 1 : 0; group < runs_.size(); ++group) {
    shape.first_pages.push_back(runs_[group].first_page);
  }
  return shape;
}

Segment Document::segment(int group) const {
  if (group != 0 || !compressed_) {
    return uniform_segment(*pool_, runs_[static_cast<size_t>(group)], first_position());
  }
  const KvGeometry& geometry = pool_->geometry();
  Segment segment;
  segment.base = pool_->base();
  segment.ids = pages_.data();
  segment.first = first_.data();
  segment.lengths = lengths_.data();
  segment.scale = static_cast<uint64_t>(geometry.page.page_bytes() / PageLayout::kUnit);
  segment.heads = geometry.kv_heads;
  return segment;
}

KvView Document::view(int group) const {
  KvView view;
  push_segments(group, view);
  return view;
}

void Document::push_segments(int group, KvView& view) const {
  if (parent_ != nullptr) {
    parent_->push_segments(group, view);
  }
  view.push(segment(group));
}

void Document::count_refs(std::span<uint32_t> refs) const {
  bag_.count_refs(refs);
  for (const BlockRun& run : runs_) {
    run.blocks.count_refs(refs);
  }
}

DocumentBuilder::DocumentBuilder(std::shared_ptr<const Document> full, KeptSets kept)
    : source_(std::move(full)), kept_(std::move(kept)) {
  CHECK(!source_->compressed_);
  start();
}

DocumentBuilder::DocumentBuilder(std::shared_ptr<const Document> source,
                                 const KeptSets& source_kept, KeptSets kept)
    : source_(std::move(source)), kept_(indexes_in(*source_, source_kept, std::move(kept))) {
  start();
}

void DocumentBuilder::start() {
  CHECK_GT(source_->global_layers_, 0);
  BlockPool& pool = *source_->pool_;
  const KvGeometry& geometry = pool.geometry();
  check_kept(kept_, *source_, geometry);

  document_.reset(new Document(pool, source_->length_, source_->prefix_length_, source_->parent_));
  document_->global_layers_ = source_->global_layers_;
  document_->compressed_ = true;
  int64_t shared_pages = source_->prefix_length_ / geometry.page.page_tokens;
  shared_pairs_ = shared_pages * geometry.page.page_tokens;
  if (MUTANT(kSharedBlockCompacted)) {
    shared_pages = geometry.pages_for(source_->prefix_length_);
    shared_pairs_ = source_->prefix_length_;
  }
  document_->runs_.push_back({0, shared_pairs_, source_->runs_[0].blocks.share(0, shared_pages)});
  for (size_t group = 1; group < source_->runs_.size(); ++group) {
    document_->runs_.push_back(source_->runs_[group].share());
  }

  for (int layer = 0; layer < kept_.layers; ++layer) {
    for (int head = 0; head < kept_.heads; ++head) {
      const int64_t kept_pairs = static_cast<int64_t>(kept_.head(layer, head).size());
      document_->lengths_.push_back(static_cast<uint32_t>(source_->prefix_length_ + kept_pairs));
    }
  }
  blocks_needed_ = bag_blocks(geometry, document_->lengths_, shared_pairs_);
}

void DocumentBuilder::take_blocks(BlockReservation& reservation) {
  CHECK(document_->first_.empty());
  document_->take_bag(reservation);
}

Segment DocumentBuilder::target() const {
  CHECK(!document_->first_.empty());
  return document_->segment(0);
}

std::vector<uint32_t> DocumentBuilder::source_pairs(int layer, int head) const {
  const std::span<const uint32_t> kept = kept_.head(layer, head);
  const int64_t prefix_length = document_->prefix_length_;
  std::vector<uint32_t> pairs(static_cast<size_t>(prefix_length - shared_pairs_));
  std::iota(pairs.begin(), pairs.end(), static_cast<uint32_t>(shared_pairs_));
  pairs.reserve(pairs.size() + kept.size());
  std::transform(kept.begin(), kept.end(), std::back_inserter(pairs),
                 [&](uint32_t pair) { return static_cast<uint32_t>(prefix_length) + pair; });
  return pairs;
}

std::shared_ptr<const Document> DocumentBuilder::finish() {
  CHECK(!document_->first_.empty());
  source_.reset();
  return std::shared_ptr<const Document>(std::move(document_));
}

}  // namespace pagezip
