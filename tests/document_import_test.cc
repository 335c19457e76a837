// Files that come from outside: all of one or nothing, at every point, and nothing of its old
// owner.
#include "paging/document_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "paging/document_directory.h"
#include "paging/document_file_format.h"
#include "tests/document_world.h"
#include "tests/faulty_files.h"

namespace pagezip {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Bytes = std::vector<std::byte>;
using Fault = FaultyFiles::Fault;

constexpr int64_t kBudget = 1 << 20;

class DocumentImportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto full = make_full(world_, 39, 17);
    document_ = compress(world_, full, random_kept(world_, 22, prng_));
    scores_ = make_scores(world_, *full);
    FaultyFiles files;
    save_document(
        "there", *document_, identity_of(world_, *document_),
        {"old", "its name", {Scope::Kind::kTenant, "alice"}, 1, 60, true, 1ull << 63, false, {}},
        scores_, files);
    const Opened opened = files.open("there", OpenMode::kRead);
    bytes_.resize(static_cast<size_t>(opened.bytes));
    ASSERT_EQ(opened.file->read_at(0, bytes_).bytes, opened.bytes);
  }

  /// In two pieces. True when the file is there for good.
  bool import(FaultyFiles& files, const Bytes& bytes) const {
    try {
      DocumentImport import(files, "folder", key_);
      import.append(std::span(bytes).first(bytes.size() / 3));
      import.append(std::span(bytes).subspan(bytes.size() / 3));
      EXPECT_EQ(import.verify().listing.name, "its name");
      import.commit(listing_);
      import.keep();
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  /// The folder has the whole document under its new listing, or nothing.
  void expect_sound(FaultyFiles& files, std::optional<bool> is_there) {
    DocumentDirectory directory(files, "folder", world_.shape, kBudget);
    const auto found = directory.take_files();
    EXPECT_EQ(is_there.value_or(!found.empty()), !found.empty());
    EXPECT_EQ(files.names().size(), 1 + found.size()) << "and the lock";
    if (found.empty()) return;
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].key, key_);
    EXPECT_EQ(found[0].header.listing, listing_);
    expect_reads(world_, *directory.read(key_), 4096, *document_);
  }

  Prng prng_{5};
  World world_{{KvType::kF16, KvType::kBF16, 16, 16}, 2, 1, 1, 8, 64};
  std::shared_ptr<const Document> document_;
  std::shared_ptr<const ScoreSet> scores_;
  Bytes bytes_;
  const FileKey key_{"new", 7};
  const DocumentListing listing_{
      "new", "renamed", {Scope::Kind::kTenant, "bob"}, 2, 0, false, 0, true, {{"key", "value"}}};
};

TEST_F(DocumentImportTest, TakesAFileWithANewListing) {
  FaultyFiles files;
  ASSERT_TRUE(import(files, bytes_));
  expect_sound(files, true);
  const Opened opened = files.open("folder/new.7.pgz", OpenMode::kRead);
  Bytes bytes(static_cast<size_t>(opened.bytes));
  opened.file->read_at(0, bytes);
  EXPECT_EQ(bytes.size(), bytes_.size());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_EQ(text.find("alice"), std::string_view::npos);
  EXPECT_EQ(text.find("its name"), std::string_view::npos);
  const DocumentHeader header = read_document_header(InputFile(files, "folder/new.7.pgz"));
  DocumentListing changed = listing_;
  ++changed.revision;
  update_listing(files, "folder/new.7.pgz", changed);
  const DocumentHeader later = read_document_header(InputFile(files, "folder/new.7.pgz"));
  EXPECT_EQ(later.listing, changed);
  EXPECT_EQ(later.content_hash, header.content_hash);
}

TEST_F(DocumentImportTest, LeavesNothingUnlessItIsKept) {
  FaultyFiles files;
  {
    DocumentImport import(files, "folder", key_);
    import.append(bytes_);
  }
  EXPECT_THAT(files.names(), IsEmpty());
  {
    DocumentImport import(files, "folder", key_);
    import.append(bytes_);
    import.commit(listing_);
    EXPECT_THAT(files.names(), testing::ElementsAre("folder/new.7.pgz"));
  }
  EXPECT_THAT(files.names(), IsEmpty());
}

// Of every byte but those of the listings, which are not needed any more.
TEST_F(DocumentImportTest, DamageIsFound) {
  FaultyFiles files;
  const auto error = [&](const Bytes& bytes) {
    return error_of([&] {
      DocumentImport import(files, "folder", key_);
      import.append(bytes);
      import.verify();
    });
  };
  constexpr size_t kSlots = document_file::kSlotsBegin;
  constexpr size_t kSections = document_file::kSectionsBegin;
  for (size_t at = 0; at < bytes_.size(); at += at < kSlots ? 7 : 97) {
    if (at >= kSlots && at < kSections) continue;
    Bytes bytes = bytes_;
    bytes[at] ^= std::byte{0x10};
    ASSERT_EQ(error(bytes).kind(), ErrorKind::kModelFile) << at;
  }
  for (size_t size = 0; size < bytes_.size(); size += 1 + bytes_.size() / 50) {
    ASSERT_EQ(error({bytes_.begin(), bytes_.begin() + static_cast<int64_t>(size)}).kind(),
              ErrorKind::kModelFile)
        << size;
  }
  Bytes unlisted = bytes_;
  std::fill(unlisted.begin() + kSlots, unlisted.begin() + kSections, std::byte{});
  EXPECT_THAT(error(unlisted).what(), HasSubstr("listings"));
  EXPECT_THAT(files.names(), IsEmpty());
}

TEST_F(DocumentImportTest, PowerLossAtEveryCall) {
  FaultyFiles whole;
  ASSERT_TRUE(import(whole, bytes_));
  for (int64_t call = 1; call <= whole.calls(); ++call) {
    SCOPED_TRACE(call);
    for (const auto survival : {FaultyFiles::Survival::kSynced, FaultyFiles::Survival::kEverything,
                                FaultyFiles::Survival::kRandom, FaultyFiles::Survival::kRandom}) {
      FaultyFiles files;
      files.set_fault(Fault::kPowerLoss, call);
      EXPECT_FALSE(import(files, bytes_));
      expect_sound(*files.restarted(survival, prng_), std::nullopt);
    }
  }
  expect_sound(*whole.restarted(FaultyFiles::Survival::kSynced, prng_), true);
}

TEST_F(DocumentImportTest, AFailingDiskLeavesNothing) {
  FaultyFiles whole;
  ASSERT_TRUE(import(whole, bytes_));
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace}) {
    for (int64_t call = 1; call <= whole.calls(); ++call) {
      SCOPED_TRACE(call);
      FaultyFiles files;
      files.set_fault(fault, call);
      const bool done = import(files, bytes_);
      files.set_fault(Fault::kNone, 0);
      expect_sound(files, done);
    }
  }
}

}  // namespace
}  // namespace pagezip
