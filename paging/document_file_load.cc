#include <fmt/format.h>

#include <algorithm>
#include <cstring>
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
  SectionReader(const InputFile& file, const Preamble& preamble, size_t index)
      : file_(file), section_(preamble.section[index]), name_(kSectionNames[index]) {
    offset_ = kSectionsBegin;
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
  if (file.size() < int64_t{sizeof(preamble)}) {
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
  uint64_t end = kSectionsBegin;
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

DocumentListing read_listing(const InputFile& file) {
  ListingSlot slots[2];
  file.read_at(kSlotsBegin, std::as_writable_bytes(std::span(slots)));
  const auto first = decode_listing(slots[0]);
  const auto second = decode_listing(slots[1]);
  if (!first && !second) {
    file.fail("is damaged: none of its listings is readable");
  }
  return !second || (first && first->revision >= second->revision) ? *first : *second;
}

std::vector<std::byte> read_section(const InputFile& file, const Preamble& preamble,
                                    SectionIndex index) {
  std::vector<std::byte> bytes(preamble.section[index].bytes);
  SectionReader reader(file, preamble, index);
  reader.read(bytes);
  reader.finish();
  return bytes;
}

void read_lengths(const InputFile& file, const Preamble& preamble, DocumentHeader& header) {
  const KvShape& shape = header.identity.shape;
  const uint64_t lists =
      static_cast<uint64_t>(shape.groups[0].layers) * static_cast<uint64_t>(shape.kv_heads);
  if (preamble.section[kLengths].bytes != lists * sizeof(uint32_t)) {
    file.fail("has sections of wrong sizes");
  }
  const std::vector<std::byte> bytes = read_section(file, preamble, kLengths);
  header.lengths.resize(lists);
  std::memcpy(header.lengths.data(), bytes.data(), bytes.size());
  const int64_t longest = header.logical_length();
  const int64_t shortest = header.identity.version.full
                               ? longest
                               : static_cast<int64_t>(header.identity.prefix_ids.size());
  for (int64_t length : header.lengths) {
    if (length < shortest || length > longest) {
      file.fail(fmt::format("has a list of {} pairs in a {} of {} tokens", length,
                            header.identity.version.full ? "full document" : "text", longest));
    }
  }
}

/// Where the windows of the sliding groups begin: the first page that the next row reads.
std::vector<int64_t> first_pages_of(const DocumentIdentity& identity) {
  std::vector<int64_t> first_pages;
  for (size_t group = 1; group < identity.shape.groups.size(); ++group) {
    const int64_t behind = identity.logical_length() - identity.shape.groups[group].window + 1;
    first_pages.push_back(std::max<int64_t>(behind, 0) / identity.shape.page.page_tokens);
  }
  return first_pages;
}

// The sizes of the sections behind the lengths follow from the rest. Nothing overflows: every
// factor has its bound, and a page is at least 1024 bytes.
void check_section_sizes(const InputFile& file, const Preamble& preamble, DocumentHeader& header) {
  const KvShape& shape = header.identity.shape;
  const KvGeometry geometry{shape.page, shape.kv_heads, shape.groups[0].layers};
  uint64_t pages = 0;
  for (int64_t length : header.lengths) {
    pages += static_cast<uint64_t>(geometry.pages_for(length));
  }
  uint64_t window_pages = 0;
  const std::vector<int64_t> first_pages = first_pages_of(header.identity);
  for (size_t group = 1; group < shape.groups.size(); ++group) {
    const int64_t run = geometry.pages_for(header.logical_length()) - first_pages[group - 1];
    window_pages += static_cast<uint64_t>(run * shape.groups[group].layers * shape.kv_heads);
  }
  const auto is_wrong = [&](SectionIndex index, uint64_t count, uint64_t each_bytes) {
    const uint64_t bytes = preamble.section[index].bytes;
    return bytes % each_bytes != 0 || bytes / each_bytes != count;
  };
  const auto page_bytes = static_cast<uint64_t>(shape.page.page_bytes());
  const uint64_t pairs = header.lengths.size() * header.identity.context_ids.size();
  header.has_scores = preamble.section[kScores].bytes > 0;
  if (is_wrong(kPages, pages, page_bytes) || is_wrong(kWindows, window_pages, page_bytes) ||
      (header.has_scores && is_wrong(kScores, pairs, sizeof(float)))) {
    file.fail("has sections of wrong sizes");
  }
}

DocumentHeader read_header(const InputFile& file, const Preamble& preamble) {
  DocumentHeader header;
  header.file_bytes = file.size();
  header.content_hash = fmt::format("{:016x}{:016x}", preamble.hash.high, preamble.hash.low);
  header.listing = read_listing(file);
  header.identity = decode_header(file, read_section(file, preamble, kHeader));
  read_lengths(file, preamble, header);
  check_section_sizes(file, preamble, header);
  return header;
}

// Room for the scores of a file that has some.
std::shared_ptr<ScoreSet> blank_scores(const DocumentHeader& header) {
  const KvShape& shape = header.identity.shape;
  auto scores = std::make_shared<ScoreSet>();
  scores->layers = shape.groups[0].layers;
  scores->heads = shape.kv_heads;
  scores->tokens = static_cast<int64_t>(header.identity.context_ids.size());
  scores->scores.resize(static_cast<size_t>(scores->pairs()));
  return scores;
}

}  // namespace

class DocumentFileReader::State {
 public:
  State(Files& files, const std::string& path, const KvShape& expected)
      : file_(files, path),
        preamble_(read_preamble(file_)),
        header_(read_header(file_, preamble_)) {
    const std::string difference = why_unfit(header_.identity.shape, expected);
    if (!difference.empty()) {
      file_.fail("does not fit: " + difference);
    }
    scratch_.resize(static_cast<size_t>(expected.page.page_bytes()));
  }

  const DocumentHeader& header() const { return header_; }

  void fill(const Document& blank) {
    CHECK(blank.geometry().page == header_.identity.shape.page);
    CHECK_EQ(blank.logical_length(), header_.logical_length());
    CHECK_EQ(blank.groups(), static_cast<int>(header_.identity.shape.groups.size()));
    std::vector<PageCursor::Part> windows;
    windows.reserve(static_cast<size_t>(blank.groups()));
    for (int group = 0; group < blank.groups(); ++group) {
      windows.push_back(
          {blank.segment(group), header_.identity.shape.groups[static_cast<size_t>(group)].layers});
    }
    memory_ = &blank.memory();
    const PageLayout& layout = blank.geometry().page;
    pages_ = PageCursor(layout, {windows.begin(), windows.begin() + 1});
    windows.erase(windows.begin());
    windows_ = PageCursor(layout, std::move(windows));
    start_section(kPages);
  }

  bool step(int64_t bytes) {
    CHECK(section_ != nullptr);
    for (int64_t read = 0; read < bytes;) {
      const int64_t piece = read_piece();
      read += piece;
      if (piece == 0) {
        section_->finish();
        if (index_ == kScores) {
          section_.reset();
          return false;
        }
        start_section(index_ + 1);
      }
    }
    return true;
  }

  std::shared_ptr<const ScoreSet> scores() const {
    CHECK(section_ == nullptr);
    return scores_;
  }

 private:
  void start_section(size_t index) {
    index_ = index;
    section_ = std::make_unique<SectionReader>(file_, preamble_, index);
    if (index == kScores && header_.has_scores) {
      scores_ = blank_scores(header_);
    }
  }

  // Returns the bytes it read of the section in hand; 0 if there are no more.
  int64_t read_piece() {
    std::span<std::byte> target;
    if (index_ == kScores) {
      if (scores_ != nullptr) {
        const auto all = std::as_writable_bytes(std::span(scores_->scores));
        target = all.subspan(scores_read_);
        target = target.first(std::min<size_t>(target.size(), kBufferBytes));
        scores_read_ += target.size();
      }
    } else if (std::byte* page = (index_ == kPages ? pages_ : windows_).next().page) {
      if (!memory_->is_host) {
        section_->read(scratch_);
        memory_->to_device(page, scratch_.data(), scratch_.size());
        return static_cast<int64_t>(scratch_.size());
      }
      target = {page, scratch_.size()};
    }
    section_->read(target);
    return static_cast<int64_t>(target.size());
  }

  InputFile file_;
  Preamble preamble_;
  DocumentHeader header_;
  const DeviceMemory* memory_ = nullptr;  // of the document
  std::vector<std::byte> scratch_;        // a page
  PageCursor pages_;
  PageCursor windows_;
  size_t index_ = kPages;                   // of the section in hand
  std::unique_ptr<SectionReader> section_;  // null: all is read
  std::shared_ptr<ScoreSet> scores_;
  size_t scores_read_ = 0;  // bytes
};

DocumentFileReader::DocumentFileReader(Files& files, const std::string& path,
                                       const KvShape& expected)
    : state_(std::make_unique<State>(files, path, expected)) {}

DocumentFileReader::~DocumentFileReader() = default;

const DocumentHeader& DocumentFileReader::header() const { return state_->header(); }

DocumentShape DocumentHeader::shape() const {
  DocumentShape shape;
  shape.compressed = !identity.version.full;
  shape.logical_length = logical_length();
  shape.prefix_length = static_cast<int64_t>(identity.prefix_ids.size());
  shape.first_pages = first_pages_of(identity);
  if (shape.compressed) {
    shape.lengths = lengths;
  }
  return shape;
}

void DocumentFileReader::fill(const Document& blank) { state_->fill(blank); }

bool DocumentFileReader::step(int64_t bytes) { return state_->step(bytes); }

std::shared_ptr<const ScoreSet> DocumentFileReader::scores() const { return state_->scores(); }

void update_listing(Files& files, const std::string& path, const DocumentListing& listing) {
  const auto fail = [&](int error) {
    throw Error(ErrorKind::kOutput, "cannot write " + path + ": " + std::strerror(error));
  };
  ListingSlot slots[2];
  InputFile(files, path).read_at(kSlotsBegin, std::as_writable_bytes(std::span(slots)));
  const auto first = decode_listing(slots[0]);
  const auto second = decode_listing(slots[1]);
  const bool first_counts = first && (!second || first->revision >= second->revision);
  const Opened opened = files.open(path, OpenMode::kUpdate);
  if (opened.error != 0) {
    fail(opened.error);
  }
  const ListingSlot slot = encode_listing(listing);
  const int64_t offset = kSlotsBegin + (first_counts ? sizeof(ListingSlot) : 0);
  if (const int error = write_all(*opened.file, offset, std::as_bytes(std::span(&slot, 1)));
      error != 0) {
    fail(error);
  }
  if (const int error = opened.file->sync(); error != 0) {
    fail(error);
  }
}

DocumentHeader verify_document(const InputFile& file) {
  const Preamble preamble = read_preamble(file);
  DocumentHeader header = read_header(file, preamble);
  std::vector<std::byte> buffer(static_cast<size_t>(kBufferBytes));
  for (const SectionIndex index : {kPages, kWindows, kScores}) {
    SectionReader reader(file, preamble, index);
    for (uint64_t rest = preamble.section[index].bytes; rest > 0;) {
      const uint64_t count = std::min<uint64_t>(rest, buffer.size());
      reader.read(std::span(buffer).first(count));
      rest -= count;
    }
    reader.finish();
  }
  return header;
}

DocumentHeader read_document_header(const InputFile& file) {
  return read_header(file, read_preamble(file));
}

DocumentHeader read_document_header(const std::string& path) {
  return read_document_header(InputFile(system_files(), path));
}

std::shared_ptr<const ScoreSet> read_document_scores(const std::string& path) {
  const InputFile file(system_files(), path);
  const Preamble preamble = read_preamble(file);
  const DocumentHeader header = read_header(file, preamble);
  if (!header.has_scores) {
    return nullptr;
  }
  std::shared_ptr<ScoreSet> scores = blank_scores(header);
  SectionReader reader(file, preamble, kScores);
  reader.read(std::as_writable_bytes(std::span(scores->scores)));
  reader.finish();
  return scores;
}

LoadedDocument load_document(const std::string& path, BlockPool& pool, const KvShape& expected,
                             Files& files) {
  const KvGeometry& geometry = pool.geometry();
  CHECK(expected.page == geometry.page);
  CHECK_EQ(expected.kv_heads, geometry.kv_heads);
  CHECK(!expected.groups.empty());
  CHECK_EQ(expected.groups[0].layers, geometry.layers_per_block);
  DocumentFileReader reader(files, path, expected);
  const int64_t needed = Document::blocks_for(geometry, reader.header().shape());
  auto reservation = pool.reserve(needed);
  if (!reservation) {
    throw Error(ErrorKind::kOutOfMemory,
                fmt::format("the KV pool is too small: {} needs {} blocks of {} bytes, {} are free",
                            path, needed, geometry.block_bytes(), pool.blocks_available()));
  }
  auto document = Document::blank(pool, reader.header().shape(), *reservation);
  reader.fill(*document);
  while (reader.step(kBufferBytes)) {
  }
  return {std::move(document), reader.header(), reader.scores()};
}

}  // namespace pagezip
