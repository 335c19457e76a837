#include "paging/document_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/document_world.h"
#include "tests/temp_folder.h"

namespace pagezip {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Action = DocumentDirectory::Finding::Action;

class DocumentDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto full = make_full(world_, 39, 17);
    document_ = compress(world_, full, random_kept(world_, 22, prng_));
  }

  std::unique_ptr<DocumentDirectory> open(int64_t bytes_max = 1 << 20) {
    return std::make_unique<DocumentDirectory>(system_files(), folder_, world_.shape, bytes_max);
  }
  DocumentImage image() const { return {*document_, identity_of(world_, *document_), nullptr}; }
  static DocumentListing listing_of(const std::string& id) {
    DocumentListing listing;
    listing.id = id;
    listing.name = "name of " + id;
    return listing;
  }
  void write(DocumentDirectory& directory, const FileKey& key) const {
    const auto write = directory.write(key, image(), listing_of(key.id));
    ASSERT_NE(write, nullptr);
    while (write->step(4096)) {
    }
  }
  void expect_loads(DocumentDirectory& directory, const FileKey& key) {
    expect_reads(world_, *directory.read(key), 4096, *document_);
  }
  static std::vector<FileKey> keys_of(const std::vector<DocumentDirectory::File>& files) {
    std::vector<FileKey> keys;
    for (const auto& file : files) keys.push_back(file.key);
    return keys;
  }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }
  std::string get(const std::string& name) const {
    std::ifstream in(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool exists(const std::string& name) const {
    return std::filesystem::exists(folder_ + "/" + name);
  }

  const TempFolder temporary_;
  std::string folder_ = temporary_.path();
  Prng prng_{5};
  World world_{{KvType::kF16, KvType::kBF16, 16, 16}, 2, 1, 1, 8, 64};
  std::shared_ptr<const Document> document_;
};

TEST_F(DocumentDirectoryTest, FindsAgainWhatItWrote) {
  {
    const auto directory = open();
    EXPECT_THAT(directory->take_files(), IsEmpty());
    write(*directory, {"doc_b", 1});
    write(*directory, {"doc_a", 12});
    write(*directory, {"doc_a", 2});
    expect_loads(*directory, {"doc_a", 12});
    EXPECT_TRUE(directory->contains({"doc_b", 1}));
    EXPECT_EQ(directory->bytes(), 3 * image().file_bytes());
  }
  const auto directory = open();
  EXPECT_THAT(directory->findings(), IsEmpty());
  EXPECT_EQ(directory->bytes(), 3 * image().file_bytes());
  const auto files = directory->take_files();
  EXPECT_THAT(keys_of(files),
              ElementsAre(FileKey{"doc_a", 2}, FileKey{"doc_a", 12}, FileKey{"doc_b", 1}));
  EXPECT_EQ(files[0].header.listing, listing_of("doc_a"));
  EXPECT_EQ(files[0].header.identity.prefix_ids, identity_of(world_, *document_).prefix_ids);
  expect_loads(*directory, {"doc_a", 2});
}

TEST_F(DocumentDirectoryTest, RemovedAndRenamedStaySo) {
  {
    const auto directory = open();
    write(*directory, {"doc_a", 1});
    write(*directory, {"doc_b", 1});
    directory->remove({"doc_a", 1});
    directory->remove({"doc_a", 1});
    EXPECT_EQ(directory->bytes(), image().file_bytes());
    DocumentListing listing = listing_of("doc_b");
    listing.name = "another";
    listing.revision = 1;
    directory->update({"doc_b", 1}, listing);
    expect_loads(*directory, {"doc_b", 1});
  }
  const auto files = open()->take_files();
  EXPECT_THAT(keys_of(files), ElementsAre(FileKey{"doc_b", 1}));
  EXPECT_EQ(files[0].header.listing.name, "another");
}

TEST_F(DocumentDirectoryTest, KeepsToItsBudget) {
  const int64_t bytes = image().file_bytes();
  const auto directory = open(2 * bytes + 10);
  auto first = directory->write({"doc_a", 1}, image(), listing_of("doc_a"));
  write(*directory, {"doc_b", 1});
  EXPECT_EQ(directory->write({"doc_c", 1}, image(), listing_of("doc_c")), nullptr);
  EXPECT_EQ(directory->bytes(), 2 * bytes);
  first.reset();  // not finished: as if it had never been
  EXPECT_FALSE(exists("doc_a.1.pgz"));
  write(*directory, {"doc_c", 1});
  EXPECT_EQ(directory->excess_bytes(), 0);
}

TEST_F(DocumentDirectoryTest, AdoptsWhatOthersPutThere) {
  const int64_t bytes = image().file_bytes();
  const auto directory = open(2 * bytes);
  save_document(folder_ + "/doc_a.7.pgz", *document_, identity_of(world_, *document_),
                listing_of("doc_a"));
  directory->adopt({"doc_a", 7}, bytes);
  EXPECT_TRUE(directory->contains({"doc_a", 7}));
  expect_loads(*directory, {"doc_a", 7});
  write(*directory, {"doc_b", 1});
  EXPECT_EQ(directory->bytes(), 2 * bytes);
  EXPECT_EQ(directory->write({"doc_c", 1}, image(), listing_of("doc_c")), nullptr);
  directory->remove({"doc_a", 7});
  EXPECT_EQ(directory->bytes(), bytes);
  EXPECT_FALSE(exists("doc_a.7.pgz"));
}

TEST_F(DocumentDirectoryTest, ALowerBudgetLeavesAnExcess) {
  write(*open(), {"doc_a", 1});
  const auto directory = open(1000);
  EXPECT_EQ(directory->excess_bytes(), image().file_bytes() - 1000);
  directory->remove({"doc_a", 1});
  EXPECT_EQ(directory->excess_bytes(), 0);
}

TEST_F(DocumentDirectoryTest, ServesNothingElse) {
  {
    const auto directory = open();
    for (const char* id : {"doc_a", "doc_b", "doc_c", "doc_d"}) write(*directory, {id, 1});
  }
  const std::string good = get("doc_a.1.pgz");
  put("doc_b.1.pgz", good.substr(0, 2000));            // torn
  put("doc_c.1.pgz", std::string(good.size(), '\0'));  // never written
  put("doc_d.1.pgz", good);                            // another's
  put("doc_e.1.pgz.tmp99.0", good);
  put("doc_f.1.pgz.damaged", good);
  put("doc_g.01.pgz", good);
  put("notes.txt", "x");
  std::string later = good;
  later[8] = 3;
  put("doc_h.1.pgz", later);
  std::filesystem::create_directory(folder_ + "/doc_i.1.pgz");

  const auto directory = open();
  EXPECT_THAT(keys_of(directory->take_files()), ElementsAre(FileKey{"doc_a", 1}));
  EXPECT_EQ(directory->bytes(), image().file_bytes());
  std::map<std::string, std::pair<Action, std::string>> found;
  for (const auto& finding : directory->findings()) {
    found[finding.name] = {finding.action, finding.reason};
  }
  const auto expect = [&](const char* name, Action action, const char* reason) {
    EXPECT_EQ(found[name].first, action) << name;
    EXPECT_THAT(found[name].second, HasSubstr(reason));
    EXPECT_EQ(exists(name), action == Action::kLeftAlone) << name;
  };
  expect("doc_b.1.pgz", Action::kSetAside, "truncated");
  expect("doc_c.1.pgz", Action::kSetAside, "is not a document file");
  expect("doc_d.1.pgz", Action::kLeftAlone, "lists itself as document 'doc_a'");
  expect("doc_e.1.pgz.tmp99.0", Action::kRemoved, "not finished");
  expect("doc_g.01.pgz", Action::kLeftAlone, "its name");
  expect("doc_h.1.pgz", Action::kLeftAlone, "file of version 3");
  expect("doc_i.1.pgz", Action::kLeftAlone, "not a regular file");
  EXPECT_EQ(found.size(), 7u);
  EXPECT_TRUE(exists("doc_b.1.pgz.damaged"));
  EXPECT_TRUE(exists("doc_f.1.pgz.damaged"));
  EXPECT_TRUE(exists("notes.txt"));
}

TEST_F(DocumentDirectoryTest, LeavesTheFilesOfOtherModelsAlone) {
  write(*open(), {"doc_a", 1});
  world_.shape.model.tokenizer = 77;
  {
    const auto directory = open();
    EXPECT_THAT(directory->take_files(), IsEmpty());
    ASSERT_EQ(directory->findings().size(), 1u);
    EXPECT_EQ(directory->findings()[0].action, Action::kLeftAlone);
    EXPECT_THAT(directory->findings()[0].reason, HasSubstr("made with the tokenizer"));
  }
  world_.shape.model = kTestModel;
  EXPECT_EQ(open()->take_files().size(), 1u);
}

TEST_F(DocumentDirectoryTest, DamageIsFoundWhenItIsRead) {
  write(*open(), {"doc_a", 1});
  std::string bytes = get("doc_a.1.pgz");
  bytes[bytes.size() - 1000] ^= 1;
  put("doc_a.1.pgz", bytes);
  const auto directory = open();
  ASSERT_EQ(directory->take_files().size(), 1u);
  std::string reason;
  EXPECT_THAT(reason = error_of([&] {
                         expect_loads(*directory, {"doc_a", 1});
                       }).what(),
              HasSubstr("is damaged"));
  directory->set_aside({"doc_a", 1}, reason);
  EXPECT_EQ(directory->bytes(), 0);
  EXPECT_EQ(directory->findings().at(0).reason, reason);
  EXPECT_THAT(error_of([&] { directory->read({"doc_a", 1}); }).what(), HasSubstr("No such file"));
}

TEST_F(DocumentDirectoryTest, IsOpenedOnceAtATime) {
  auto directory = open();
  const Error error = error_of([&] { open(); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("another process does"));
  directory.reset();
  open();
  folder_ += "/none";
  EXPECT_THAT(error_of([&] { open(); }).what(), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace pagezip
