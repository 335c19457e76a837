// A store under random use, with a folder that fails now and then.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"
#include "paging/document_store.h"
#include "tests/document_world.h"

namespace pagezip {
namespace {

using Answer = DocumentStore::Answer;
using Kind = DocumentStore::FileWork::Kind;

const PageLayout kPage{KvType::kF16, KvType::kF16, 16, 16};

DocumentListing listing(const std::string& id, int64_t ttl_s) {
  DocumentListing listing;
  listing.id = id;
  listing.name = "name of " + id;
  listing.scope = {Scope::Kind::kTenant, "t"};
  listing.ttl_s = ttl_s;
  return listing;
}

// The folder is a set of keys; what the store believes of it must hold whenever nothing
// is due.
class StoreSimulation {
 public:
  explicit StoreSimulation(uint64_t seed) : prng_(seed), store_(world_.pool.geometry(), limits()) {}

  void run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE(step);
      act();
      check();
    }
    leases_.clear();
    settle();
    check();
    for (const std::string& id : store_.ids()) store_.drop(id);
    settle();
    makers_.clear();
    check();
    EXPECT_EQ(world_.pool.blocks_in_use(), 0);
    EXPECT_TRUE(folder_.empty());
    EXPECT_EQ(store_.file_bytes(), 0);
  }
  DocumentStore::Stats stats() const { return store_.stats(); }

 private:
  DocumentStore::Limits limits() {
    return {prng_.range(8, 40), prng_.range(0, 8), prng_.chance(0.2) ? 0 : prng_.range(0, 300'000)};
  }
  std::string any_id() { return std::string(1, static_cast<char>('a' + prng_.range(0, 5))); }

  void act() {
    now_ += prng_.range(-1, 3);
    const std::string id = any_id();
    switch (prng_.range(0, 11)) {
      case 0:
      case 1:
        publish(id);
        break;
      case 2:
      case 3:
      case 4:
        lease(id);
        break;
      case 5:
      case 6:
        if (!leases_.empty()) {
          leases_.erase(leases_.begin() + prng_.range(0, static_cast<int64_t>(leases_.size()) - 1));
        }
        break;
      case 7:
        do_file_work();
        break;
      case 8:
        store_.evict(prng_.range(1, 12));
        break;
      case 9:
        store_.set_pinned(id, prng_.chance(0.6));
        break;
      case 10:
        prng_.chance(0.3) ? static_cast<void>(store_.drop(id)) : store_.expire(now_);
        break;
      default:
        if (store_.contains(id)) {
          const std::string text = "x" + std::to_string(now_);
          prng_.chance(0.5)   ? store_.rename(id, text)
          : prng_.chance(0.5) ? store_.set_metadata(id, {{text, text}})
                              : store_.set_ttl(id, prng_.range(0, 60));
        }
        makers_.clear();
    }
  }

  void publish(const std::string& id) {
    const int64_t length = prng_.range(1, 100);
    auto room = world_.pool.reserve(7);
    if (!room) {
      store_.evict(20);
      return;
    }
    room.reset();
    auto document = make_full(world_, length, 0);
    if (!store_.contains(id)) {
      DocumentIdentity identity = identity_of(world_, *document);
      ASSERT_EQ(store_.add(listing(id, prng_.range(0, 60)), identity, now_),
                DocumentStore::Added::kAdded);
      lengths_[id] = length;
    }
    if (lengths_[id] != length) document = make_full(world_, lengths_[id], 0);
    if (prng_.chance(0.3)) makers_.push_back(document);
    store_.publish(id, kFullVersion, std::move(document), prng_.chance(0.8), now_);
  }

  void lease(const std::string& id) {
    const int64_t held = store_.held_blocks();
    const auto key = store_.pick(id, std::nullopt);
    if (!key) return;
    const bool may_take_room = prng_.chance(0.7);
    auto lease = store_.lease(*key, may_take_room ? 0 : DocumentStore::kNoRoomTaken, now_);
    if (lease.answer == Answer::kLeased) {
      ASSERT_NE(lease.document, nullptr);
      EXPECT_TRUE(may_take_room || store_.held_blocks() == held);
      EXPECT_TRUE(store_.held_blocks() <= store_.limits().held_blocks || held == 0 ||
                  store_.held_blocks() == held);
      leases_.push_back(std::move(lease.document));
    } else if (lease.answer == Answer::kOnDisk && !reading_) {
      EXPECT_TRUE(folder_.contains(lease.key));
      auto blocks = world_.pool.reserve(store_.blocks_of(lease.key));
      if (blocks) {
        blank_ = store_.make_blank(lease.key, world_.pool, *blocks);
        ASSERT_NE(blank_, nullptr);
        reading_ = lease.key;
      }
    }
  }

  void do_file_work() {
    if (reading_ && prng_.chance(0.5)) {
      if (prng_.chance(0.8)) {
        store_.restored(*reading_, std::move(blank_), nullptr);
      } else {
        folder_.erase(*reading_);
        store_.lost(*reading_);
      }
      blank_.reset();
      reading_.reset();
      return;
    }
    if (write_) {
      if (prng_.chance(0.8)) {
        folder_.insert(write_->key);
        store_.written(write_->key);
      } else {
        store_.write_failed(write_->key);
      }
      write_.reset();
      return;
    }
    auto work = store_.next_file_work();
    if (!work) return;
    if (work->kind == Kind::kRemove) {
      folder_.erase(work->key);  // unless it was lost before
    } else if (work->kind == Kind::kWrite) {
      EXPECT_FALSE(folder_.contains(work->key));
      write_ = std::move(work);
    } else {
      listings_[work->key] = work->listing.revision;
    }
  }

  void settle() {
    for (int i = 0; i < 1000 && (reading_ || write_); ++i) do_file_work();
    while (true) {
      auto work = store_.next_file_work();
      if (!work) break;
      if (work->kind == Kind::kRemove) folder_.erase(work->key);
      if (work->kind == Kind::kWrite) {
        folder_.insert(work->key);
        store_.written(work->key);
      }
    }
    int64_t stored = 0;
    for (const std::string& id : store_.ids()) {
      const auto info = store_.info(id);
      for (const auto& version : info->versions) {
        if (!version.stored) continue;
        ++stored;
        EXPECT_TRUE(folder_.contains({id, version.number}));
      }
    }
    EXPECT_EQ(stored, static_cast<int64_t>(folder_.size()));
  }

  void check() {
    ASSERT_EQ(store_.audit(), "");
    EXPECT_LE(store_.file_bytes(), std::max<int64_t>(store_.limits().file_bytes, 0));
    std::vector<uint32_t> refs(static_cast<size_t>(world_.pool.blocks_total()));
    store_.count_refs(refs);
    // Pages that others have beside the store: once each, as the pool counts lists, not pointers.
    std::set<const Document*> others;
    const auto add = [&](const std::shared_ptr<const Document>& document) {
      if (document != nullptr && others.insert(document.get()).second &&
          !in_store(document.get())) {
        document->count_refs(refs);
      }
    };
    for (const auto& maker : makers_) add(maker);
    add(blank_);
    if (write_) add(write_->pages);
    ASSERT_EQ(world_.pool.audit_owners(refs, 0), "");
  }

  // Whether the store counts it itself: then its pins are there twice as often as alone.
  bool in_store(const Document* document) const {
    std::vector<uint32_t> all(static_cast<size_t>(world_.pool.blocks_total()));
    std::vector<uint32_t> own(all.size());
    store_.count_refs(all);
    document->count_refs(own);
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i] > all[i]) return false;
    }
    return true;
  }

  Prng prng_;
  World world_{kPage, 1, 1, 0, 0, 64};
  DocumentStore store_;
  int64_t now_ = 1000;
  std::map<std::string, int64_t> lengths_;
  std::vector<std::shared_ptr<const Document>> leases_;
  std::vector<std::shared_ptr<const Document>> makers_;
  std::set<FileKey> folder_;
  std::map<FileKey, uint64_t> listings_;
  std::optional<DocumentStore::FileWork> write_;
  std::optional<FileKey> reading_;
  std::shared_ptr<const Document> blank_;
};

TEST(DocumentStoreSimulation, BooksAreRightAfterEveryStep) {
  DocumentStore::Stats all;
  for (uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    StoreSimulation simulation(seed);
    simulation.run(300);
    const DocumentStore::Stats stats = simulation.stats();
    all.evicted += stats.evicted;
    all.restored += stats.restored;
    all.dropped += stats.dropped;
    all.expired += stats.expired;
  }
  EXPECT_GT(all.evicted, 100);
  EXPECT_GT(all.restored, 30);
  EXPECT_GT(all.dropped, 100);
  EXPECT_GT(all.expired, 30);
}

}  // namespace
}  // namespace pagezip
