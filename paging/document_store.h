// The documents that an engine knows: who may use them, which of their versions lie in memory, on
// disk or in both, and what goes when room is short.
//
// A *document* is an identity (what it is made of), a listing (name, scope, time to live, pin) and
// any number of *versions*: all pairs of it, or compressed ones. A version is *resident* (in the
// pool), *stored* (in a file), or both; with neither it is gone.
//
// - Readers get a *lease*: a pointer that pins a version until its last copy ends. What leases and
//   pins keep in the pool together never passes Limits::held_blocks, unless one lease alone does.
//   The rest of the pool is enough for any one piece of work; so a reader may have to wait for a
//   lease, but two readers that wait for room can't each hold what the other needs.
// - Resident versions that nobody holds go in the order of GreedyDual-Size-Frequency, as in
//   paging/prefix_index.h; the cost of one is to read its file or, without a file, to make it
//   again. The same order, by bytes of file, decides what leaves the disk.
// - Files: every version is written once it is there. The store only decides; someone else does the
//   writing and reading (engine/document_disk.h) and tells the store what came of it.
//
// The store has no clock: callers pass the time in seconds since 1970, which may go back.
//
// Engine thread only. Leases may outlive their document's place in the store, but not the store.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paging/document.h"
#include "paging/document_file.h"
#include "paging/document_identity.h"
#include "paging/selection.h"

namespace pagezip {

/// Every pair, or what a VersionSpec keeps.
VersionIdentity version_identity(const VersionSpec& spec);
inline const VersionIdentity kFullVersion{true, "", 1, 0};
/// REQUIRES: not full.
VersionSpec version_spec(const VersionIdentity& identity);

class DocumentStore {
 public:
  struct Limits {
    int64_t held_blocks = 0;    // by leases and pins
    int64_t pinned_blocks = 0;  // by pins, part of those
    int64_t file_bytes = 0;     // on disk; 0: nothing is written
    size_t documents = 10'000;
  };
  enum class Added : uint8_t { kAdded, kExists, kTooMany };  // documents, or bytes of files
  struct Version {
    uint32_t number = 0;  // of its file
    VersionIdentity identity;
    bool resident = false;
    bool stored = false;
    int64_t blocks = 0;
    int64_t file_bytes = 0;
    int64_t readers = 0;
    int64_t uses = 0;  // leases so far
  };
  /// A document as it is now.
  struct Info {
    DocumentListing listing;
    std::shared_ptr<const DocumentIdentity> identity;  // its version is of no meaning
    int64_t last_use_s = 0;
    bool has_scores = false;
    std::vector<Version> versions;  // by keep ratio, the full one last
  };
  enum class Answer : uint8_t {
    kLeased,
    kNoRoom,  // others hold too much; again when something changed
    kOnDisk,  // restore it first
    kNotThere,
  };
  struct Lease {
    Answer answer = Answer::kNotThere;
    FileKey key;
    VersionIdentity version;                   // if it is there
    std::shared_ptr<const Document> document;  // if leased
  };
  /// Something to be done in the folder of files, in this order.
  struct FileWork {
    enum class Kind : uint8_t { kWrite, kUpdate, kRemove, kAdopt };
    Kind kind = Kind::kWrite;
    FileKey key;
    int64_t file_bytes = 0;                 // of kAdopt: the file is there
    DocumentListing listing;                // of kWrite and kUpdate
    std::shared_ptr<const Document> pages;  // of kWrite: what `image` borrows
    std::optional<DocumentImage> image;     // of kWrite
  };

  /// `geometry`: of the pool that all documents live in.
  DocumentStore(const KvGeometry& geometry, const Limits& limits);
  ~DocumentStore();  // REQUIRES: no lease is left
  DocumentStore(const DocumentStore&) = delete;
  DocumentStore& operator=(const DocumentStore&) = delete;

  // ---- documents

  /// A document without versions yet. Not pinned, whatever its listing says: see set_pinned().
  Added add(DocumentListing listing, DocumentIdentity identity, int64_t now_s);
  /// What lies in the folder when an engine starts. False, and left alone: it contradicts a file
  /// that came before.
  bool add_file(const FileKey& key, const DocumentHeader& header, int64_t now_s);
  /// The key of a file that somebody else is going to write, of a new document.
  FileKey make_key(const std::string& id) { return {id, next_number_++}; }
  /// That file is there, verified and durable: from now on it is the document. REQUIRES: its
  /// listing is valid, not pinned, and has the key's id.
  Added import_file(const FileKey& key, const DocumentHeader& header, int64_t now_s);
  /// A version that has just been made; one that is alike is replaced. Unpins the document if that
  /// is too much for the pins. `to_file`: it shall be written. REQUIRES: contains(id).
  void publish(const std::string& id, const VersionIdentity& version,
               std::shared_ptr<const Document> document, bool to_file, int64_t now_s);
  /// REQUIRES: contains(id).
  void keep_scores(const std::string& id, std::shared_ptr<const ScoreSet> scores);
  /// Null: there are none, or they are in a file whose version isn't resident.
  std::shared_ptr<const ScoreSet> scores(const std::string& id) const;
  /// Takes one version away: its readers finish, new ones don't find it.
  void retire(const std::string& id, const VersionIdentity& version);
  /// False if there is none. New use is refused from now on, its files go, and its pages with the
  /// last reader.
  bool drop(const std::string& id);
  bool rename(const std::string& id, std::string name);
  bool set_ttl(const std::string& id, int64_t ttl_s);
  /// REQUIRES: is_valid_metadata(metadata).
  bool set_metadata(const std::string& id, std::map<std::string, std::string> metadata);
  /// False if there is none, or no room for another pin. A pinned document is neither evicted nor
  /// ends by its time to live; versions of it that are only on disk count as well.
  bool set_pinned(const std::string& id, bool pinned);
  /// Drops what was not used for its time to live and has no readers.
  void expire(int64_t now_s);

  bool contains(const std::string& id) const { return entries_.contains(id); }
  std::optional<Info> info(const std::string& id) const;
  /// Null: no such document. Valid until the next call that isn't const.
  const DocumentListing* listing(const std::string& id) const;
  const VersionIdentity* version(const FileKey& key) const;
  /// Likewise. Its lengths are empty for a full version, and for one with a parent.
  const DocumentShape* shape(const FileKey& key) const;
  bool is_stored(const FileKey& key) const;
  /// Without a lease: for a document that stands behind this one and need not stay. Null if it
  /// isn't resident.
  std::shared_ptr<const Document> pages(const FileKey& key) const;
  std::vector<std::string> ids() const;
  /// A document of the same scope that was made here of the same; "" if there is none.
  std::string find_same(const Scope& scope, const DocumentIdentity& identity) const;

  // ---- memory

  /// The version kept nearest to `keep_ratio`, without one the smallest; the full one counts as 1.
  /// Nothing: no such document, or no version of it.
  std::optional<FileKey> pick(const std::string& id, std::optional<double> keep_ratio) const;
  /// `kept_blocks`: room that must be left for leases of others; kNoRoomTaken: only if others hold
  /// that version anyway.
  Lease lease(const FileKey& key, int64_t kept_blocks, int64_t now_s);
  static constexpr int64_t kNoRoomTaken = int64_t{1} << 40;
  /// What make_blank() takes; 0 if the version is gone.
  int64_t blocks_of(const FileKey& key) const;
  /// Room for the pairs of a version that is only on disk: the reading of its file begins, and ends
  /// with restored() or lost(). Null if it is gone, or resident by now.
  std::shared_ptr<const Document> make_blank(const FileKey& key, BlockPool& pool,
                                             BlockReservation& reservation);
  bool is_restoring(const FileKey& key) const;
  /// The blank has its pairs. `scores` may be null.
  void restored(const FileKey& key, std::shared_ptr<const Document> document,
                const std::shared_ptr<const ScoreSet>& scores);
  /// Unpins versions that nobody holds until `blocks` blocks went; returns how many did. Fewer may
  /// come free: versions share some.
  int64_t evict(int64_t blocks);
  int64_t held_blocks() const { return held_; }
  const Limits& limits() const { return limits_; }

  // ---- files

  /// The next thing to do, or nothing. At most one write at a time: it is over with written() or
  /// write_failed().
  std::optional<FileWork> next_file_work();
  void written(const FileKey& key);
  /// It stays in memory only and isn't tried again.
  void write_failed(const FileKey& key);
  /// The file can't be read, and isn't there any more.
  void lost(const FileKey& key);
  int64_t file_bytes() const { return file_bytes_; }

  struct Stats {
    // Now:
    int64_t documents = 0;
    int64_t versions = 0;
    int64_t resident_blocks = 0;
    int64_t held_blocks = 0;    // by leases and pins
    int64_t pinned_blocks = 0;  // by pins
    int64_t evictable_blocks = 0;
    int64_t file_bytes = 0;
    // Since the start:
    int64_t published = 0;
    int64_t leases = 0;
    int64_t evicted = 0;         // versions that left the memory; their files stay
    int64_t restored = 0;        // from files
    int64_t dropped = 0;         // versions that are gone for want of room, in memory or on disk
    int64_t dropped_unused = 0;  // of them, without a single lease
    int64_t expired = 0;         // documents
  };
  Stats stats() const;
  /// For BlockPool::audit_owners. Retired versions with readers are included, work that was handed
  /// out isn't.
  void count_refs(std::span<uint32_t> refs) const;
  /// Recomputes every invariant. Returns the first violation, or "".
  std::string audit() const;

 private:
  struct Stored;  // a version
  struct Entry;   // a document
  // What goes first comes first; ties by age.
  using Queue = std::set<std::pair<double, uint64_t>>;

  Entry* find(const std::string& id) const;
  Stored* find(const FileKey& key) const;
  void add_version(Entry& entry, const std::shared_ptr<Stored>& version);
  void remove_version(Entry& entry, Stored& version);
  void changed_listing(Entry& entry);
  std::shared_ptr<const Document> hold(const std::shared_ptr<Stored>& version);
  void release(Stored& version);
  void forget(Stored& version);
  void update_held(Stored& version);
  void update_queues(Stored& version);
  static double cost_to_make(const Stored& version);
  void leave_memory(Stored& version);
  void leave_disk(Stored& version);
  void drop_for_room(Stored& version);
  void push_update(const Stored& version, const DocumentListing& listing);
  bool make_file_room(int64_t bytes);
  void start_write();

  KvGeometry geometry_;
  Limits limits_;
  std::map<std::string, std::unique_ptr<Entry>> entries_;
  std::map<uint64_t, std::shared_ptr<Stored>> versions_;  // by birth, retired ones with readers too
  uint64_t births_ = 0;
  uint32_t next_number_ = 0;  // of a version; never used twice, so that late answers find nothing
  Queue memory_queue_;        // resident, held by nobody
  Queue file_queue_;          // stored, not pinned, not being read
  double memory_clock_ = 0;
  double file_clock_ = 0;
  int64_t held_ = 0;
  int64_t pinned_ = 0;
  std::deque<FileWork> file_work_;   // due, in this order
  std::deque<uint64_t> to_write_;    // versions, by birth
  std::shared_ptr<Stored> writing_;  // or null
  uint64_t writing_revision_ = 0;    // of its listing in the file
  int64_t file_bytes_ = 0;           // stored, and being written
  Stats totals_;                     // what isn't counted elsewhere
};

}  // namespace pagezip
