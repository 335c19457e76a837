// What lies in memory and what on disk.
#include <algorithm>

#include "base/check.h"
#include "paging/document_entry.h"
#include "paging/document_store.h"

namespace pagezip {
namespace {

// Guesses of what a version costs to have again, in tokens of prefill: to read one of its blocks
// from a file, and to prefill, score and compact one of its tokens.
constexpr double kReadBlockCost = 0.25;
constexpr double kMakeFullCost = 1;
constexpr double kMakeCompressedCost = 3.5;

}  // namespace

double DocumentStore::cost_to_make(const Stored& version) {
  return static_cast<double>(version.positions) *
         (version.identity.full ? kMakeFullCost : kMakeCompressedCost);
}

// REQUIRES: something about the version has just changed; it counts as just used.
void DocumentStore::update_queues(Stored& version) {
  if (version.in_memory_queue) {
    memory_queue_.erase({version.memory_value, version.birth});
  }
  if (version.in_file_queue) {
    file_queue_.erase({version.file_value, version.birth});
  }
  const bool resident = version.document != nullptr;
  const auto blocks_if = [&](bool condition) { return condition ? version.blocks : 0; };
  totals_.resident_blocks += blocks_if(resident) - blocks_if(version.counted);
  totals_.evictable_blocks -= blocks_if(version.in_memory_queue);
  version.counted = resident;
  version.in_memory_queue = resident && !version.held && !version.retired;
  totals_.evictable_blocks += blocks_if(version.in_memory_queue);
  version.in_file_queue = version.stored && !version.pinned && !version.restoring;
  const double uses = 1 + static_cast<double>(version.uses);
  if (version.in_memory_queue) {
    const auto blocks = static_cast<double>(std::max<int64_t>(version.blocks, 1));
    const double cost = version.stored ? kReadBlockCost * blocks : cost_to_make(version);
    version.memory_value = memory_clock_ + uses * cost / blocks;
    memory_queue_.insert({version.memory_value, version.birth});
  }
  if (version.in_file_queue) {
    version.file_value =
        file_clock_ + uses * cost_to_make(version) / static_cast<double>(version.file_bytes);
    file_queue_.insert({version.file_value, version.birth});
  }
}

// ---- memory

int64_t DocumentStore::evict(int64_t blocks) {
  int64_t freed = 0;
  for (auto next = memory_queue_.begin(); freed < blocks && next != memory_queue_.end();) {
    const auto [value, birth] = *next++;
    const std::shared_ptr<Stored> version = versions_.at(birth);
    // Who makes it, or writes its file, still has it: that frees nothing now.
    if (version->document.use_count() > 1) {
      continue;
    }
    memory_clock_ = std::max(memory_clock_, value);
    freed += version->blocks;
    if (version->stored) {
      ++totals_.evicted;
      leave_memory(*version);
      continue;
    }
    drop_for_room(*version);
  }
  return freed;
}

void DocumentStore::leave_memory(Stored& version) {
  version.document.reset();
  update_queues(version);
  Entry& entry = *find(version.key.id);
  const bool any_resident = std::any_of(entry.versions.begin(), entry.versions.end(),
                                        [](const auto& v) { return v->document != nullptr; });
  const bool scores_in_file =
      std::any_of(entry.versions.begin(), entry.versions.end(),
                  [](const auto& v) { return v->stored && v->file_has_scores; });
  if (!any_resident && scores_in_file) {
    entry.scores.reset();
  }
}

// A document whose last version goes, goes too.
void DocumentStore::drop_for_room(Stored& version) {
  ++totals_.dropped;
  totals_.dropped_unused += version.uses == 0 ? 1 : 0;
  Entry& entry = *find(version.key.id);
  remove_version(entry, version);
  if (entry.versions.empty()) {
    entries_.erase(std::string(entry.listing.id));
  }
}

int64_t DocumentStore::blocks_of(const FileKey& key) const {
  const Stored* version = find(key);
  return version == nullptr ? 0 : version->blocks;
}

std::shared_ptr<const Document> DocumentStore::make_blank(const FileKey& key, BlockPool& pool,
                                                          BlockReservation& reservation) {
  Stored* version = find(key);
  if (version == nullptr || version->document != nullptr) {
    return nullptr;
  }
  version->restoring = true;
  update_queues(*version);
  return Document::blank(pool, version->shape, reservation);
}

bool DocumentStore::is_restoring(const FileKey& key) const {
  const Stored* version = find(key);
  return version != nullptr && version->restoring;
}

void DocumentStore::restored(const FileKey& key, std::shared_ptr<const Document> document,
                             const std::shared_ptr<const ScoreSet>& scores) {
  Stored* version = find(key);
  if (version == nullptr) {
    return;
  }
  CHECK(version->restoring && version->document == nullptr);
  ++totals_.restored;
  version->restoring = false;
  version->document = std::move(document);
  update_queues(*version);
  if (scores != nullptr) {
    find(key.id)->scores = scores;
  }
}

// ---- files

bool DocumentStore::add_file(const FileKey& key, const DocumentHeader& header, int64_t now_s) {
  Entry* entry = find(key.id);
  if (entry == nullptr) {
    if (add(header.listing, header.identity, now_s) != Added::kAdded) {
      return false;
    }
    entry = find(key.id);
    entry->listing.pinned = header.listing.pinned;
  } else if (entry->listing.scope != header.listing.scope ||
             canonical_record(*entry->identity) != canonical_record(header.identity)) {
    return false;
  }
  // A crash may have come between the changes of two files, or before an older version went.
  retire(key.id, header.identity.version);
  auto version = std::make_shared<Stored>();
  version->key = key;
  version->identity = header.identity.version;
  version->shape = header.shape();
  version->positions = version->shape.logical_length;
  version->blocks = Document::blocks_for(geometry_, version->shape);
  version->stored = true;
  version->file_has_scores = header.has_scores;
  version->file_bytes = header.file_bytes;
  file_bytes_ += version->file_bytes;
  next_number_ = std::max(next_number_, key.version + 1);
  if (header.listing.revision > entry->listing.revision) {
    DocumentListing listing = header.listing;
    listing.pinned = entry->listing.pinned;
    entry->listing = std::move(listing);
    for (const auto& other : entry->versions) {
      push_update(*other, entry->listing);
    }
  } else if (header.listing.revision < entry->listing.revision) {
    push_update(*version, entry->listing);
  }
  add_version(*entry, version);
  if (header.listing.revision == entry->listing.revision) {
    set_pinned(key.id, header.listing.pinned);
  }
  return true;
}

DocumentStore::Added DocumentStore::import_file(const FileKey& key, const DocumentHeader& header,
                                                int64_t now_s) {
  CHECK(is_valid(header.listing) && !header.listing.pinned && header.listing.id == key.id);
  if (entries_.contains(key.id)) {
    return Added::kExists;
  }
  if (entries_.size() >= limits_.documents || header.file_bytes > limits_.file_bytes ||
      !make_file_room(header.file_bytes)) {
    return Added::kTooMany;
  }
  FileWork work;
  work.kind = FileWork::Kind::kAdopt;
  work.key = key;
  work.file_bytes = header.file_bytes;
  file_work_.push_back(std::move(work));  // behind the removals that make room for it
  CHECK(add_file(key, header, now_s));
  return Added::kAdded;
}

void DocumentStore::push_update(const Stored& version, const DocumentListing& listing) {
  FileWork work;
  work.kind = FileWork::Kind::kUpdate;
  work.key = version.key;
  work.listing = listing;
  file_work_.push_back(std::move(work));
}

bool DocumentStore::make_file_room(int64_t bytes) {
  while (file_bytes_ + bytes > limits_.file_bytes) {
    if (file_queue_.empty()) {
      return false;
    }
    const auto [value, birth] = *file_queue_.begin();
    file_clock_ = std::max(file_clock_, value);
    Stored& version = *versions_.at(birth);
    if (version.document == nullptr) {
      drop_for_room(version);
    } else {
      leave_disk(version);
    }
  }
  return true;
}

void DocumentStore::leave_disk(Stored& version) {
  version.stored = false;
  file_bytes_ -= version.file_bytes;
  FileWork work;
  work.kind = FileWork::Kind::kRemove;
  work.key = version.key;
  file_work_.push_back(std::move(work));
  update_queues(version);
}

// The next version that can be written, as work behind the removals that make room for it.
void DocumentStore::start_write() {
  while (writing_ == nullptr && !to_write_.empty()) {
    const auto found = versions_.find(to_write_.front());
    to_write_.pop_front();
    if (found == versions_.end() || found->second->retired || found->second->document == nullptr) {
      continue;
    }
    const std::shared_ptr<Stored> version = found->second;
    const Entry& entry = *find(version->key.id);
    FileWork work;
    work.key = version->key;
    work.listing = entry.listing;
    work.pages = version->document;
    DocumentIdentity identity = *entry.identity;
    identity.version = version->identity;
    const auto scores = version->identity.full ? nullptr : entry.scores;
    work.image.emplace(*version->document, identity, scores);
    version->file_bytes = work.image->file_bytes();
    if (version->file_bytes > limits_.file_bytes || !make_file_room(version->file_bytes)) {
      version->file_bytes = 0;
      continue;
    }
    version->file_has_scores = scores != nullptr;
    file_bytes_ += version->file_bytes;
    writing_ = version;
    writing_revision_ = entry.listing.revision;
    file_work_.push_back(std::move(work));
  }
}

std::optional<DocumentStore::FileWork> DocumentStore::next_file_work() {
  if (file_work_.empty()) {
    start_write();
  }
  if (file_work_.empty()) {
    return std::nullopt;
  }
  std::optional<FileWork> work = std::move(file_work_.front());
  file_work_.pop_front();
  return work;
}

void DocumentStore::written(const FileKey& key) {
  CHECK(writing_ != nullptr && writing_->key == key);
  const std::shared_ptr<Stored> version = std::move(writing_);
  writing_ = nullptr;
  version->stored = true;
  if (version->retired) {
    leave_disk(*version);
    return;
  }
  update_queues(*version);
  if (const Entry& entry = *find(key.id); entry.listing.revision != writing_revision_) {
    push_update(*version, entry.listing);
  }
}

void DocumentStore::write_failed(const FileKey& key) {
  CHECK(writing_ != nullptr && writing_->key == key);
  file_bytes_ -= writing_->file_bytes;
  writing_->file_bytes = 0;
  writing_ = nullptr;
}

void DocumentStore::lost(const FileKey& key) {
  Stored* version = find(key);
  if (version == nullptr) {
    return;
  }
  version->restoring = false;
  version->stored = false;  // nothing is left to be removed
  file_bytes_ -= version->file_bytes;
  update_queues(*version);
  if (version->document == nullptr) {
    Entry& entry = *find(key.id);
    remove_version(entry, *version);
    if (entry.versions.empty()) {
      entries_.erase(key.id);
    }
  }
}

}  // namespace pagezip
