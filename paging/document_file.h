// A document on disk: one file that describes itself, and that can be mapped.
//
// Format version 2; a file of another version is refused. Little-endian. Every section begins at a
// multiple of 64 bytes, as pages need; what fills it up is zero and part of its hash (XXH3-128).
//
//   preamble   256 bytes: magic, version, file size, size and hash of each section, own hash
//   listings   2 x 12,800 bytes: id, name, scope, times, pin, whether it was imported, metadata.
//              The one of the higher revision counts; they are all of a file that ever changes
//   header     the canonical record (document_identity.h), the version, the provenance
//   lengths    uint32 [global layers, heads]: pairs, prefix included
//   pages      of every (layer, head) of the global group in this order: the pages of its list, the
//              system prefix's among them, so that no file needs another
//   windows    of every sliding group: [layers, heads, pages of the window]
//   scores     float32 [global layers, heads, context tokens], or nothing: what a lower ratio is
//              cut by
//
// A page is as in memory (kernels/kv_view.h); slots behind a list's end are zero, so that equal
// documents are equal files and nothing of other documents gets out.
//
// A file is untrusted: whatever its bytes are, reading ends in a result or in one Error(kModelFile)
// "PATH: what is wrong", and nothing is allocated in proportion to a number of the file before that
// number was compared with the bytes that are there. Error(kRuntime) where the system can't read.
// The hashes find damage, not forgery.
//
// Thread rule: what pins or unpins blocks (save_document, load_document) runs on the engine thread,
// as the pool. All else may run on any one thread at a time: it touches the bytes of pages and no
// counts. Whoever drives it keeps the document pinned meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paging/block_pool.h"
#include "paging/document.h"
#include "paging/document_identity.h"
#include "paging/file_io.h"
#include "paging/files.h"
#include "paging/selection.h"

namespace pagezip {

/// What a file will hold, but for its listing. Borrows the pages of a document, so that these can
/// be written in slices by another thread.
class DocumentImage {
 public:
  /// `scores` may be null. Throws Error(kUsage) for a model without global layers, and for an
  /// identity whose texts a reader would refuse (control characters, over 4096 bytes). REQUIRES:
  /// identity and scores are the document's, which outlives this.
  DocumentImage(const Document& document, const DocumentIdentity& identity,
                std::shared_ptr<const ScoreSet> scores);

  /// Of the whole file.
  int64_t file_bytes() const { return file_bytes_; }

 private:
  friend class DocumentFileWriter;

  PageLayout layout_;
  const DeviceMemory* memory_;
  std::string header_;
  std::vector<uint32_t> lengths_;  // [global layers, heads]
  std::vector<Segment> segments_;  // [groups]
  std::vector<int> layers_;        // [groups]
  std::shared_ptr<const ScoreSet> scores_;
  int64_t file_bytes_ = 0;
};

/// Writes the whole file or none: until the last step, and after a crash or an error, `path` is as
/// it was before. Throws Error(kOutput) with the system's reason; no step may follow.
class DocumentFileWriter {
 public:
  /// Borrows `files` and what `image` borrows. REQUIRES: is_valid(listing).
  DocumentFileWriter(Files& files, const std::string& path, DocumentImage image,
                     const DocumentListing& listing);
  ~DocumentFileWriter();
  DocumentFileWriter(const DocumentFileWriter&) = delete;
  DocumentFileWriter& operator=(const DocumentFileWriter&) = delete;

  /// Writes about `bytes` more bytes (in units of 256 KiB). False: the file is durable under its
  /// name. The step that syncs does nothing else. REQUIRES: no step returned false before.
  bool step(int64_t bytes);

 private:
  class State;
  std::unique_ptr<State> state_;
};

struct DocumentHeader {
  DocumentListing listing;
  DocumentIdentity identity;
  std::vector<uint32_t> lengths;  // [global layers, heads], pairs, prefix included
  bool has_scores = false;
  int64_t file_bytes = 0;
  /// Of all that never changes: equal for files that differ in their listings only.
  std::string content_hash;

  int64_t logical_length() const { return identity.logical_length(); }
  /// What Document::blank() needs.
  DocumentShape shape() const;
};

/// Reads a file, its pages straight into a document's. In this order: construct, make a blank
/// document of header().shape(), fill() it, step() until false. Until then nobody may read the
/// document.
class DocumentFileReader {
 public:
  /// Reads and checks everything but the pairs and the scores. Throws Error(kModelFile) for a file
  /// that is broken or doesn't fit `expected`, and says what differs. Token ids aren't negative,
  /// but weren't compared with a vocabulary. Borrows `files`.
  DocumentFileReader(Files& files, const std::string& path, const KvShape& expected);
  ~DocumentFileReader();
  DocumentFileReader(const DocumentFileReader&) = delete;
  DocumentFileReader& operator=(const DocumentFileReader&) = delete;

  const DocumentHeader& header() const;
  /// REQUIRES: `blank` was made of header().shape() in a pool that `expected` describes; it
  /// outlives the steps.
  void fill(const Document& blank);
  /// Reads about `bytes` more bytes (in units of 256 KiB). False: all is read and verified. Throws
  /// as the constructor; the document is worth nothing then. REQUIRES: fill().
  bool step(int64_t bytes);
  /// Null if the file has none. REQUIRES: a step returned false.
  std::shared_ptr<const ScoreSet> scores() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Puts a new listing into a file, durably: after a crash it has the old or the new one. Throws
/// Error(kModelFile), Error(kOutput). REQUIRES: is_valid(listing); its revision is the highest yet.
void update_listing(Files& files, const std::string& path, const DocumentListing& listing);

/// Reads and verifies all of a file, whatever model it is for, and needs no pool for it. Throws
/// Error(kModelFile).
DocumentHeader verify_document(const InputFile& file);

/// Everything but the pairs and the scores, which aren't read: their hashes aren't checked.
DocumentHeader read_document_header(const InputFile& file);
DocumentHeader read_document_header(const std::string& path);
/// Only the scores, verified. Null if the file has none. Throws Error(kModelFile).
std::shared_ptr<const ScoreSet> read_document_scores(const std::string& path);

/// Writes a file in one go.
void save_document(const std::string& path, const Document& document,
                   const DocumentIdentity& identity, const DocumentListing& listing = {},
                   std::shared_ptr<const ScoreSet> scores = nullptr, Files& files = system_files());

struct LoadedDocument {
  std::shared_ptr<const Document> document;
  DocumentHeader header;
  std::shared_ptr<const ScoreSet> scores;  // null if the file has none
};

/// Reads a file in one go. Throws Error(kOutOfMemory) too, if the pool has too few blocks.
/// REQUIRES: `expected` describes the pool.
LoadedDocument load_document(const std::string& path, BlockPool& pool, const KvShape& expected,
                             Files& files = system_files());

}  // namespace pagezip
