// The writing half; document_file_load.cc reads.
#include "paging/document_file.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "paging/document_file_format.h"
#include "paging/file_io.h"

namespace pagezip {
namespace {

using namespace document_file;  // NOLINT(google-build-using-namespace): this file is its other half

void clear_tail(const PageLayout& layout, int64_t pairs, std::byte* page) {
  const int64_t k_bytes = bytes_of(layout.k_type);
  const auto empty = static_cast<size_t>(layout.page_tokens - pairs);
  if (layout.key_order == KeyOrder::kPlain) {
    const int64_t k_row_bytes = layout.head_dim * k_bytes;
    std::memset(page + pairs * k_row_bytes, 0, empty * static_cast<size_t>(k_row_bytes));
  }
  for (int64_t channel = 0; layout.key_order == KeyOrder::kTransposed && channel < layout.head_dim;
       ++channel) {
    std::memset(page + (channel * layout.page_tokens + pairs) * k_bytes, 0,
                empty * static_cast<size_t>(k_bytes));
  }
  const int64_t v_row_bytes = layout.head_dim * bytes_of(layout.v_type);
  std::memset(page + layout.k_bytes() + pairs * v_row_bytes, 0,
              empty * static_cast<size_t>(v_row_bytes));
}

void check_identity(const Document& document, const DocumentIdentity& identity,
                    const ScoreSet* scores) {
  const KvGeometry& geometry = document.geometry();
  const KvShape& shape = identity.shape;
  const auto context_tokens = static_cast<int64_t>(identity.context_ids.size());
  CHECK_EQ(static_cast<int>(shape.groups.size()), document.groups());
  CHECK_EQ(shape.groups[0].layers, document.global_layers());
  CHECK_EQ(shape.kv_heads, geometry.kv_heads);
  CHECK(shape.page == geometry.page);
  CHECK_EQ(identity.version.full, !document.compressed());
  CHECK_EQ(static_cast<int64_t>(identity.prefix_ids.size()), document.prefix_length());
  CHECK_EQ(identity.logical_length(), document.logical_length());
  if (scores != nullptr) {
    CHECK_EQ(scores->layers, document.global_layers());
    CHECK_EQ(scores->heads, geometry.kv_heads);
    CHECK_EQ(scores->tokens, context_tokens);
    CHECK_EQ(scores->pairs(), static_cast<int64_t>(scores->scores.size()));
  }
  for (const std::string& text :
       {identity.scorer, identity.version.selector, identity.provenance}) {
    if (!is_plain_text(text, kTextBytesMax)) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("a text of a document's identity has control characters or more "
                              "than {} bytes",
                              kTextBytesMax));
    }
  }
}

// The sections of a file one after the other, hashed as they pass.
class SectionWriter {
 public:
  explicit SectionWriter(AtomicFile& file) : file_(file) { buffer_.reserve(kBufferBytes); }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), kBufferBytes - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<int64_t>(count));
      bytes = bytes.subspan(count);
      if (buffer_.size() == kBufferBytes) {
        flush();
      }
    }
  }
  Section end_section() {
    const int64_t bytes = offset() - begin_;
    append(std::vector<std::byte>(static_cast<size_t>(padded(bytes) - bytes)));
    flush();
    const Section section{static_cast<uint64_t>(bytes), hasher_.digest()};
    hasher_.reset();
    begin_ = offset();
    return section;
  }
  /// Of the next byte.
  int64_t offset() const { return flushed_ + static_cast<int64_t>(buffer_.size()); }

 private:
  void flush() {
    file_.write_at(flushed_, buffer_);
    hasher_.update(buffer_);
    flushed_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }

  AtomicFile& file_;
  Hasher hasher_;
  std::vector<std::byte> buffer_;
  int64_t flushed_ = kSectionsBegin;  // bytes before the buffer
  int64_t begin_ = kSectionsBegin;    // of the section
};

}  // namespace

DocumentImage::DocumentImage(const Document& document, const DocumentIdentity& identity,
                             std::shared_ptr<const ScoreSet> scores)
    : layout_(document.geometry().page), memory_(&document.memory()), scores_(std::move(scores)) {
  if (document.global_layers() == 0) {
    throw Error(ErrorKind::kUsage, "documents of a model without global layers have no files");
  }
  check_identity(document, identity, scores_.get());
  header_ = encode_header(identity);
  const KvGeometry& geometry = document.geometry();
  int64_t pages = 0;
  for (int layer = 0; layer < document.global_layers(); ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      lengths_.push_back(static_cast<uint32_t>(document.retained(layer, head)));
      pages += geometry.pages_for(lengths_.back());
    }
  }
  int64_t window_pages = 0;
  for (int group = 0; group < document.groups(); ++group) {
    segments_.push_back(document.segment(group));
    layers_.push_back(identity.shape.groups[static_cast<size_t>(group)].layers);
    if (group > 0) {
      const int64_t run =
          geometry.pages_for(document.logical_length()) - segments_.back().first_page;
      window_pages += run * layers_.back() * geometry.kv_heads;
    }
  }
  const auto bytes_of_list = [](const auto& list) {
    return padded(static_cast<int64_t>(std::as_bytes(std::span(list)).size()));
  };
  file_bytes_ = kSectionsBegin + bytes_of_list(header_) + bytes_of_list(lengths_) +
                (pages + window_pages) * layout_.page_bytes() +
                (scores_ == nullptr ? 0 : bytes_of_list(scores_->scores));
}

class DocumentFileWriter::State {
 public:
  State(Files& files, const std::string& path, DocumentImage image, const DocumentListing& listing)
      : image_(std::move(image)), slot_(encode_listing(listing)), file_(files, path) {
    std::vector<PageCursor::Part> parts;
    parts.reserve(image_.segments_.size());
    for (size_t group = 0; group < image_.segments_.size(); ++group) {
      parts.push_back({image_.segments_[group], image_.layers_[group]});
    }
    windows_ = PageCursor(image_.layout_, {parts.begin() + 1, parts.end()});
    parts.resize(1);
    pages_ = PageCursor(image_.layout_, std::move(parts));
    scratch_.resize(static_cast<size_t>(image_.layout_.page_bytes()));
  }

  bool step(int64_t bytes) {
    CHECK(!committed_);
    const int64_t goal = sections_.offset() + bytes;
    if (section_ == kSections) {
      commit();
      return false;
    }
    while (section_ < kSections && sections_.offset() < goal) {
      if (!append_piece()) {
        preamble_.section[section_++] = sections_.end_section();
      }
    }
    return true;
  }

 private:
  // Some bytes of the section in hand. False if it has no more.
  bool append_piece() {
    switch (section_) {
      case kHeader:
        return append_bytes(std::as_bytes(std::span(image_.header_)));
      case kLengths:
        return append_bytes(std::as_bytes(std::span(image_.lengths_)));
      case kPages:
        return append_page(pages_.next());
      case kWindows:
        return append_page(windows_.next());
      default:
        return image_.scores_ != nullptr &&
               append_bytes(std::as_bytes(std::span(image_.scores_->scores)));
    }
  }

  bool append_bytes(std::span<const std::byte> all) {
    const std::span<const std::byte> rest = all.subspan(done_);
    const std::span<const std::byte> piece =
        rest.first(std::min<size_t>(rest.size(), kBufferBytes));
    sections_.append(piece);
    done_ = piece.empty() ? 0 : done_ + piece.size();  // 0 for the next section
    return !piece.empty();
  }

  bool append_page(const PageCursor::Place& place) {
    if (place.page == nullptr) {
      return false;
    }
    const std::byte* page = place.page;
    const bool partial = place.pairs < image_.layout_.page_tokens;
    if (partial || !image_.memory_->is_host) {
      image_.memory_->to_host(scratch_.data(), page, scratch_.size());
      page = scratch_.data();
    }
    if (partial) {
      clear_tail(image_.layout_, place.pairs, scratch_.data());
    }
    sections_.append({page, scratch_.size()});
    return true;
  }

  void commit() {
    CHECK_EQ(sections_.offset(), image_.file_bytes());
    preamble_.file_bytes = static_cast<uint64_t>(image_.file_bytes());
    preamble_.hash = preamble_hash(preamble_);
    std::vector<std::byte> start(static_cast<size_t>(kSectionsBegin));
    std::memcpy(start.data(), &preamble_, sizeof(preamble_));
    std::memcpy(start.data() + kSlotsBegin, &slot_, sizeof(slot_));
    file_.write_at(0, start);
    file_.commit();
    committed_ = true;
  }

  DocumentImage image_;
  ListingSlot slot_;
  AtomicFile file_;
  SectionWriter sections_{file_};
  Preamble preamble_;
  size_t section_ = 0;  // in hand
  size_t done_ = 0;     // bytes of it, where it is one run of bytes
  PageCursor pages_;
  PageCursor windows_;
  std::vector<std::byte> scratch_;  // a page
  bool committed_ = false;
};

DocumentFileWriter::DocumentFileWriter(Files& files, const std::string& path, DocumentImage image,
                                       const DocumentListing& listing)
    : state_(std::make_unique<State>(files, path, std::move(image), listing)) {}

DocumentFileWriter::~DocumentFileWriter() = default;

bool DocumentFileWriter::step(int64_t bytes) { return state_->step(bytes); }

void save_document(const std::string& path, const Document& document,
                   const DocumentIdentity& identity, const DocumentListing& listing,
                   std::shared_ptr<const ScoreSet> scores, Files& files) {
  DocumentFileWriter writer(files, path, DocumentImage(document, identity, std::move(scores)),
                            listing);
  while (writer.step(kBufferBytes)) {
  }
}

}  // namespace pagezip
