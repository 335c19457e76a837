// What a document is, as plain data: what it was made of and how, and how it is listed.
//
// Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "kernels/kv_view.h"
#include "paging/block_pool.h"
#include "paging/block_table.h"

namespace pagezip {

/// Hashes of all that turns text into KV. Pages serve only where all four agree.
struct ModelIdentity {
  uint64_t weights = 0;
  uint64_t tokenizer = 0;
  uint64_t rope = 0;
  uint64_t chat_template = 0;
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

struct KvGroupShape {
  int layers = 0;
  int window = 0;  // 0: global
  friend bool operator==(const KvGroupShape&, const KvGroupShape&) = default;
};

/// What a document's pages must have in common with the model and the pool that they serve.
struct KvShape {
  ModelIdentity model;
  std::vector<KvGroupShape> groups;  // group 0 is global
  int kv_heads = 0;
  PageLayout page;
};

KvShape make_kv_shape(const ModelIdentity& model, std::span<const KvGroup> groups,
                      const KvGeometry& geometry);

/// The first difference, for people: "KV heads: 2 instead of 4". "" if there is none.
std::string why_unfit(const KvShape& found, const KvShape& expected);
std::string why_unfit(const ModelIdentity& found, const ModelIdentity& expected);

/// Which of a document's own pairs a version of it has.
struct VersionIdentity {
  bool full = false;      // all of them, in uniform blocks: what prefill wrote
  std::string selector;   // "" if full
  double keep_ratio = 1;  // as asked for
  int64_t min_per_head = 0;
  friend bool operator==(const VersionIdentity&, const VersionIdentity&) = default;
};

/// What a document is made of and how: with the same identity it would be made again.
struct DocumentIdentity {
  KvShape shape;
  std::vector<TokenId> prefix_ids;   // the system prefix
  std::vector<TokenId> context_ids;  // the document's own tokens
  std::string scorer;                // "" if nothing was scored
  uint32_t scorer_version = 0;
  int64_t chunk_tokens = 0;  // of a scoring chunk
  VersionIdentity version;
  std::string provenance;  // backend, build, source; isn't compared
  /// parent_record() of the version that it stands behind, "" if it stands alone. A document behind
  /// another has no file.
  std::string parent;

  int64_t logical_length() const {
    return static_cast<int64_t>(prefix_ids.size() + context_ids.size());
  }
};

/// The bytes that are equal if and only if two documents are the same but for their versions and
/// their provenance.
std::string canonical_record(const DocumentIdentity& identity);
/// The same for its version, too.
std::string parent_record(const DocumentIdentity& identity);

/// Whom a document belongs to: one tenant, or a named group of tenants.
struct Scope {
  enum class Kind : uint8_t { kTenant, kGroup };
  Kind kind = Kind::kTenant;
  std::string name;
  friend auto operator<=>(const Scope&, const Scope&) = default;
};

/// Who asks: a tenant, and the groups that it belongs to.
struct Requester {
  std::string tenant;
  std::vector<std::string> groups;
};
bool may_use(const Scope& scope, const Requester& requester);

/// How a document is listed: all that users can change, and what they can't.
struct DocumentListing {
  static constexpr size_t kIdBytesMax = 64;
  static constexpr size_t kScopeBytesMax = 128;
  static constexpr size_t kNameBytesMax = 256;
  static constexpr size_t kMetadataKeysMax = 16;
  static constexpr size_t kMetadataBytesMax = 12'288;  // of keys and values, and 4 for each key

  std::string id;  // of letters, digits, '_' and '-'; "" for a file that no store wrote
  std::string name;
  Scope scope;
  int64_t created_s = 0;  // seconds since 1970
  int64_t ttl_s = 0;      // from the last use; 0: for ever
  bool pinned = false;
  uint64_t revision = 0;  // grows with every change
  /// It came as a file from outside: what that says of itself isn't known to be true, so the
  /// document is used by its id only and never found by what it was made of.
  bool imported = false;
  std::map<std::string, std::string> metadata;  // its owner's
  friend bool operator==(const DocumentListing&, const DocumentListing&) = default;
};

/// One version of a document, and the file that holds it.
struct FileKey {
  std::string id;
  uint32_t version = 0;
  friend auto operator<=>(const FileKey&, const FileKey&) = default;
};

/// Whether text has no control characters and at most `bytes_max` bytes.
bool is_plain_text(std::string_view text, size_t bytes_max);
bool is_document_id(std::string_view id);
bool is_valid_metadata(const std::map<std::string, std::string>& metadata);
/// Whether a file can hold it: lengths, characters, no negative times.
bool is_valid(const DocumentListing& listing);

}  // namespace pagezip
