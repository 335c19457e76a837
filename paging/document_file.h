// A compressed document on disk: one file that describes itself.
//
// Version 0: free to change until the serving core fixes version 1; a file of another version is
// refused. Little-endian. Every section begins at a multiple of 64 bytes, so that a later version
// can map it; what fills it up is zero and part of its hash (XXH3-64).
//
//   preamble   128 bytes: magic, version, file size, size and hash of each section, own hash
//   header     DocumentIdentity, and the first page of every sliding group's window
//   lengths    uint32 [global layers, heads]: pairs, prefix included
//   pages      of every (layer, head) of the global group in this order: the pages of its list, the
//              system prefix's among them, so that no file needs another
//   windows    of every sliding group: [layers, heads, pages of the window]
//
// A page is as in memory (kernels/kv_view.h); slots behind a list's end are zero, so that equal
// documents are equal files and nothing of other documents gets out.
//
// A file is untrusted: whatever its bytes are, reading ends in a result or in one Error(kModelFile)
// "PATH: what is wrong", and nothing is allocated in proportion to a number of the file before that
// number was compared with the bytes that are there. The hashes find damage, not forgery.
//
// save_document and load_document: engine thread only, as the pool. read_document_header: any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "kernels/kv_view.h"
#include "paging/block_pool.h"
#include "paging/block_table.h"
#include "paging/document.h"

namespace pagezip {

struct KvGroupShape {
  int layers = 0;
  int window = 0;  // 0: global
  friend bool operator==(const KvGroupShape&, const KvGroupShape&) = default;
};

/// What a document's pages must have in common with the model and the pool that they serve.
struct KvShape {
  uint64_t model_fingerprint = 0;
  std::vector<KvGroupShape> groups;  // group 0 is global
  int kv_heads = 0;
  PageLayout page;
  uint32_t page_version = PageLayout::kVersion;
};

KvShape make_kv_shape(uint64_t model_fingerprint, std::span<const KvGroup> groups,
                      const KvGeometry& geometry);

/// What a document is made of and how: with the same identity it would be made again.
struct DocumentIdentity {
  KvShape shape;
  std::vector<TokenId> prefix_ids;   // the system prefix
  std::vector<TokenId> context_ids;  // the document's own tokens
  std::string scorer;
  int64_t chunk_tokens = 0;  // of a scoring chunk
  std::string selector;
  double keep_ratio = 0;
  int64_t min_per_head = 0;
  std::string provenance;  // backend, build, source; isn't compared
};

struct DocumentHeader {
  DocumentIdentity identity;
  std::vector<uint32_t> lengths;  // [global layers, heads], pairs, prefix included
  int64_t file_bytes = 0;

  int64_t logical_length() const {
    return static_cast<int64_t>(identity.prefix_ids.size() + identity.context_ids.size());
  }
};

struct LoadedDocument {
  std::shared_ptr<const Document> document;
  DocumentIdentity identity;
};

/// Writes the whole file or none: after a crash or an error `path` is as it was before. Throws
/// Error(kOutput) with the system's reason, and Error(kUsage) for a document that isn't compressed
/// or an identity whose texts load_document would refuse (control characters, over 4096 bytes).
/// REQUIRES: identity.shape and its ids are the document's.
void save_document(const std::string& path, const Document& document,
                   const DocumentIdentity& identity);

/// Throws Error(kModelFile) for a file that is broken or doesn't fit `expected`, and says what
/// differs; Error(kOutOfMemory) if the pool has too few blocks. Token ids aren't negative, but
/// weren't compared with a vocabulary. REQUIRES: expected.page is the pool's.
LoadedDocument load_document(const std::string& path, BlockPool& pool, const KvShape& expected);

/// Everything but the pairs, which aren't read: their hashes aren't checked. Throws
/// Error(kModelFile).
DocumentHeader read_document_header(const std::string& path);

}  // namespace pagezip
