// The store's own books on documents and their versions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paging/document_store.h"

namespace pagezip {

struct DocumentStore::Stored {
  uint64_t birth = 0;
  FileKey key;
  VersionIdentity identity;
  DocumentShape shape;    // if it stands alone
  int64_t positions = 0;  // of its own
  int64_t blocks = 0;
  std::shared_ptr<const Document> document;  // null: not resident
  bool stored = false;
  bool file_has_scores = false;
  bool restoring = false;  // its file is being read
  bool pinned = false;
  bool retired = false;  // not in the store any more, but maybe read
  int64_t file_bytes = 0;
  int64_t readers = 0;
  int64_t uses = 0;
  bool held = false;     // counted in held_
  bool counted = false;  // among the resident ones
  // Its places in the queues; meaningful if it is in them.
  double memory_value = 0;
  double file_value = 0;
  bool in_memory_queue = false;
  bool in_file_queue = false;
};

struct DocumentStore::Entry {
  DocumentListing listing;
  std::shared_ptr<const DocumentIdentity> identity;
  uint64_t identity_hash = 0;  // of the canonical record
  int64_t last_use_s = 0;
  std::shared_ptr<const ScoreSet> scores;         // null: none, or only in a file
  std::vector<std::shared_ptr<Stored>> versions;  // by keep ratio, the full one last
};

}  // namespace pagezip
