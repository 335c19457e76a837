// Documents and leases.
#include "paging/document_store.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "paging/document_entry.h"

namespace pagezip {
namespace {

uint64_t hash_of(const DocumentIdentity& identity) {
  const std::string record = canonical_record(identity);
  return XXH3_64bits(record.data(), record.size());
}

// The order of an entry's versions.
bool comes_before(const VersionIdentity& a, const VersionIdentity& b) {
  return std::tie(a.full, a.keep_ratio, a.selector, a.min_per_head) <
         std::tie(b.full, b.keep_ratio, b.selector, b.min_per_head);
}

}  // namespace

VersionIdentity version_identity(const VersionSpec& spec) {
  return {false, spec.uniform ? "uniform" : "global", spec.keep_ratio, spec.min_per_head};
}

VersionSpec version_spec(const VersionIdentity& identity) {
  CHECK(!identity.full);
  return {identity.keep_ratio, identity.selector == "uniform", identity.min_per_head};
}

DocumentStore::DocumentStore(const KvGeometry& geometry, const Limits& limits)
    : geometry_(geometry), limits_(limits) {}

DocumentStore::~DocumentStore() {
  for (const auto& [birth, version] : versions_) {
    CHECK_EQ(version->readers, 0);
  }
}

DocumentStore::Entry* DocumentStore::find(const std::string& id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.get();
}

DocumentStore::Stored* DocumentStore::find(const FileKey& key) const {
  if (const Entry* entry = find(key.id)) {
    for (const auto& version : entry->versions) {
      if (version->key == key) {
        return version.get();
      }
    }
  }
  return nullptr;
}

DocumentStore::Added DocumentStore::add(DocumentListing listing, DocumentIdentity identity,
                                        int64_t now_s) {
  CHECK(is_valid(listing) && is_document_id(listing.id));
  if (entries_.contains(listing.id)) {
    return Added::kExists;
  }
  if (entries_.size() >= limits_.documents) {
    return Added::kTooMany;
  }
  auto entry = std::make_unique<Entry>();
  entry->identity_hash = hash_of(identity);
  entry->identity = std::make_shared<const DocumentIdentity>(std::move(identity));
  entry->listing = std::move(listing);
  entry->listing.pinned = false;
  entry->last_use_s = now_s;
  entries_[entry->listing.id] = std::move(entry);
  return Added::kAdded;
}

void DocumentStore::add_version(Entry& entry, const std::shared_ptr<Stored>& version) {
  version->birth = ++births_;
  versions_[version->birth] = version;
  version->pinned = entry.listing.pinned;
  pinned_ += version->pinned ? version->blocks : 0;
  const auto place = std::upper_bound(
      entry.versions.begin(), entry.versions.end(), version->identity,
      [](const VersionIdentity& a, const auto& b) { return comes_before(a, b->identity); });
  entry.versions.insert(place, version);
  ++totals_.versions;
  update_held(*version);
  update_queues(*version);
  if (entry.listing.pinned && pinned_ > limits_.pinned_blocks) {
    set_pinned(entry.listing.id, false);
  }
}

void DocumentStore::publish(const std::string& id, const VersionIdentity& identity,
                            std::shared_ptr<const Document> document, bool to_file, int64_t now_s) {
  Entry* entry = find(id);
  CHECK(entry != nullptr && document != nullptr);
  retire(id, identity);
  auto version = std::make_shared<Stored>();
  version->key = {id, next_number_++};
  version->identity = identity;
  const bool stands_alone = document->parent() == nullptr;
  if (stands_alone) {
    version->shape = document->shape();
  }
  version->positions = document->logical_length() - document->first_position();
  version->blocks = document->blocks_held();
  version->document = std::move(document);
  entry->last_use_s = now_s;
  ++totals_.published;
  add_version(*entry, version);
  if (to_file && stands_alone && limits_.file_bytes > 0) {
    to_write_.push_back(version->birth);
  }
}

void DocumentStore::keep_scores(const std::string& id, std::shared_ptr<const ScoreSet> scores) {
  Entry* entry = find(id);
  CHECK(entry != nullptr);
  entry->scores = std::move(scores);
}

std::shared_ptr<const ScoreSet> DocumentStore::scores(const std::string& id) const {
  const Entry* entry = find(id);
  return entry == nullptr ? nullptr : entry->scores;
}

void DocumentStore::retire(const std::string& id, const VersionIdentity& identity) {
  if (Entry* entry = find(id)) {
    for (const auto& version : entry->versions) {
      if (version->identity == identity) {
        remove_version(*entry, *version);
        return;
      }
    }
  }
}

// Its readers keep what they have. What is being written is removed when it is there.
void DocumentStore::remove_version(Entry& entry, Stored& version) {
  const std::shared_ptr<Stored> keep = versions_.at(version.birth);
  std::erase(entry.versions, keep);
  version.retired = true;
  --totals_.versions;
  if (version.stored) {
    version.stored = false;
    file_bytes_ -= version.file_bytes;
    FileWork work;
    work.kind = FileWork::Kind::kRemove;
    work.key = version.key;
    file_work_.push_back(std::move(work));
  }
  if (version.pinned) {
    version.pinned = false;
    pinned_ -= version.blocks;
  }
  update_held(version);
  update_queues(version);
  if (version.readers == 0) {
    forget(version);
  }
}

bool DocumentStore::drop(const std::string& id) {
  Entry* entry = find(id);
  if (entry == nullptr) {
    return false;
  }
  while (!entry->versions.empty()) {
    remove_version(*entry, *entry->versions.back());
  }
  entries_.erase(id);
  return true;
}

void DocumentStore::changed_listing(Entry& entry) {
  ++entry.listing.revision;
  for (const auto& version : entry.versions) {
    if (version->stored) {
      push_update(*version, entry.listing);
    }
  }
}

bool DocumentStore::rename(const std::string& id, std::string name) {
  Entry* entry = find(id);
  if (entry == nullptr) {
    return false;
  }
  CHECK(is_plain_text(name, DocumentListing::kNameBytesMax));
  entry->listing.name = std::move(name);
  changed_listing(*entry);
  return true;
}

bool DocumentStore::set_ttl(const std::string& id, int64_t ttl_s) {
  Entry* entry = find(id);
  if (entry == nullptr) {
    return false;
  }
  CHECK_GE(ttl_s, 0);
  entry->listing.ttl_s = ttl_s;
  changed_listing(*entry);
  return true;
}

bool DocumentStore::set_metadata(const std::string& id,
                                 std::map<std::string, std::string> metadata) {
  Entry* entry = find(id);
  if (entry == nullptr) {
    return false;
  }
  CHECK(is_valid_metadata(metadata));
  entry->listing.metadata = std::move(metadata);
  changed_listing(*entry);
  return true;
}

bool DocumentStore::set_pinned(const std::string& id, bool pinned) {
  Entry* entry = find(id);
  if (entry == nullptr) {
    return false;
  }
  if (entry->listing.pinned == pinned) {
    return true;
  }
  int64_t blocks = 0;
  int64_t more_held = 0;
  for (const auto& version : entry->versions) {
    blocks += version->blocks;
    more_held += version->held ? 0 : version->blocks;
  }
  if (pinned &&
      (pinned_ + blocks > limits_.pinned_blocks || held_ + more_held > limits_.held_blocks)) {
    return false;
  }
  entry->listing.pinned = pinned;
  pinned_ += pinned ? blocks : -blocks;
  for (const auto& version : entry->versions) {
    version->pinned = pinned;
    update_held(*version);
    update_queues(*version);
  }
  changed_listing(*entry);
  return true;
}

void DocumentStore::expire(int64_t now_s) {
  std::vector<std::string> ended;
  for (const auto& [id, entry] : entries_) {
    const DocumentListing& listing = entry->listing;
    const bool in_use =
        std::any_of(entry->versions.begin(), entry->versions.end(),
                    [](const auto& version) { return version->readers > 0 || version->restoring; });
    // A document without versions is being made.
    if (listing.ttl_s > 0 && !listing.pinned && !in_use && !entry->versions.empty() &&
        now_s - entry->last_use_s >= listing.ttl_s) {
      ended.push_back(id);
    }
  }
  for (const std::string& id : ended) {
    drop(id);
    ++totals_.expired;
  }
}

std::optional<DocumentStore::Info> DocumentStore::info(const std::string& id) const {
  const Entry* entry = find(id);
  if (entry == nullptr) {
    return std::nullopt;
  }
  Info info{entry->listing, entry->identity, entry->last_use_s, entry->scores != nullptr, {}};
  for (const auto& v : entry->versions) {
    info.has_scores = info.has_scores || (v->stored && v->file_has_scores);
    info.versions.push_back({v->key.version, v->identity, v->document != nullptr, v->stored,
                             v->blocks, v->file_bytes, v->readers, v->uses});
  }
  return info;
}

const DocumentListing* DocumentStore::listing(const std::string& id) const {
  const Entry* entry = find(id);
  return entry == nullptr ? nullptr : &entry->listing;
}

const VersionIdentity* DocumentStore::version(const FileKey& key) const {
  const Stored* version = find(key);
  return version == nullptr ? nullptr : &version->identity;
}

const DocumentShape* DocumentStore::shape(const FileKey& key) const {
  const Stored* version = find(key);
  return version == nullptr ? nullptr : &version->shape;
}

bool DocumentStore::is_stored(const FileKey& key) const {
  const Stored* version = find(key);
  return version != nullptr && version->stored;
}

std::shared_ptr<const Document> DocumentStore::pages(const FileKey& key) const {
  const Stored* version = find(key);
  return version == nullptr ? nullptr : version->document;
}

std::vector<std::string> DocumentStore::ids() const {
  std::vector<std::string> ids;
  ids.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) {
    ids.push_back(id);
  }
  return ids;
}

std::string DocumentStore::find_same(const Scope& scope, const DocumentIdentity& identity) const {
  const uint64_t hash = hash_of(identity);
  for (const auto& [id, entry] : entries_) {
    if (entry->identity_hash == hash && !entry->listing.imported && entry->listing.scope == scope &&
        canonical_record(*entry->identity) == canonical_record(identity)) {
      return id;
    }
  }
  return "";
}

// ---- leases

std::optional<FileKey> DocumentStore::pick(const std::string& id,
                                           std::optional<double> keep_ratio) const {
  const Entry* entry = find(id);
  if (entry == nullptr || entry->versions.empty()) {
    return std::nullopt;
  }
  const auto distance = [&](const Stored& version) {
    const double ratio = version.identity.full ? 1 : version.identity.keep_ratio;
    return keep_ratio.has_value() ? std::abs(ratio - *keep_ratio) : ratio;
  };
  // Of two that are as near, the one that keeps less: it comes first.
  const auto best =
      std::min_element(entry->versions.begin(), entry->versions.end(),
                       [&](const auto& a, const auto& b) { return distance(*a) < distance(*b); });
  return (*best)->key;
}

DocumentStore::Lease DocumentStore::lease(const FileKey& key, int64_t kept_blocks, int64_t now_s) {
  Lease lease;
  lease.key = key;
  Stored* version = find(key);
  if (version == nullptr) {
    return lease;
  }
  find(key.id)->last_use_s = now_s;
  lease.version = version->identity;
  const int64_t others = held_ + kept_blocks;
  if (!version->held && others > 0 && others + version->blocks > limits_.held_blocks) {
    lease.answer = Answer::kNoRoom;
  } else if (version->document == nullptr) {
    lease.answer = Answer::kOnDisk;
  } else {
    lease.answer = Answer::kLeased;
    lease.document = hold(versions_.at(version->birth));
  }
  return lease;
}

std::shared_ptr<const Document> DocumentStore::hold(const std::shared_ptr<Stored>& version) {
  ++version->readers;
  ++version->uses;
  ++totals_.leases;
  update_held(*version);
  update_queues(*version);
  // The lease keeps the pages by itself: the version may lose them before its readers do.
  return {version->document.get(),
          [this, version, pages = version->document](const Document*) { release(*version); }};
}

void DocumentStore::release(Stored& version) {
  --version.readers;
  update_held(version);
  update_queues(version);
  if (version.retired && version.readers == 0) {
    forget(version);
  }
}

void DocumentStore::forget(Stored& version) {
  version.document.reset();
  update_queues(version);
  versions_.erase(version.birth);
}

void DocumentStore::update_held(Stored& version) {
  const bool held = version.readers > 0 || version.pinned;
  if (held != version.held) {
    held_ += held ? version.blocks : -version.blocks;
    version.held = held;
  }
}

void DocumentStore::count_refs(std::span<uint32_t> refs) const {
  std::set<const Document*> counted;
  const auto count = [&](const Document* document) {
    for (; document != nullptr && counted.insert(document).second; document = document->parent()) {
      document->count_refs(refs);
    }
  };
  for (const auto& [birth, version] : versions_) {
    count(version->document.get());
  }
  for (const FileWork& work : file_work_) {
    count(work.pages.get());
  }
}

DocumentStore::Stats DocumentStore::stats() const {
  Stats stats = totals_;
  stats.documents = static_cast<int64_t>(entries_.size());
  stats.held_blocks = held_;
  stats.pinned_blocks = pinned_;
  stats.file_bytes = file_bytes_;
  return stats;
}

std::string DocumentStore::audit() const {
  int64_t held = 0;
  int64_t pinned = 0;
  int64_t bytes = 0;
  int64_t resident_blocks = 0;
  int64_t evictable_blocks = 0;
  size_t in_entries = 0;
  for (const auto& [id, entry] : entries_) {
    for (const auto& version : entry->versions) {
      ++in_entries;
      if (version->retired || version->key.id != id || version->pinned != entry->listing.pinned) {
        return fmt::format("version {}.{} doesn't fit its document", id, version->key.version);
      }
      if (version->document == nullptr && !version->stored) {
        return fmt::format("version {}.{} is nowhere", id, version->key.version);
      }
    }
  }
  size_t alive = 0;
  for (const auto& [birth, version] : versions_) {
    const Stored& v = *version;
    alive += v.retired ? 0 : 1;
    held += v.held ? v.blocks : 0;
    pinned += v.pinned ? v.blocks : 0;
    bytes += v.stored ? v.file_bytes : 0;
    const bool resident = v.document != nullptr;
    resident_blocks += resident ? v.blocks : 0;
    evictable_blocks += v.in_memory_queue ? v.blocks : 0;
    if (v.held != (v.readers > 0 || v.pinned) || (v.retired && v.readers == 0) ||
        v.in_memory_queue != (resident && !v.held && !v.retired) ||
        v.in_file_queue != (v.stored && !v.pinned && !v.restoring) ||
        v.in_memory_queue != (memory_queue_.count({v.memory_value, birth}) > 0) ||
        v.in_file_queue != (file_queue_.count({v.file_value, birth}) > 0)) {
      return fmt::format("version {}.{} is in the wrong books", v.key.id, v.key.version);
    }
  }
  bytes += writing_ != nullptr ? writing_->file_bytes : 0;
  if (alive != in_entries || held != held_ || pinned != pinned_ || bytes != file_bytes_) {
    return fmt::format("sums: {} of {} versions, held {} of {}, pinned {} of {}, bytes {} of {}",
                       alive, in_entries, held_, held, pinned_, pinned, file_bytes_, bytes);
  }
  if (resident_blocks != totals_.resident_blocks || evictable_blocks != totals_.evictable_blocks ||
      static_cast<int64_t>(alive) != totals_.versions) {
    return "the gauges are wrong";
  }
  return pinned_ > limits_.pinned_blocks ? "too much is pinned" : "";
}

}  // namespace pagezip
