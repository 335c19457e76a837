#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "paging/document_file.h"
#include "paging/document_file_format.h"
#include "paging/file_io.h"

namespace pagezip {
namespace {

using namespace document_file;  // NOLINT(google-build-using-namespace): this file is its other half

// One section from front to end, hashed as it passes.
class SectionReader {
 public:
  SectionReader(const InputFile& file, const Preamble& preamble, SectionIndex index)
      : file_(file), section_(preamble.section[index]), name_(kSectionNames[index]) {
    offset_ = sizeof(Preamble);
    for (size_t i = 0; i < index; ++i) {
      offset_ += padded(static_cast<int64_t>(preamble.section[i].bytes));
    }
    end_ = offset_ + padded(static_cast<int64_t>(section_.bytes));
  }

  /// REQUIRES: the section has that many bytes left.
  void read(std::span<std::byte> target) {
    while (!target.empty()) {
      if (used_ == buffer_.size()) {
        fill();
      }
      const size_t count = std::min(target.size(), buffer_.size() - used_);
      std::memcpy(target.data(), buffer_.data() + used_, count);
      used_ += count;
      target = target.subspan(count);
    }
  }
  /// REQUIRES: only padding is left.
  void finish() {
    CHECK_LT(end_ - offset_ + static_cast<int64_t>(buffer_.size() - used_), kAlignment);
    if (offset_ < end_) {
      fill();
    }
    if (hasher_.digest() != section_.hash) {
      file_.fail(fmt::format("is damaged: the hash of its {} is wrong", name_));
    }
  }

 private:
  void fill() {
    CHECK_LT(offset_, end_);
    buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, end_ - offset_)));
    file_.read_at(offset_, buffer_);
    hasher_.update(buffer_);
    offset_ += static_cast<int64_t>(buffer_.size());
    used_ = 0;
  }

  const InputFile& file_;
  Section section_;
  const char* name_;
  Hasher hasher_;
  std::vector<std::byte> buffer_;
  size_t used_ = 0;     // bytes of the buffer
  int64_t offset_ = 0;  // behind the buffer
  int64_t end_ = 0;
};

Preamble read_preamble(const InputFile& file) {
  Preamble preamble;
  const Preamble good;
  if (file.size() < static_cast<int64_t>(sizeof(preamble))) {
    file.fail("is too short for a document file");
  }
  file.read_at(0, std::as_writable_bytes(std::span(&preamble, 1)));
  if (std::memcmp(preamble.magic, good.magic, sizeof(good.magic)) != 0) {
    file.fail("is not a document file");
  }
  if (preamble.version != kVersion) {
    file.fail(fmt::format("is a document file of version {}; version {} is supported",
                          preamble.version, kVersion));
  }
  if (preamble.hash != preamble_hash(preamble)) {
    file.fail("is damaged: the hash of its preamble is wrong");
  }
  const auto file_bytes = static_cast<uint64_t>(file.size());
  if (preamble.file_bytes != file_bytes) {
    file.fail(fmt::format("is {}: it has {} bytes instead of {}",
                          file_bytes < preamble.file_bytes ? "truncated" : "too long", file_bytes,
                          preamble.file_bytes));
  }
  uint64_t end = sizeof(Preamble);
  for (const Section& section : preamble.section) {
    if (section.bytes > file_bytes) {
      file.fail("has a section that ends behind the file");
    }
    end += static_cast<uint64_t>(padded(static_cast<int64_t>(section.bytes)));
  }
  if (preamble.sections != kSections || end != file_bytes ||
      preamble.section[kHeader].bytes > kMetadataBytesMax ||
      preamble.section[kLengths].bytes > kMetadataBytesMax) {
    file.fail("has sections of wrong sizes");
  }
  return preamble;
}

std::vector<std::byte> read_section(const InputFile& file, const Preamble& preamble,
                                    SectionIndex index) {
  std::vector<std::byte> bytes(preamble.section[index].bytes);
  SectionReader reader(file, preamble, index);
  reader.read(bytes);
  reader.finish();
  return bytes;
}

// Values of the header section, each checked against the bytes that are left.
class HeaderReader {
 public:
  HeaderReader(const InputFile& file, std::span<const std::byte> bytes)
      : file_(file), bytes_(bytes) {}

  [[noreturn]] void fail(const char* what) const {
    file_.fail(fmt::format("has a header with a wrong {}", what));
  }
  template <typename T>
  T value(const char* what) {
    T value;
    copy(what, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  /// A uint32 in [low, high].
  int small(const char* what, uint32_t low, uint32_t high) {
    const auto number = value<uint32_t>(what);
    if (number < low || number > high) {
      fail(what);
    }
    return static_cast<int>(number);
  }
  std::vector<TokenId> ids(const char* what) {
    std::vector<TokenId> ids(count(what, sizeof(TokenId)));
    copy(what, std::as_writable_bytes(std::span(ids)));
    if (std::any_of(ids.begin(), ids.end(), [](TokenId id) { return id < 0; })) {
      fail(what);
    }
    return ids;
  }
  std::string text(const char* what) {
    std::string text(count(what, 1), '\0');
    copy(what, std::as_writable_bytes(std::span(text)));
    if (!is_plain_text(text)) {
      fail(what);
    }
    return text;
  }
  int64_t non_negative(const char* what) {
    const auto number = value<int64_t>(what);
    if (number < 0) {
      fail(what);
    }
    return number;
  }
  void finish() const {
    if (!bytes_.empty()) {
      fail("size");
    }
  }

 private:
  size_t count(const char* what, size_t element_bytes) {
    const auto count = value<uint64_t>(what);
    if (count > bytes_.size() / element_bytes) {
      fail(what);
    }
    return count;
  }
  void copy(const char* what, std::span<std::byte> target) {
    if (target.size() > bytes_.size()) {
      fail(what);
    }
    std::copy_n(bytes_.begin(), target.size(), target.begin());
    bytes_ = bytes_.subspan(target.size());
  }

  const InputFile& file_;
  std::span<const std::byte> bytes_;
};

KvShape read_shape(HeaderReader& reader) {
  constexpr auto kTypeMax = static_cast<uint32_t>(KvType::kBF16);
  constexpr uint32_t kIntMax = std::numeric_limits<int32_t>::max();
  KvShape shape;
  shape.model_fingerprint = reader.value<uint64_t>("fingerprint");
  shape.page_version = reader.value<uint32_t>("page version");
  shape.page.k_type = static_cast<KvType>(reader.small("KV type", 0, kTypeMax));
  shape.page.v_type = static_cast<KvType>(reader.small("KV type", 0, kTypeMax));
  shape.page.page_tokens = reader.small("page size", 16, 64);
  shape.page.head_dim = reader.small("head length", 16, 1024);
  if (!std::has_single_bit(static_cast<uint32_t>(shape.page.page_tokens))) {
    reader.fail("page size");
  }
  if (shape.page.head_dim % 16 != 0) {
    reader.fail("head length");
  }
  shape.kv_heads = reader.small("number of KV heads", 1, kHeadsMax);
  shape.groups.resize(static_cast<size_t>(reader.small("number of KV groups", 1, kGroupsMax)));
  for (KvGroupShape& group : shape.groups) {
    const bool global = &group == shape.groups.data();
    group.layers = reader.small("number of layers", 1, kLayersMax);
    group.window = reader.small("window", global ? 0 : 1, global ? 0 : kIntMax);
  }
  return shape;
}

// What metadata says, checked in itself.
struct Metadata {
  DocumentIdentity identity;
  CompressedShape compressed;
};

void read_header(const InputFile& file, const Preamble& preamble, Metadata& metadata) {
  const std::vector<std::byte> bytes = read_section(file, preamble, kHeader);
  HeaderReader reader(file, bytes);
  DocumentIdentity& identity = metadata.identity;
  CompressedShape& compressed = metadata.compressed;
  identity.shape = read_shape(reader);
  for (size_t group = 1; group < identity.shape.groups.size(); ++group) {
    compressed.first_pages.push_back(reader.non_negative("window"));
  }
  identity.prefix_ids = reader.ids("prefix");
  identity.context_ids = reader.ids("text");
  identity.scorer = reader.text("scorer");
  identity.chunk_tokens = reader.non_negative("chunk size");
  identity.selector = reader.text("selector");
  identity.keep_ratio = reader.value<double>("keep ratio");
  if (!(identity.keep_ratio >= 0 && identity.keep_ratio <= 1)) {
    reader.fail("keep ratio");
  }
  identity.min_per_head = reader.non_negative("minimum per head");
  identity.provenance = reader.text("provenance");
  reader.finish();

  compressed.prefix_length = static_cast<int64_t>(identity.prefix_ids.size());
  compressed.logical_length =
      compressed.prefix_length + static_cast<int64_t>(identity.context_ids.size());
  for (size_t group = 1; group < identity.shape.groups.size(); ++group) {
    const int64_t behind = compressed.logical_length - identity.shape.groups[group].window + 1;
    const int64_t first = std::max<int64_t>(behind, 0) / identity.shape.page.page_tokens;
    if (compressed.first_pages[group - 1] != first) {
      reader.fail("window");
    }
  }
}

void read_lengths(const InputFile& file, const Preamble& preamble, Metadata& metadata) {
  const KvShape& shape = metadata.identity.shape;
  CompressedShape& compressed = metadata.compressed;
  const uint64_t lists =
      static_cast<uint64_t>(shape.groups[0].layers) * static_cast<uint64_t>(shape.kv_heads);
  if (preamble.section[kLengths].bytes != lists * sizeof(uint32_t)) {
    file.fail("has sections of wrong sizes");
  }
  const std::vector<std::byte> bytes = read_section(file, preamble, kLengths);
  compressed.lengths.resize(lists);
  std::memcpy(compressed.lengths.data(), bytes.data(), bytes.size());
  for (int64_t length : compressed.lengths) {
    if (length < compressed.prefix_length || length > compressed.logical_length) {
      file.fail(fmt::format("has a list of {} pairs in a text of {} tokens", length,
                            compressed.logical_length));
    }
  }
}

// The sizes of the two sections of pages follow from the rest. Nothing overflows: every factor has
// its bound, and a page is at least 1024 bytes.
void check_page_sections(const InputFile& file, const Preamble& preamble,
                         const Metadata& metadata) {
  const KvShape& shape = metadata.identity.shape;
  const CompressedShape& compressed = metadata.compressed;
  const KvGeometry geometry{shape.page, shape.kv_heads, shape.groups[0].layers};
  uint64_t pages = 0;
  for (int64_t length : compressed.lengths) {
    pages += static_cast<uint64_t>(geometry.pages_for(length));
  }
  uint64_t window_pages = 0;
  for (size_t group = 1; group < shape.groups.size(); ++group) {
    const int64_t run =
        geometry.pages_for(compressed.logical_length) - compressed.first_pages[group - 1];
    window_pages += static_cast<uint64_t>(run * shape.groups[group].layers * shape.kv_heads);
  }
  const auto page_bytes = static_cast<uint64_t>(shape.page.page_bytes());
  const auto is_wrong = [&](SectionIndex index, uint64_t count) {
    const uint64_t bytes = preamble.section[index].bytes;
    return bytes % page_bytes != 0 || bytes / page_bytes != count;
  };
  if (is_wrong(kPages, pages) || is_wrong(kWindows, window_pages)) {
    file.fail("has sections of wrong sizes");
  }
}

Metadata read_metadata(const InputFile& file, const Preamble& preamble) {
  Metadata metadata;
  read_header(file, preamble, metadata);
  read_lengths(file, preamble, metadata);
  check_page_sections(file, preamble, metadata);
  return metadata;
}

std::string describe(std::span<const KvGroupShape> groups) {
  std::string text;
  for (const KvGroupShape& group : groups) {
    text += fmt::format("{}{} layers of window {}", text.empty() ? "" : ", ", group.layers,
                        group.window);
  }
  return text;
}

const char* name_of(KvType type) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16"};
  return kNames[static_cast<size_t>(type)];
}

void check_fits(const InputFile& file, const KvShape& shape, const KvShape& expected) {
  const auto compare = [&](const char* what, const auto& found, const auto& wanted) {
    if (found != wanted) {
      file.fail(fmt::format("does not fit: {} {} instead of {}", what, found, wanted));
    }
  };
  compare("made with the model of fingerprint", fmt::format("{:016x}", shape.model_fingerprint),
          fmt::format("{:016x}", expected.model_fingerprint));
  compare("KV groups of", describe(shape.groups), describe(expected.groups));
  compare("KV heads:", shape.kv_heads, expected.kv_heads);
  compare("head length", shape.page.head_dim, expected.page.head_dim);
  compare("type of keys", std::string_view(name_of(shape.page.k_type)),
          name_of(expected.page.k_type));
  compare("type of values", std::string_view(name_of(shape.page.v_type)),
          name_of(expected.page.v_type));
  compare("tokens per page:", shape.page.page_tokens, expected.page.page_tokens);
  compare("page version", shape.page_version, expected.page_version);
}

void read_pages(SectionReader& reader, const PageLayout& layout, const Segment& segment,
                int layers) {
  const auto page_bytes = static_cast<size_t>(layout.page_bytes());
  visit_pages(layout, segment, layers, [&](std::byte* page, int64_t) {
    reader.read({page, page_bytes});
  });
}

}  // namespace

LoadedDocument load_document(const std::string& path, BlockPool& pool, const KvShape& expected) {
  const KvGeometry& geometry = pool.geometry();
  CHECK(expected.page == geometry.page);
  CHECK_EQ(expected.kv_heads, geometry.kv_heads);
  CHECK(!expected.groups.empty());
  CHECK_EQ(expected.groups[0].layers, geometry.layers_per_block);
  const InputFile file(system_files(), path);
  const Preamble preamble = read_preamble(file);
  Metadata metadata = read_metadata(file, preamble);
  check_fits(file, metadata.identity.shape, expected);

  const int64_t needed = Document::blocks_for(geometry, metadata.compressed);
  auto reservation = pool.reserve(needed);
  if (!reservation) {
    throw Error(ErrorKind::kOutOfMemory,
                fmt::format("the KV pool is too small: {} needs {} blocks of {} bytes, {} are free",
                            path, needed, geometry.block_bytes(), pool.blocks_available()));
  }
  LoadedDocument loaded{Document::blank(pool, std::move(metadata.compressed), *reservation),
                        std::move(metadata.identity)};
  SectionReader pages(file, preamble, kPages);
  read_pages(pages, geometry.page, loaded.document->segment(0), expected.groups[0].layers);
  pages.finish();
  SectionReader windows(file, preamble, kWindows);
  for (size_t group = 1; group < expected.groups.size(); ++group) {
    read_pages(windows, geometry.page, loaded.document->segment(static_cast<int>(group)),
               expected.groups[group].layers);
  }
  windows.finish();
  return loaded;
}

DocumentHeader read_document_header(const std::string& path) {
  const InputFile file(system_files(), path);
  Metadata metadata = read_metadata(file, read_preamble(file));
  return {std::move(metadata.identity), std::move(metadata.compressed.lengths), file.size()};
}

}  // namespace pagezip
