#include "paging/document_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "base/prng.h"
#include "paging/document_file_format.h"
#include "tests/document_world.h"
#include "tests/temp_folder.h"

namespace pagezip {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<char>;

constexpr size_t kSlotBegin = document_file::kSlotsBegin;
constexpr size_t kSlotBytes = sizeof(document_file::ListingSlot);

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Writes into a file of that size; many times faster than to make it anew.
void overwrite(const std::string& path, const Bytes& bytes) {
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class DocumentFileTest : public ::testing::Test {
 protected:
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  /// A file of few bytes with all that a file can have.
  void save_small() {
    const auto full = make_full(small_, 39, 17);
    document_ = compress(small_, full, {1, 2, {0, 20, 20}, first_pairs(20)});
    scores_ = make_scores(small_, *document_);
    save_small_again();
  }
  void save_small_again() {
    save_document(path_, *document_, identity_of(small_, *document_), listing_, scores_);
  }
  /// Nothing but what save_small() made is held.
  void expect_no_leak() {
    EXPECT_EQ(small_.pool.blocks_in_use(), document_->blocks_held());
    EXPECT_EQ(small_.pool.blocks_reserved(), 0);
  }
  static std::vector<uint32_t> first_pairs(uint32_t count) {
    std::vector<uint32_t> pairs;
    for (uint32_t pair = 0; pair < count; ++pair) pairs.push_back(pair);
    return pairs;
  }
  Error load_error(const KvShape& expected) {
    return error_of([&] { load_document(path_, small_.pool, expected); });
  }

  const TempFolder folder_;
  const std::string path_ = folder_.path("a.document");
  World small_{{KvType::kF16, KvType::kBF16, 16, 16}, 2, 1, 1, 8, 64};
  std::shared_ptr<const Document> document_;
  std::shared_ptr<const ScoreSet> scores_;
  DocumentListing listing_{"doc_0a", "a name", {Scope::Kind::kGroup, "all"},  1795988996, 60, true,
                           3,        false,    {{"source", "a\nb"}, {"", ""}}};
};

TEST_F(DocumentFileTest, RoundTripsRandomDocuments) {
  Prng prng(7);
  const KvType types[] = {KvType::kF32, KvType::kF16, KvType::kBF16};
  for (int page_tokens : {16, 32, 64}) {
    for (int round = 0; round < 12; ++round) {
      const PageLayout page{types[round % 3], types[prng.below(3)], page_tokens,
                            round % 2 == 0 ? 16 : 32,
                            round % 4 == 3 ? KeyOrder::kPlain : KeyOrder::kTransposed};
      World world(page, static_cast<int>(prng.range(1, 3)), static_cast<int>(prng.range(1, 3)),
                  static_cast<int>(prng.range(0, 5)), static_cast<int>(prng.range(1, 90)));
      const int64_t length = prng.range(1, 150);
      // No prefix, a partial block, whole blocks, all of the text.
      const int64_t prefix = std::min(length, round % 4 == 0   ? 0
                                              : round % 4 == 1 ? prng.range(0, 100)
                                              : round % 4 == 2 ? int64_t{page_tokens}
                                                               : length);
      const auto full = make_full(world, length, prefix);
      const auto document =
          round % 5 == 4 ? full : compress(world, full, random_kept(world, length - prefix, prng));
      const auto scores = round % 3 == 0 ? make_scores(world, *document) : nullptr;
      save_document(path_, *document, identity_of(world, *document), {}, scores);
      const LoadedDocument loaded = load_document(path_, world.pool, world.shape);
      EXPECT_EQ(read_document_scores(path_) == nullptr, loaded.scores == nullptr);
      expect_same_document(world, *document, *loaded.document);
      std::vector<uint32_t> pins(4096, 0);
      if (document != full) full->count_refs(pins);
      document->count_refs(pins);
      loaded.document->count_refs(pins);
      EXPECT_EQ(world.pool.audit_owners(pins, 0), "");

      // Equal documents are equal files, whatever lay in the pool's blocks before.
      const Bytes bytes = read_file(path_);
      save_document(path_, *loaded.document, loaded.header.identity, {}, loaded.scores);
      EXPECT_TRUE(read_file(path_) == bytes);
    }
  }
}

TEST_F(DocumentFileTest, KeepsTheIdentity) {
  save_small();
  const DocumentIdentity saved = identity_of(small_, *document_);
  const DocumentHeader header = read_document_header(path_);
  for (const DocumentIdentity& read :
       {load_document(path_, small_.pool, small_.shape).header.identity, header.identity}) {
    EXPECT_EQ(read.shape.model, kTestModel);
    EXPECT_EQ(read.shape.groups, small_.shape.groups);
    EXPECT_EQ(read.shape.kv_heads, 2);
    EXPECT_TRUE(read.shape.page == small_.shape.page);
    EXPECT_EQ(read.shape.page.key_order, KeyOrder::kTransposed);
    EXPECT_EQ(read.prefix_ids, saved.prefix_ids);
    EXPECT_EQ(read.context_ids, saved.context_ids);
    EXPECT_EQ(read.scorer, "kvzip");
    EXPECT_EQ(read.scorer_version, 3u);
    EXPECT_EQ(read.chunk_tokens, 2048);
    EXPECT_EQ(read.version, (VersionIdentity{false, "global", 0.3, 2}));
    EXPECT_EQ(read.provenance, "caf\u00e9, test");
    EXPECT_EQ(canonical_record(read), canonical_record(saved));
  }
  EXPECT_EQ(header.listing, listing_);
  EXPECT_TRUE(header.has_scores);
  EXPECT_EQ(load_document(path_, small_.pool, small_.shape).scores->scores, scores_->scores);
  EXPECT_EQ(read_document_scores(path_)->scores, scores_->scores);
  EXPECT_EQ(header.lengths, (std::vector<uint32_t>{37, 17}));
  EXPECT_EQ(header.logical_length(), 39);
  EXPECT_EQ(header.file_bytes, static_cast<int64_t>(std::filesystem::file_size(path_)));
}

TEST_F(DocumentFileTest, WritesNothingOfOtherDocuments) {
  save_small();
  const Bytes bytes = read_file(path_);
  // Whatever lies behind the ends of the lists.
  for (const int head : {0, 1}) {
    const Segment segment = document_->segment(0);
    const int64_t length = segment.length(0, head);
    for (int64_t pair = length; pair % 16 != 0; ++pair) {
      write_pair(small_.shape.page, segment, 0, head, pair, 0xdeadbeef);
    }
  }
  save_small_again();
  EXPECT_TRUE(read_file(path_) == bytes);
}

TEST_F(DocumentFileTest, EveryTruncationIsAnError) {
  save_small();
  const auto size = static_cast<int64_t>(read_file(path_).size());
  ASSERT_LT(size, 40'000);
  for (int64_t length = size - 1; length >= 0; --length) {
    // Most of a listing's slot is what no metadata filled.
    if (length > document_file::kSlotsBegin && length < document_file::kSectionsBegin - 64) {
      length = std::max<int64_t>(length - 97, document_file::kSlotsBegin);
    }
    ASSERT_EQ(truncate(path_.c_str(), length), 0);
    ASSERT_EQ(load_error(small_.shape).kind(), ErrorKind::kModelFile);
    const Error error = error_of([&] { read_document_header(path_); });
    ASSERT_THAT(error.what(),
                HasSubstr(length < document_file::kSlotsBegin ? "too short" : "truncated"));
  }
  expect_no_leak();
}

TEST_F(DocumentFileTest, EveryFlippedByteIsAnError) {
  save_small();
  Bytes bytes = read_file(path_);
  Prng prng(1);
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (at == kSlotBegin + kSlotBytes) at += kSlotBytes;  // the listing that was never written
    const auto mask = static_cast<char>(prng.range(1, 255));
    bytes[at] = static_cast<char>(bytes[at] ^ mask);
    overwrite(path_, bytes);
    bytes[at] = static_cast<char>(bytes[at] ^ mask);
    const Error error = load_error(small_.shape);
    ASSERT_EQ(error.kind(), ErrorKind::kModelFile) << at;
    ASSERT_THAT(error.what(), HasSubstr(path_)) << at;
  }
  expect_no_leak();
  overwrite(path_, bytes);
  expect_same_document(small_, *document_,
                       *load_document(path_, small_.pool, small_.shape).document);
}

/// Makes the hashes right again, as far as the sections lie inside the file.
void rehash(Bytes& bytes) {
  using namespace document_file;  // NOLINT(google-build-using-namespace): its bytes are our input
  Preamble preamble;
  ListingSlot slot;
  std::memcpy(&preamble, bytes.data(), sizeof(preamble));
  std::memcpy(&slot, bytes.data() + kSlotBegin, sizeof(slot));
  uint64_t end = kSectionsBegin;
  for (Section& section : preamble.section) {
    const uint64_t stored = (section.bytes + 63) / 64 * 64;
    if (stored < section.bytes || stored > bytes.size() - end) break;
    section.hash = hash_of(std::as_bytes(std::span(bytes)).subspan(end, stored));
    end += stored;
  }
  preamble.hash = preamble_hash(preamble);
  slot.hash = slot_hash(slot);
  std::memcpy(bytes.data(), &preamble, sizeof(preamble));
  std::memcpy(bytes.data() + kSlotBegin, &slot, sizeof(slot));
}

TEST_F(DocumentFileTest, ForgedNumbersNeverCrash) {
  save_small();
  const Bytes good = read_file(path_);
  const size_t header_end = document_file::kSectionsBegin + 512 + 64;
  // Most of a listing's slot is what no metadata filled.
  const size_t slot_end = kSlotBegin + 512 + 64;
  const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
  int errors = 0;
  for (size_t at = 8; at < header_end; ++at) {
    if (at == slot_end) at = document_file::kSectionsBegin;
    for (const uint8_t value : values) {
      // Single bytes, and numbers of four and eight of them.
      for (const size_t width : {1u, 4u, 8u}) {
        if (at % std::min<size_t>(width, 4) != 0) continue;
        Bytes bytes = good;
        std::fill_n(bytes.begin() + static_cast<int64_t>(at), width, static_cast<char>(value));
        rehash(bytes);
        overwrite(path_, bytes);
        try {
          read_document_header(path_);
          load_document(path_, small_.pool, small_.shape);
        } catch (const Error& error) {
          ASSERT_EQ(error.kind(), ErrorKind::kModelFile) << at;
          ++errors;
        }
      }
    }
  }
  EXPECT_GT(errors, 1000);
  expect_no_leak();
}

TEST_F(DocumentFileTest, NamesWhatDoesNotFit) {
  save_small();
  const auto expect = [&](const char* what, const std::function<void(KvShape&)>& change) {
    KvShape shape = small_.shape;
    change(shape);
    World other(shape.page, shape.kv_heads, shape.groups[0].layers, 1, 8, 64);
    const Error error = error_of([&] { load_document(path_, other.pool, shape); });
    EXPECT_EQ(error.kind(), ErrorKind::kModelFile);
    EXPECT_THAT(error.what(), HasSubstr(what));
  };
  expect("fingerprint 0123456789abcdef instead of 0000000000000005",
         [](KvShape& shape) { shape.model.weights = 5; });
  expect("tokenizer 0000000000001111 instead of 0000000000000006",
         [](KvShape& shape) { shape.model.tokenizer = 6; });
  expect("RoPE configuration 0000000000002222 instead of 0000000000000007",
         [](KvShape& shape) { shape.model.rope = 7; });
  expect("chat template 0000000000003333 instead of 0000000000000008",
         [](KvShape& shape) { shape.model.chat_template = 8; });
  expect("KV heads: 2 instead of 4", [](KvShape& shape) { shape.kv_heads = 4; });
  expect("head length 16 instead of 64", [](KvShape& shape) { shape.page.head_dim = 64; });
  expect("type of keys f16 instead of f32",
         [](KvShape& shape) { shape.page.k_type = KvType::kF32; });
  expect("type of values bf16 instead of f16",
         [](KvShape& shape) { shape.page.v_type = KvType::kF16; });
  expect("tokens per page: 16 instead of 32", [](KvShape& shape) { shape.page.page_tokens = 32; });
  expect("order of keys transposed instead of plain",
         [](KvShape& shape) { shape.page.key_order = KeyOrder::kPlain; });
  expect("1 layers of window 8 instead of 1 layers of window 0, 1 layers of window 9",
         [](KvShape& shape) { shape.groups[1].window = 9; });
  expect("instead of 3 layers", [](KvShape& shape) { shape.groups[0].layers = 3; });
  expect("instead of 1 layers of window 0", [](KvShape& shape) { shape.groups.pop_back(); });
}

TEST_F(DocumentFileTest, RefusesWhatIsNoDocumentFile) {
  const auto expect = [&](const std::string& path, const char* what) {
    const Error error = error_of([&] { load_document(path, small_.pool, small_.shape); });
    EXPECT_EQ(error.kind(), ErrorKind::kModelFile);
    EXPECT_THAT(error.what(), HasSubstr(path + ": " + what));
  };
  expect(folder_.path("none"), "No such file");
  expect(folder_.path(), "is not a regular file");
  ASSERT_EQ(mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  expect(folder_.path("pipe"), "is not a regular file");
  write_file(path_, Bytes(5000, 'x'));
  expect(path_, "is not a document file");
  save_small();
  Bytes bytes = read_file(path_);
  bytes.push_back('x');
  write_file(path_, bytes);
  expect(path_, "is too long");
  bytes[8] = 0;
  write_file(path_, bytes);
  expect(path_, "is a document file of version 0; version 2 is supported");
}

TEST_F(DocumentFileTest, PoolTooSmallIsOutOfMemory) {
  save_small();
  World tiny(small_.shape.page, 2, 1, 1, 8, document_->blocks_held() - 1);
  const Error error = error_of([&] { load_document(path_, tiny.pool, tiny.shape); });
  EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  EXPECT_EQ(tiny.pool.blocks_in_use(), 0);
  World enough(small_.shape.page, 2, 1, 1, 8, document_->blocks_held());
  EXPECT_EQ(load_document(path_, enough.pool, enough.shape).document->blocks_held(),
            document_->blocks_held());
}

TEST_F(DocumentFileTest, RefusesControlCharacters) {
  save_small();
  for (const std::string& text : {std::string("a\x1b[31m"), std::string(5000, 'a')}) {
    DocumentIdentity identity = identity_of(small_, *document_);
    identity.provenance = text;
    EXPECT_EQ(error_of([&] { save_document(path_, *document_, identity); }).kind(),
              ErrorKind::kUsage);
  }
}

TEST_F(DocumentFileTest, FailedSaveSaysWhyAndLeavesTheOldFile) {
  save_small();
  const Bytes old = read_file(path_);
  const auto save = [&](const std::string& path) {
    save_document(path, *document_, identity_of(small_, *document_));
  };
  // A full disk, as far as a process can make one: writes behind 3000 bytes fail.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{3000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  std::optional<Error> error;
  try {
    save(path_);
  } catch (const Error& e) {
    error = e;
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kOutput);
  EXPECT_THAT(error->what(), HasSubstr("cannot write " + path_ + ": File too large"));
  EXPECT_TRUE(read_file(path_) == old);

  const Error no_folder = error_of([&] { save(folder_.path("none/a")); });
  EXPECT_EQ(no_folder.kind(), ErrorKind::kOutput);
  EXPECT_THAT(no_folder.what(), HasSubstr("No such file or directory"));
  std::filesystem::create_directory(folder_.path("b"));
  const Error is_folder = error_of([&] { save(folder_.path("b")); });
  EXPECT_EQ(is_folder.kind(), ErrorKind::kOutput);
  EXPECT_THAT(is_folder.what(), HasSubstr("Is a directory"));
  // /proc takes no new files from anybody, root included.
  EXPECT_EQ(error_of([&] { save("/proc/a"); }).kind(), ErrorKind::kOutput);
  EXPECT_THAT(files(), ::testing::UnorderedElementsAre("a.document", "b"));
}

TEST_F(DocumentFileTest, SaveReplacesTheOldFileWhole) {
  save_small();
  const Bytes bytes = read_file(path_);
  write_file(path_, Bytes(100'000, 'x'));
  std::ifstream reader(path_, std::ios::binary);  // goes on with the old file
  save_small_again();
  EXPECT_EQ(reader.get(), 'x');
  EXPECT_TRUE(read_file(path_) == bytes);
  EXPECT_THAT(files(), ::testing::ElementsAre("a.document"));
}

TEST_F(DocumentFileTest, NoFilesForAModelWithoutGlobalLayers) {
  World sliding({KvType::kF16, KvType::kF16, 16, 16}, 1, 0, 2, 8, 64);
  const auto full = make_full(sliding, 20, 4);
  const Error error = error_of([&] { save_document(path_, *full, identity_of(sliding, *full)); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
}

TEST_F(DocumentFileTest, TheListingChangesAndNothingElse) {
  save_small();
  const Bytes before = read_file(path_);
  for (int change = 0; change < 5; ++change) {
    ++listing_.revision;
    listing_.name = "name " + std::to_string(change);
    listing_.pinned = !listing_.pinned;
    update_listing(system_files(), path_, listing_);
    EXPECT_EQ(read_document_header(path_).listing, listing_);
  }
  Bytes after = read_file(path_);
  ASSERT_EQ(after.size(), before.size());
  EXPECT_TRUE(std::equal(after.begin(), after.begin() + kSlotBegin, before.begin()));
  const auto rest = document_file::kSectionsBegin;
  EXPECT_TRUE(std::equal(after.begin() + rest, after.end(), before.begin() + rest));

  // Five changes: the newest lies in the second slot. Torn, the one before it counts.
  after[kSlotBegin + kSlotBytes + 40] ^= 1;
  write_file(path_, after);
  EXPECT_EQ(read_document_header(path_).listing.name, "name 3");
  listing_.name = "mended";
  update_listing(system_files(), path_, listing_);
  EXPECT_EQ(read_document_header(path_).listing, listing_);
  after[kSlotBegin + 40] ^= 1;
  write_file(path_, after);
  EXPECT_THAT(error_of([&] { read_document_header(path_); }).what(), HasSubstr("listings"));
}

TEST_F(DocumentFileTest, SlicesAreSmallAndLeaveTheNameAlone) {
  World world({KvType::kF16, KvType::kF16, 16, 64}, 2, 2, 0, 0, 4096);
  const auto full = make_full(world, 1500, 10);
  DocumentImage image(*full, identity_of(world, *full), make_scores(world, *full));
  const int64_t file_bytes = image.file_bytes();
  ASSERT_GT(file_bytes, 1 << 20);
  constexpr int64_t kSlice = 100'000;
  DocumentFileWriter writer(system_files(), path_, std::move(image), listing_);
  int64_t steps = 1;
  for (; writer.step(kSlice); ++steps) EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(std::filesystem::file_size(path_), static_cast<uint64_t>(file_bytes));
  EXPECT_NEAR(static_cast<double>(steps), static_cast<double>(file_bytes) / kSlice, 5);

  DocumentFileReader reader(system_files(), path_, world.shape);
  auto blocks =
      world.pool.reserve(Document::blocks_for(world.pool.geometry(), reader.header().shape()));
  const auto document = Document::blank(world.pool, reader.header().shape(), *blocks);
  reader.fill(*document);
  for (steps = 1; reader.step(kSlice);) ++steps;
  EXPECT_NEAR(static_cast<double>(steps), static_cast<double>(file_bytes) / kSlice, 5);
  expect_same_document(world, *full, *document);
}

TEST_F(DocumentFileTest, AWriterThatEndsEarlyLeavesNothing) {
  save_small();
  const Bytes old = read_file(path_);
  {
    DocumentFileWriter writer(system_files(), path_,
                              DocumentImage(*document_, identity_of(small_, *document_), nullptr),
                              listing_);
    EXPECT_TRUE(writer.step(3000));
    EXPECT_EQ(files().size(), 2u);
  }
  EXPECT_THAT(files(), ::testing::ElementsAre("a.document"));
  EXPECT_TRUE(read_file(path_) == old);
}

}  // namespace
}  // namespace pagezip
