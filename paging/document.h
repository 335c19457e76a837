// An immutable text in KV form, shared by any number of readers.
//
// The *full* version borrows the uniform blocks of the sequence that prefilled it. The *compressed*
// version keeps, for every (layer, head) of the global KV group, only some pairs, in pages that
// have nothing to do with each other: a CSR list of pages and a length. Both are read through one
// segment per KV group, so that the split between document and question is the same, and with all
// pairs kept attention computes the same bits.
//
// What a compressed document consists of:
// - *prefix*: the whole blocks of the shared system prefix [0, s). Not copied: every list begins
//   with their pages. The positions of a last, partly filled prefix block are copied, because the
//   document's own pairs follow them in the same page.
// - *own pages*: the remaining prefix pairs and the kept pairs, packed into a bag of blocks that
//   the document owns. A list ends with at most one partial page, the bag with one partial block.
// - *windows*: the uniform blocks of the last W - 1 positions of every sliding group; they are
//   shared with the full version and never compressed.
//
// A document may stand behind a *parent*, which it extends: a segment of its own behind the
// parent's. It has no system prefix of its own, and keeps the parent's pages as long as it lives.
//
// Engine thread only. A document is handed out as std::shared_ptr<const Document>: a reader keeps
// one, and its blocks return to the pool with the last of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kv_view.h"
#include "paging/block_pool.h"
#include "paging/block_table.h"
#include "paging/selection.h"

namespace pagezip {

/// What a document is apart from its pairs.
struct DocumentShape {
  bool compressed = false;
  int64_t logical_length = 0;
  int64_t prefix_length = 0;
  std::vector<uint32_t> lengths;  // [global layers, heads], pairs, prefix included; if compressed
  std::vector<int64_t> first_pages;  // [sliding groups], where their windows begin
};

class Document {
 public:
  /// Documents one behind the other that a question can still be asked on.
  static constexpr int kSegmentsMax = KvView::kSegmentsMax - 1;

  /// All pairs of `sequence`, of which the first `prefix_length` are the system prefix. Freezes
  /// them in the sequence, which may go on or end. REQUIRES: the sequence starts behind the parent,
  /// at position 0 if that is null, and still has the windows of its next row; with a parent there
  /// is no prefix, and fewer than kSegmentsMax segments are before this one.
  static std::shared_ptr<const Document> full(Sequence& sequence, int64_t prefix_length,
                                              std::shared_ptr<const Document> parent = nullptr);

  /// A document of unspecified pairs, which the caller writes through segment() before anyone reads
  /// them. REQUIRES: the model has global layers, and the reservation holds
  /// blocks_for(pool.geometry(), shape).
  static std::shared_ptr<const Document> blank(BlockPool& pool, DocumentShape shape,
                                               BlockReservation& reservation);
  static int64_t blocks_for(const KvGeometry& geometry, const DocumentShape& shape);

  const KvGeometry& geometry() const { return pool_->geometry(); }
  /// What its pages lie in.
  const DeviceMemory& memory() const { return pool_->memory(); }
  /// Positions that the document takes, system prefix and parents included: where a question
  /// starts.
  int64_t logical_length() const { return first_position() + length_; }
  /// The position of its own first pair: behind its parent.
  int64_t first_position() const { return parent_ == nullptr ? 0 : parent_->logical_length(); }
  /// Of its own pairs, those that are system prefix; 0 behind a parent.
  int64_t prefix_length() const { return prefix_length_; }
  const Document* parent() const { return parent_.get(); }
  /// Its own and its parents', in this order in a view.
  int segments() const { return 1 + (parent_ == nullptr ? 0 : parent_->segments()); }
  /// The system prefix that it stands behind, or is its own.
  int64_t root_prefix_length() const {
    return parent_ == nullptr ? prefix_length_ : parent_->root_prefix_length();
  }
  bool compressed() const { return compressed_; }
  int groups() const { return static_cast<int>(runs_.size()); }
  /// Layers of the global KV group; 0 in a model of sliding layers only.
  int global_layers() const { return global_layers_; }

  /// Pairs that (layer, head) of the global group holds, and those among them that aren't prefix.
  int64_t retained(int layer, int head) const;
  int64_t retained_own(int layer, int head) const { return retained(layer, head) - prefix_length_; }
  /// Pairs of the global group in all lists, parents' included: what attention reads.
  int64_t pairs() const;
  /// Pages of the global group that hold pairs, prefix included.
  int64_t pages_used() const;
  /// Blocks that the document and its parents pin in all their parts, and their bytes. Blocks that
  /// others pin as well count in full.
  int64_t blocks_held() const;
  int64_t kv_bytes() const { return blocks_held() * pool_->geometry().block_bytes(); }
  /// What blank() needs to make another one for the same pairs. REQUIRES: no parent.
  DocumentShape shape() const;

  /// What attention reads of a KV group; borrowed from the document.
  Segment segment(int group) const;
  /// A view whose first segments are the parents' and this document's; a question's own segment is
  /// pushed behind them.
  KvView view(int group) const;
  /// The same segments, behind those that `view` has.
  void push_segments(int group, KvView& view) const;

  /// For BlockPool::audit_owners; once per document, not per reader. Parents aren't included.
  void count_refs(std::span<uint32_t> refs) const;

 private:
  friend class DocumentBuilder;
  Document(BlockPool& pool, int64_t length, int64_t prefix_length,
           std::shared_ptr<const Document> parent);
  // Fills bag_, pages_ and first_ for lengths_, behind the prefix blocks in runs_[0].
  void take_bag(BlockReservation& reservation);

  BlockPool* pool_;
  std::shared_ptr<const Document> parent_;  // or null
  int64_t length_;                          // own positions, prefix included
  int64_t prefix_length_;
  int global_layers_ = 0;
  bool compressed_ = false;
  std::vector<BlockRun> runs_;  // [groups]; of a compressed global group: the prefix's whole blocks
  // Only if compressed:
  BlockList bag_;                  // own blocks
  std::vector<uint32_t> pages_;    // page ids of all lists
  std::vector<uint32_t> first_;    // [layers * heads], where a list begins in pages_
  std::vector<uint32_t> lengths_;  // [layers * heads], pairs
};

/// Makes a compressed version of a document, in this order: construct, reserve blocks_needed(),
/// take_blocks(), copy the pairs of every (layer, head), finish(). Dropped before finish(), it
/// gives its blocks back.
///
/// The caller copies (engine/compaction.h): source() to target(), pairs source_pairs(layer, head),
/// target_first(). The four may be called from several threads at once.
class DocumentBuilder {
 public:
  /// REQUIRES: `full` isn't compressed and has a global group; `kept` fits it.
  DocumentBuilder(std::shared_ptr<const Document> full, KeptSets kept);
  /// From a compressed version that kept more, `source_kept`: the same document that the full
  /// version would give. REQUIRES: `source` is what came of `source_kept`, and `kept` is part of
  /// it.
  DocumentBuilder(std::shared_ptr<const Document> source, const KeptSets& source_kept,
                  KeptSets kept);

  /// Blocks of own pages.
  int64_t blocks_needed() const { return blocks_needed_; }
  /// REQUIRES: called once; the reservation holds blocks_needed().
  void take_blocks(BlockReservation& reservation);

  const PageLayout& page() const { return source_->geometry().page; }
  /// The source's global group.
  Segment source() const { return source_->segment(0); }
  /// The global group to be filled. REQUIRES: take_blocks() was called.
  Segment target() const;
  /// Pairs of source() to copy for (layer, head), ascending: what is left of the prefix, then the
  /// kept pairs.
  std::vector<uint32_t> source_pairs(int layer, int head) const;
  /// The pair of target() that the first of them becomes, the same for all lists.
  int64_t target_first() const { return shared_pairs_; }

  /// The document, its pairs copied. REQUIRES: take_blocks() was called. Leaves the builder empty.
  std::shared_ptr<const Document> finish();
  /// For BlockPool::audit_owners; the source isn't included.
  void count_refs(std::span<uint32_t> refs) const { document_->count_refs(refs); }

 private:
  // Everything but the source's kind is checked and made here.
  void start();

  std::shared_ptr<const Document> source_;
  KeptSets kept_;                       // indexes of the source's own pairs
  std::unique_ptr<Document> document_;  // under construction
  int64_t shared_pairs_ = 0;            // of the prefix's whole blocks
  int64_t blocks_needed_ = 0;
};

}  // namespace pagezip
