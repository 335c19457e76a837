// The store's rules, one by one.
#include "paging/document_store.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/document_world.h"

namespace pagezip {
namespace {

using Answer = DocumentStore::Answer;
using Kind = DocumentStore::FileWork::Kind;

const PageLayout kPage{KvType::kF16, KvType::kF16, 16, 16};

DocumentListing listing(const std::string& id, int64_t ttl_s = 0) {
  DocumentListing listing;
  listing.id = id;
  listing.name = "name of " + id;
  listing.scope = {Scope::Kind::kTenant, "t"};
  listing.ttl_s = ttl_s;
  return listing;
}

// Documents of one layer, one head: every block is a page, so sizes are easy to see.
class DocumentStoreTest : public testing::Test {
 protected:
  void add(DocumentStore& store, const std::string& id, int64_t ttl_s = 0) {
    ASSERT_EQ(store.add(listing(id, ttl_s), identity_of(world_, *document(4)), now_),
              DocumentStore::Added::kAdded);
  }
  // One of `blocks` blocks. Only those of 4 blocks fit their identity, as files need.
  std::shared_ptr<const Document> document(int64_t blocks) {
    return make_full(world_, 16 * blocks, 0);
  }
  std::shared_ptr<const Document> compressed(int64_t blocks) {
    KeptSets kept{1, 1, {0, static_cast<uint64_t>(16 * blocks)}, {}};
    for (uint32_t pair = 0; pair < kept.first[1]; ++pair) kept.pairs.push_back(pair);
    return compress(world_, document(blocks), kept);
  }
  void publish(DocumentStore& store, const std::string& id, double ratio, int64_t blocks) {
    store.publish(id, version_identity({ratio, false, 0}), compressed(blocks), true, now_);
  }
  DocumentStore::Lease lease(DocumentStore& store, const std::string& id,
                             std::optional<double> ratio = std::nullopt, int64_t kept = 0) {
    const auto key = store.pick(id, ratio);
    return key ? store.lease(*key, kept, now_) : DocumentStore::Lease{};
  }
  Answer ask(DocumentStore& store, const std::string& id, int64_t kept = 0) {
    return lease(store, id, std::nullopt, kept).answer;
  }
  int64_t in_use() const { return world_.pool.blocks_in_use(); }
  // Writes what is due; returns the keys whose files were removed.
  std::vector<FileKey> work(DocumentStore& store) {
    std::vector<FileKey> removed;
    while (auto next = store.next_file_work()) {
      if (next->kind == Kind::kWrite) store.written(next->key);
      if (next->kind == Kind::kRemove) removed.push_back(next->key);
    }
    return removed;
  }
  void restore(DocumentStore& store, const FileKey& key) {
    auto blocks = world_.pool.reserve(store.blocks_of(key));
    ASSERT_TRUE(blocks.has_value());
    auto blank = store.make_blank(key, world_.pool, *blocks);
    ASSERT_NE(blank, nullptr);
    store.restored(key, std::move(blank), nullptr);
  }

  World world_{kPage, 1, 1, 0, 0, 64};
  int64_t now_ = 1000;
};

TEST_F(DocumentStoreTest, TheNearestVersionServes) {
  DocumentStore store(world_.pool.geometry(), {64, 0, 0});
  add(store, "a");
  EXPECT_EQ(ask(store, "a"), Answer::kNotThere);
  EXPECT_EQ(ask(store, "b"), Answer::kNotThere);
  store.publish("a", kFullVersion, document(4), true, now_);
  EXPECT_TRUE(lease(store, "a").version.full);
  publish(store, "a", 0.5, 2);
  publish(store, "a", 0.25, 1);
  EXPECT_EQ(lease(store, "a").version.keep_ratio, 0.25);
  EXPECT_EQ(lease(store, "a", 0.4).version.keep_ratio, 0.5);
  EXPECT_EQ(lease(store, "a", 0.1).version.keep_ratio, 0.25);
  EXPECT_TRUE(lease(store, "a", 0.9).version.full);
  const auto reader = lease(store, "a", 1);
  store.retire("a", kFullVersion);
  EXPECT_EQ(lease(store, "a", 0.9).version.keep_ratio, 0.5);
  EXPECT_EQ(reader.document->logical_length(), 64);
  EXPECT_EQ(in_use(), 7);
  EXPECT_EQ(store.audit(), "");
}

TEST_F(DocumentStoreTest, PagesGoWithTheLastReader) {
  DocumentStore store(world_.pool.geometry(), {64, 0, 0});
  add(store, "a");
  publish(store, "a", 0.5, 3);
  auto first = lease(store, "a");
  auto second = first.document;
  EXPECT_TRUE(store.drop("a"));
  EXPECT_FALSE(store.drop("a"));
  EXPECT_EQ(ask(store, "a"), Answer::kNotThere);
  first.document.reset();
  EXPECT_EQ(in_use(), 3);
  EXPECT_EQ(store.held_blocks(), 3);
  second.reset();
  EXPECT_EQ(in_use(), 0);
  EXPECT_EQ(store.held_blocks(), 0);
  EXPECT_EQ(store.audit(), "");
}

TEST_F(DocumentStoreTest, LeasesNeverHoldMoreThanTheirShare) {
  DocumentStore store(world_.pool.geometry(), {10, 0, 0});
  for (const char* id : {"a", "b", "c"}) add(store, id);
  publish(store, "a", 0.5, 6);
  publish(store, "b", 0.5, 5);
  publish(store, "c", 0.5, 11);
  auto a = lease(store, "a");
  EXPECT_EQ(ask(store, "b"), Answer::kNoRoom);
  auto again = lease(store, "a", std::nullopt, DocumentStore::kNoRoomTaken);
  EXPECT_EQ(again.answer, Answer::kLeased) << "takes no room";
  a.document.reset();
  EXPECT_EQ(ask(store, "b"), Answer::kNoRoom);
  again.document.reset();
  EXPECT_EQ(lease(store, "b", std::nullopt, DocumentStore::kNoRoomTaken).answer, Answer::kNoRoom);
  EXPECT_EQ(ask(store, "b", 6), Answer::kNoRoom) << "4 are left beside what is kept for others";
  EXPECT_EQ(ask(store, "b", 5), Answer::kLeased);
  EXPECT_EQ(ask(store, "c"), Answer::kLeased) << "too large, but alone";
}

TEST_F(DocumentStoreTest, WhatIsCheapToHaveAgainGoesFirst) {
  DocumentStore store(world_.pool.geometry(), {64, 8, 1'000'000});
  for (const char* id : {"old", "used", "stored", "pinned", "read"}) {
    add(store, id);
    publish(store, id, 0.5, 4);
  }
  ASSERT_TRUE(store.set_pinned("pinned", true));
  EXPECT_FALSE(store.set_pinned("missing", true));
  const auto reader = lease(store, "read");
  EXPECT_EQ(ask(store, "used"), Answer::kLeased);
  while (auto next = store.next_file_work()) {
    if (next->kind != Kind::kWrite) continue;
    next->key.id == "stored" ? store.written(next->key) : store.write_failed(next->key);
  }
  EXPECT_EQ(store.evict(1), 4);
  EXPECT_FALSE(store.info("stored")->versions[0].resident);
  EXPECT_EQ(store.evict(1), 4);
  EXPECT_FALSE(store.contains("old"));
  EXPECT_EQ(store.evict(100), 4);
  EXPECT_FALSE(store.contains("used"));
  EXPECT_TRUE(store.contains("pinned") && store.contains("read"));
  EXPECT_EQ(store.stats().dropped, 2);
  EXPECT_EQ(store.stats().dropped_unused, 1);
  EXPECT_EQ(store.audit(), "");
}

TEST_F(DocumentStoreTest, AVersionComesBackFromDisk) {
  DocumentStore store(world_.pool.geometry(), {64, 0, 1'000'000});
  add(store, "a");
  const auto scores = make_scores(world_, *document(4));
  store.keep_scores("a", scores);
  publish(store, "a", 0.5, 4);
  work(store);
  store.evict(4);
  EXPECT_EQ(in_use(), 0);
  EXPECT_EQ(store.scores("a"), nullptr) << "they are in the file";
  EXPECT_TRUE(store.info("a")->has_scores);
  const auto asked = lease(store, "a");
  ASSERT_EQ(asked.answer, Answer::kOnDisk);
  {
    auto blocks = world_.pool.reserve(store.blocks_of(asked.key));
    auto blank = store.make_blank(asked.key, world_.pool, *blocks);
    store.restored(asked.key, std::move(blank), scores);
  }
  EXPECT_EQ(ask(store, "a"), Answer::kLeased);
  EXPECT_EQ(store.scores("a"), scores);
  store.evict(4);
  auto blocks = world_.pool.reserve(4);
  const auto blank = store.make_blank(asked.key, world_.pool, *blocks);
  store.lost(asked.key);
  EXPECT_FALSE(store.contains("a"));
  EXPECT_EQ(store.file_bytes(), 0);
  EXPECT_EQ(store.audit(), "");
}

TEST_F(DocumentStoreTest, FilesStayWithinTheirBudget) {
  DocumentStore store(world_.pool.geometry(), {64, 8, 0});
  add(store, "x");
  publish(store, "x", 0.5, 2);
  EXPECT_FALSE(store.next_file_work().has_value()) << "no folder, no files";

  const int64_t one =
      DocumentImage(*document(2), identity_of(world_, *document(2)), nullptr).file_bytes();
  DocumentStore small(world_.pool.geometry(), {64, 8, 2 * one + 500});
  std::vector<FileKey> removed;
  for (const char* id : {"a", "b", "c", "d"}) {
    ASSERT_EQ(small.add(listing(id), identity_of(world_, *document(2)), now_),
              DocumentStore::Added::kAdded);
    small.publish(id, kFullVersion, document(2), true, now_);
    if (id == std::string("b")) {
      EXPECT_EQ(ask(small, "a"), Answer::kLeased);
      EXPECT_EQ(ask(small, "a"), Answer::kLeased);
    }
    for (const FileKey& key : work(small)) removed.push_back(key);
    EXPECT_LE(small.file_bytes(), 2 * one + 500);
  }
  EXPECT_EQ(removed, (std::vector<FileKey>{{"b", 1}, {"c", 2}}));
  EXPECT_TRUE(small.contains("b")) << "it is in memory still";
  EXPECT_EQ(small.stats().dropped, 0);
  small.evict(100);
  EXPECT_EQ(small.ids(), (std::vector<std::string>{"a", "d"}));
}

TEST_F(DocumentStoreTest, TimeToLiveCountsFromTheLastUse) {
  DocumentStore store(world_.pool.geometry(), {64, 8, 0});
  for (const char* id : {"a", "b", "c", "d"}) {
    add(store, id, 10);
    publish(store, id, 0.5, 1);
  }
  add(store, "made", 10);
  auto reader = lease(store, "a");
  ASSERT_TRUE(store.set_pinned("b", true));
  now_ = 1005;
  EXPECT_EQ(ask(store, "c"), Answer::kLeased);
  store.expire(1009);
  EXPECT_EQ(store.ids().size(), 5u);
  store.expire(1010);
  EXPECT_FALSE(store.contains("d"));
  store.expire(900);  // a clock that was set back
  EXPECT_EQ(store.ids().size(), 4u);
  store.expire(1015);
  EXPECT_EQ(store.ids(), (std::vector<std::string>{"a", "b", "made"}));
  reader.document.reset();
  store.expire(1015);
  EXPECT_EQ(store.ids(), (std::vector<std::string>{"b", "made"}));
  EXPECT_EQ(store.stats().expired, 3);
}

TEST_F(DocumentStoreTest, ChangesOfTheListingReachEveryFile) {
  DocumentStore store(world_.pool.geometry(), {64, 8, 1'000'000});
  add(store, "a");
  publish(store, "a", 0.5, 4);
  publish(store, "a", 0.25, 4);
  auto first = store.next_file_work();
  ASSERT_TRUE(first && first->kind == Kind::kWrite);
  EXPECT_FALSE(store.next_file_work().has_value()) << "one write at a time";
  EXPECT_TRUE(store.rename("a", "another name"));
  EXPECT_TRUE(store.set_metadata("a", {{"source", "web"}}));
  EXPECT_FALSE(store.set_metadata("none", {}));
  store.written(first->key);
  const auto update = store.next_file_work();
  ASSERT_TRUE(update && update->kind == Kind::kUpdate);
  EXPECT_EQ(update->key, first->key);
  EXPECT_EQ(update->listing.name, "another name");
  EXPECT_EQ(update->listing.metadata.at("source"), "web");
  EXPECT_GT(update->listing.revision, first->listing.revision);
  const auto second = store.next_file_work();
  ASSERT_TRUE(second && second->kind == Kind::kWrite);
  EXPECT_EQ(second->listing, update->listing);
  store.drop("a");
  store.written(second->key);
  EXPECT_EQ(work(store), (std::vector<FileKey>{first->key, second->key}));
  EXPECT_EQ(store.file_bytes(), 0);
}

TEST_F(DocumentStoreTest, FilesOfAFolderBecomeDocuments) {
  const auto document = make_full(world_, 64, 0);
  DocumentHeader header;
  header.listing = listing("a");
  header.listing.pinned = true;
  header.listing.revision = 3;
  header.identity = identity_of(world_, *document);
  header.file_bytes = 5000;
  DocumentStore store(world_.pool.geometry(), {64, 8, 1'000'000});
  ASSERT_TRUE(store.add_file({"a", 0}, header, now_));
  // A crash came between the changes of two files: the younger listing counts.
  DocumentHeader half = header;
  half.identity.version = version_identity({0.5, false, 0});
  half.lengths = {32};
  half.listing.name = "younger";
  half.listing.revision = 4;
  ASSERT_TRUE(store.add_file({"a", 1}, half, now_));
  const auto update = store.next_file_work();
  ASSERT_TRUE(update && update->kind == Kind::kUpdate);
  EXPECT_EQ(update->key, (FileKey{"a", 0}));
  EXPECT_EQ(update->listing.name, "younger");
  // Or before an older version was removed.
  ASSERT_TRUE(store.add_file({"a", 2}, half, now_));
  EXPECT_EQ(work(store), (std::vector<FileKey>{{"a", 1}}));
  DocumentHeader other = header;
  other.identity.context_ids.push_back(7);
  EXPECT_FALSE(store.add_file({"a", 3}, other, now_));
  const auto info = *store.info("a");
  EXPECT_TRUE(info.listing.pinned);
  ASSERT_EQ(info.versions.size(), 2u);
  EXPECT_EQ(info.versions[0].blocks, 2);
  EXPECT_EQ(info.versions[1].blocks, 4);
  EXPECT_EQ(store.stats().pinned_blocks, 6);
  EXPECT_EQ(store.find_same(info.listing.scope, header.identity), "a");
  EXPECT_EQ(store.find_same({Scope::Kind::kGroup, "t"}, header.identity), "");
  EXPECT_EQ(store.find_same(info.listing.scope, other.identity), "");
  EXPECT_EQ(lease(store, "a", 1).answer, Answer::kOnDisk);
  restore(store, {"a", 0});
  EXPECT_EQ(lease(store, "a", 1).answer, Answer::kLeased);
  EXPECT_EQ(store.evict(100), 0) << "it is pinned";
  EXPECT_EQ(store.audit(), "");
}

TEST_F(DocumentStoreTest, AnImportedFileServesButIsNeverFound) {
  DocumentStore store(world_.pool.geometry(), {64, 0, 33'000});
  add(store, "a");
  publish(store, "a", 0.5, 4);
  work(store);
  ASSERT_GT(store.file_bytes(), 28'500) << "two don't fit";
  DocumentHeader header;
  header.listing = listing("b");
  header.listing.imported = true;
  header.identity = identity_of(world_, *document(4));
  header.file_bytes = 4500;
  EXPECT_EQ(store.find_same(header.listing.scope, header.identity), "a");
  const FileKey key = store.make_key("b");
  EXPECT_EQ(store.import_file(key, header, now_), DocumentStore::Added::kAdded);
  EXPECT_EQ(store.audit(), "");
  // The file of the other one goes first: then this one has room.
  const auto removed = store.next_file_work();
  const auto adopted = store.next_file_work();
  ASSERT_TRUE(removed && removed->kind == Kind::kRemove && removed->key.id == "a");
  ASSERT_TRUE(adopted && adopted->kind == Kind::kAdopt && adopted->key == key);
  EXPECT_EQ(adopted->file_bytes, 4500);
  EXPECT_EQ(store.file_bytes(), 4500);

  EXPECT_EQ(ask(store, "b"), Answer::kOnDisk);
  restore(store, key);
  EXPECT_EQ(ask(store, "b"), Answer::kLeased);
  EXPECT_EQ(store.find_same(header.listing.scope, header.identity), "a");
  store.drop("a");
  EXPECT_EQ(store.find_same(header.listing.scope, header.identity), "");

  EXPECT_EQ(store.import_file(store.make_key("b"), header, now_), DocumentStore::Added::kExists);
  header.listing.id = "c";
  header.file_bytes = 33'001;
  EXPECT_EQ(store.import_file(store.make_key("c"), header, now_), DocumentStore::Added::kTooMany);
  EXPECT_TRUE(store.contains("b"));
  EXPECT_EQ(store.audit(), "");
  EXPECT_TRUE(store.drop("b"));
  EXPECT_EQ(work(store).back(), key);
  EXPECT_EQ(store.file_bytes(), 0);
}

TEST_F(DocumentStoreTest, PinsHaveTheirShare) {
  DocumentStore store(world_.pool.geometry(), {10, 5, 0});
  for (const char* id : {"a", "b"}) {
    add(store, id);
    publish(store, id, 0.5, 3);
  }
  EXPECT_TRUE(store.set_pinned("a", true));
  EXPECT_FALSE(store.set_pinned("b", true));
  EXPECT_FALSE(store.info("b")->listing.pinned);
  publish(store, "a", 0.25, 3);
  EXPECT_FALSE(store.info("a")->listing.pinned) << "both versions together are too much";
  EXPECT_EQ(store.stats().pinned_blocks, 0);
  EXPECT_EQ(store.audit(), "");
}

}  // namespace
}  // namespace pagezip
