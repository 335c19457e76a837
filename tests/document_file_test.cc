#include "paging/document_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/prng.h"
#include "tests/fingerprint.h"

namespace pagezip {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<char>;

constexpr uint64_t kModel = 0x0123456789abcdefull;

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

/// The error that `action` ends with; fails the test if there is none.
Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorKind::kRuntime, ""};
}

/// A model of `global` global and `sliding` sliding layers, and its pool.
struct World {
  World(const PageLayout& page, int kv_heads, int global, int sliding, int window,
        int64_t blocks = 4096)
      : groups(make_kv_groups(layers_of(global, sliding), window)),
        pool(KvGeometry{page, kv_heads, static_cast<int>(groups[0].layers.size())}, blocks),
        shape(make_kv_shape(kModel, groups, pool.geometry())) {}

  static std::vector<bool> layers_of(int global, int sliding) {
    std::vector<bool> layers(static_cast<size_t>(global), true);
    layers.resize(layers.size() + static_cast<size_t>(sliding), false);
    return layers;
  }

  std::vector<KvGroup> groups;
  BlockPool pool;
  KvShape shape;
};

uint64_t print_of(int group, int layer, int head, int64_t pair) {
  return Prng((static_cast<uint64_t>(pair) << 24) + static_cast<uint64_t>(layer << 16) +
              static_cast<uint64_t>(head << 8) + static_cast<uint64_t>(group))
      .next();
}

std::shared_ptr<const Document> make_full(World& world, int64_t length, int64_t prefix_length) {
  Sequence sequence(world.pool, world.groups, 0);
  auto reservation = world.pool.reserve(sequence.blocks_needed(length));
  EXPECT_TRUE(reservation.has_value());
  sequence.grow(length, *reservation);
  for (size_t group = 0; group < world.groups.size(); ++group) {
    const Segment segment = sequence.segment(static_cast<int>(group));
    for (int layer = 0; layer < world.shape.groups[group].layers; ++layer) {
      for (int head = 0; head < world.shape.kv_heads; ++head) {
        for (int64_t pair = 0; pair < length; ++pair) {
          write_pair(world.shape.page, segment, layer, head, pair,
                     print_of(static_cast<int>(group), layer, head, pair));
        }
      }
    }
  }
  sequence.drop_behind(length);
  return Document::full(sequence, prefix_length);
}

std::shared_ptr<const Document> compress(World& world, const std::shared_ptr<const Document>& full,
                                         const KeptSets& kept) {
  DocumentBuilder builder(full, kept);
  auto reservation = world.pool.reserve(builder.blocks_needed());
  EXPECT_TRUE(reservation.has_value());
  builder.take_blocks(*reservation);
  for (int layer = 0; layer < kept.layers; ++layer) {
    for (int head = 0; head < kept.heads; ++head) {
      int64_t to = builder.target_first();
      for (uint32_t from : builder.source_pairs(layer, head)) {
        copy_pair(world.shape.page, builder.source(), builder.target(), layer, head, from, to++);
      }
    }
  }
  return builder.finish();
}

/// Every list keeps a share of its own; some keep nothing, some everything.
KeptSets random_kept(const World& world, int64_t own_length, Prng& prng) {
  KeptSets kept{world.shape.groups[0].layers, world.shape.kv_heads, {0}, {}};
  for (int list = 0; list < kept.layers * kept.heads; ++list) {
    const double share = std::clamp(prng.uniform() * 2 - 0.5, 0.0, 1.0);
    for (int64_t pair = 0; pair < own_length; ++pair) {
      if (prng.chance(share)) kept.pairs.push_back(static_cast<uint32_t>(pair));
    }
    kept.first.push_back(kept.pairs.size());
  }
  return kept;
}

DocumentIdentity identity_of(const World& world, const Document& document) {
  DocumentIdentity identity;
  identity.shape = world.shape;
  for (int64_t i = 0; i < document.logical_length(); ++i) {
    (i < document.prefix_length() ? identity.prefix_ids : identity.context_ids)
        .push_back(static_cast<TokenId>(1000 + i));
  }
  identity.scorer = "kvzip";
  identity.chunk_tokens = 2048;
  identity.selector = "global";
  identity.keep_ratio = 0.3;
  identity.min_per_head = 2;
  identity.provenance = "caf\u00e9, test";
  return identity;
}

void expect_same_pairs(const PageLayout& layout, const Segment& a, const Segment& b, int layers) {
  EXPECT_EQ(a.first_page, b.first_page);
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; head < a.heads; ++head) {
      ASSERT_EQ(a.length(layer, head), b.length(layer, head));
      std::vector<std::vector<std::byte>> bytes(2);
      for (int64_t pair = a.first_page * layout.page_tokens; pair < a.length(layer, head); ++pair) {
        for (int side = 0; side < 2; ++side) {
          visit_elements(layout, side == 0 ? a : b, layer, head, pair,
                         [&](const std::byte* at, int64_t size, int) {
                           bytes[static_cast<size_t>(side)].insert(
                               bytes[static_cast<size_t>(side)].end(), at, at + size);
                         });
        }
      }
      ASSERT_TRUE(bytes[0] == bytes[1]) << "layer " << layer << ", head " << head;
    }
  }
}

void expect_same_document(const World& world, const Document& a, const Document& b) {
  EXPECT_EQ(a.logical_length(), b.logical_length());
  EXPECT_EQ(a.prefix_length(), b.prefix_length());
  EXPECT_TRUE(b.compressed());
  EXPECT_EQ(a.global_layers(), b.global_layers());
  EXPECT_EQ(a.pages_used(), b.pages_used());
  EXPECT_EQ(a.blocks_held(), b.blocks_held());
  EXPECT_EQ(a.kv_bytes(), b.kv_bytes());
  ASSERT_EQ(a.groups(), b.groups());
  for (int group = 0; group < a.groups(); ++group) {
    expect_same_pairs(world.shape.page, a.segment(group), b.segment(group),
                      world.shape.groups[static_cast<size_t>(group)].layers);
  }
}

class DocumentFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "document_file_test." + std::to_string(getpid());
    std::filesystem::create_directory(folder_);
    path_ = folder_ + "/a.document";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  /// A file of few bytes with all that a file can have.
  void save_small() {
    const auto full = make_full(small_, 39, 17);
    document_ = compress(small_, full, {1, 2, {0, 20, 20}, first_pairs(20)});
    save_document(path_, *document_, identity_of(small_, *document_));
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

  std::string folder_;
  std::string path_;
  World small_{{KvType::kF16, KvType::kBF16, 16, 16}, 2, 1, 1, 8, 64};
  std::shared_ptr<const Document> document_;
};

TEST_F(DocumentFileTest, RoundTripsRandomDocuments) {
  Prng prng(7);
  const KvType types[] = {KvType::kF32, KvType::kF16, KvType::kBF16};
  for (int page_tokens : {16, 32, 64}) {
    for (int round = 0; round < 12; ++round) {
      const PageLayout page{types[round % 3], types[prng.below(3)], page_tokens,
                            round % 2 == 0 ? 16 : 32};
      World world(page, static_cast<int>(prng.range(1, 3)), static_cast<int>(prng.range(1, 3)),
                  static_cast<int>(prng.range(0, 5)), static_cast<int>(prng.range(1, 90)));
      const int64_t length = prng.range(1, 150);
      // No prefix, a partial block, whole blocks, all of the text.
      const int64_t prefix = std::min(length, round % 4 == 0   ? 0
                                              : round % 4 == 1 ? prng.range(0, 100)
                                              : round % 4 == 2 ? int64_t{page_tokens}
                                                               : length);
      const auto full = make_full(world, length, prefix);
      const auto document = compress(world, full, random_kept(world, length - prefix, prng));
      save_document(path_, *document, identity_of(world, *document));
      const LoadedDocument loaded = load_document(path_, world.pool, world.shape);
      expect_same_document(world, *document, *loaded.document);
      std::vector<uint32_t> pins(4096, 0);
      full->count_refs(pins);
      document->count_refs(pins);
      loaded.document->count_refs(pins);
      EXPECT_EQ(world.pool.audit_owners(pins, 0), "");

      // Equal documents are equal files, whatever lay in the pool's blocks before.
      const Bytes bytes = read_file(path_);
      save_document(path_, *loaded.document, loaded.identity);
      EXPECT_TRUE(read_file(path_) == bytes);
    }
  }
}

TEST_F(DocumentFileTest, KeepsTheIdentity) {
  save_small();
  const DocumentIdentity saved = identity_of(small_, *document_);
  const DocumentHeader header = read_document_header(path_);
  for (const DocumentIdentity& read :
       {load_document(path_, small_.pool, small_.shape).identity, header.identity}) {
    EXPECT_EQ(read.shape.model_fingerprint, kModel);
    EXPECT_EQ(read.shape.groups, small_.shape.groups);
    EXPECT_EQ(read.shape.kv_heads, 2);
    EXPECT_TRUE(read.shape.page == small_.shape.page);
    EXPECT_EQ(read.shape.page_version, PageLayout::kVersion);
    EXPECT_EQ(read.prefix_ids, saved.prefix_ids);
    EXPECT_EQ(read.context_ids, saved.context_ids);
    EXPECT_EQ(read.scorer, "kvzip");
    EXPECT_EQ(read.chunk_tokens, 2048);
    EXPECT_EQ(read.selector, "global");
    EXPECT_EQ(read.keep_ratio, 0.3);
    EXPECT_EQ(read.min_per_head, 2);
    EXPECT_EQ(read.provenance, "caf\u00e9, test");
  }
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
  save_document(path_, *document_, identity_of(small_, *document_));
  EXPECT_TRUE(read_file(path_) == bytes);
}

TEST_F(DocumentFileTest, EveryTruncationIsAnError) {
  save_small();
  const auto size = static_cast<int64_t>(read_file(path_).size());
  ASSERT_LT(size, 10'000);
  for (int64_t length = size - 1; length >= 0; --length) {
    ASSERT_EQ(truncate(path_.c_str(), length), 0);
    ASSERT_EQ(load_error(small_.shape).kind(), ErrorKind::kModelFile);
    const Error error = error_of([&] { read_document_header(path_); });
    ASSERT_THAT(error.what(), HasSubstr(length < 128 ? "too short" : "truncated"));
  }
  expect_no_leak();
}

TEST_F(DocumentFileTest, EveryFlippedByteIsAnError) {
  save_small();
  Bytes bytes = read_file(path_);
  Prng prng(1);
  for (size_t at = 0; at < bytes.size(); ++at) {
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

/// Makes the hashes of header, lengths and preamble right again.
void rehash(Bytes& bytes) {
  uint64_t end = 128;
  for (size_t section = 0; section < 4; ++section) {
    uint64_t size = 0;
    std::memcpy(&size, &bytes[24 + 16 * section], 8);
    const uint64_t stored = (size + 63) / 64 * 64;
    if (stored < size || stored > bytes.size() - end) break;  // ends behind the file
    const uint64_t hash = XXH3_64bits(bytes.data() + end, stored);
    std::memcpy(&bytes[32 + 16 * section], &hash, 8);
    end += stored;
  }
  const uint64_t hash = XXH3_64bits(bytes.data(), 120);
  std::memcpy(&bytes[120], &hash, 8);
}

TEST_F(DocumentFileTest, ForgedNumbersNeverCrash) {
  save_small();
  const Bytes good = read_file(path_);
  const size_t metadata_end = 128 + 512 + 64;
  const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
  int errors = 0;
  for (size_t at = 8; at < metadata_end; ++at) {
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
         [](KvShape& shape) { shape.model_fingerprint = 5; });
  expect("KV heads: 2 instead of 4", [](KvShape& shape) { shape.kv_heads = 4; });
  expect("head length 16 instead of 64", [](KvShape& shape) { shape.page.head_dim = 64; });
  expect("type of keys f16 instead of f32",
         [](KvShape& shape) { shape.page.k_type = KvType::kF32; });
  expect("type of values bf16 instead of f16",
         [](KvShape& shape) { shape.page.v_type = KvType::kF16; });
  expect("tokens per page: 16 instead of 32", [](KvShape& shape) { shape.page.page_tokens = 32; });
  expect("page version 0 instead of 9", [](KvShape& shape) { shape.page_version = 9; });
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
  expect(folder_ + "/none", "No such file");
  expect(folder_, "is not a regular file");
  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  expect(folder_ + "/pipe", "is not a regular file");
  write_file(path_, Bytes(500, 'x'));
  expect(path_, "is not a document file");
  save_small();
  Bytes bytes = read_file(path_);
  bytes.push_back('x');
  write_file(path_, bytes);
  expect(path_, "is too long");
  bytes[8] = 1;
  write_file(path_, bytes);
  expect(path_, "is a document file of version 1; version 0 is supported");
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

TEST_F(DocumentFileTest, RefusesAFullDocumentAndControlCharacters) {
  const auto full = make_full(small_, 39, 17);
  Error error = error_of([&] { save_document(path_, *full, identity_of(small_, *full)); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  save_small();
  for (const std::string& text : {std::string("a\x1b[31m"), std::string(5000, 'a')}) {
    DocumentIdentity identity = identity_of(small_, *document_);
    identity.provenance = text;
    error = error_of([&] { save_document(path_, *document_, identity); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
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

  const Error no_folder = error_of([&] { save(folder_ + "/none/a"); });
  EXPECT_EQ(no_folder.kind(), ErrorKind::kOutput);
  EXPECT_THAT(no_folder.what(), HasSubstr("No such file or directory"));
  std::filesystem::create_directory(folder_ + "/b");
  const Error is_folder = error_of([&] { save(folder_ + "/b"); });
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
  save_document(path_, *document_, identity_of(small_, *document_));
  EXPECT_EQ(reader.get(), 'x');
  EXPECT_TRUE(read_file(path_) == bytes);
  EXPECT_THAT(files(), ::testing::ElementsAre("a.document"));
}

}  // namespace
}  // namespace pagezip
