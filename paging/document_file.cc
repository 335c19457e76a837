// The writing half; document_file_load.cc reads.
#include "paging/document_file.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string_view>

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
  for (int64_t channel = 0; channel < layout.head_dim; ++channel) {
    std::memset(page + (channel * layout.page_tokens + pairs) * k_bytes, 0,
                empty * static_cast<size_t>(k_bytes));
  }
  const int64_t v_row_bytes = layout.head_dim * bytes_of(layout.v_type);
  std::memset(page + layout.k_bytes() + pairs * v_row_bytes, 0,
              empty * static_cast<size_t>(v_row_bytes));
}

// The sections of a file one after the other, hashed as they pass.
class SectionWriter {
 public:
  explicit SectionWriter(AtomicFile& file) : file_(file) { buffer_.reserve(kBufferBytes); }

  void append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBufferBytes) {
      flush();
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    bytes_ += static_cast<int64_t>(bytes.size());
  }
  template <typename T>
  void append_value(const T& value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  void append_values(const std::vector<T>& values) {
    append_value(static_cast<uint64_t>(values.size()));
    append(std::as_bytes(std::span(values)));
  }
  void append_text(std::string_view text) {
    append_value(static_cast<uint64_t>(text.size()));
    append(std::as_bytes(std::span(text)));
  }

  Section end_section() {
    const int64_t bytes = bytes_;
    append(std::vector<std::byte>(static_cast<size_t>(padded(bytes) - bytes)));
    flush();
    const Section section{static_cast<uint64_t>(bytes), hasher_->digest()};
    hasher_ = std::make_unique<Hasher>();
    bytes_ = 0;
    return section;
  }
  int64_t offset() const { return offset_; }

 private:
  void flush() {
    file_.write_at(offset_, buffer_);
    hasher_->update(buffer_);
    offset_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }

  AtomicFile& file_;
  std::vector<std::byte> buffer_;
  std::unique_ptr<Hasher> hasher_ = std::make_unique<Hasher>();
  int64_t offset_ = sizeof(Preamble);  // of the buffer
  int64_t bytes_ = 0;                  // of the section
};

void write_header(SectionWriter& writer, const Document& document,
                  const DocumentIdentity& identity) {
  const KvShape& shape = identity.shape;
  writer.append_value(shape.model_fingerprint);
  writer.append_value(shape.page_version);
  writer.append_value(static_cast<uint32_t>(shape.page.k_type));
  writer.append_value(static_cast<uint32_t>(shape.page.v_type));
  writer.append_value(static_cast<uint32_t>(shape.page.page_tokens));
  writer.append_value(static_cast<uint32_t>(shape.page.head_dim));
  writer.append_value(static_cast<uint32_t>(shape.kv_heads));
  writer.append_value(static_cast<uint32_t>(shape.groups.size()));
  for (const KvGroupShape& group : shape.groups) {
    writer.append_value(static_cast<uint32_t>(group.layers));
    writer.append_value(static_cast<uint32_t>(group.window));
  }
  for (int group = 1; group < document.groups(); ++group) {
    writer.append_value(static_cast<uint64_t>(document.segment(group).first_page));
  }
  writer.append_values(identity.prefix_ids);
  writer.append_values(identity.context_ids);
  writer.append_text(identity.scorer);
  writer.append_value(identity.chunk_tokens);
  writer.append_text(identity.selector);
  writer.append_value(identity.keep_ratio);
  writer.append_value(identity.min_per_head);
  writer.append_text(identity.provenance);
}

void check_identity(const Document& document, const DocumentIdentity& identity) {
  const KvGeometry& geometry = document.geometry();
  const KvShape& shape = identity.shape;
  CHECK_EQ(static_cast<int>(shape.groups.size()), document.groups());
  CHECK_EQ(shape.groups[0].layers, document.global_layers());
  CHECK_EQ(shape.kv_heads, geometry.kv_heads);
  CHECK(shape.page == geometry.page);
  CHECK_EQ(static_cast<int64_t>(identity.prefix_ids.size()), document.prefix_length());
  CHECK_EQ(static_cast<int64_t>(identity.prefix_ids.size() + identity.context_ids.size()),
           document.logical_length());
  for (const std::string& text : {identity.scorer, identity.selector, identity.provenance}) {
    if (!is_plain_text(text)) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("a text of a document's identity has control characters or more "
                              "than {} bytes",
                              kTextBytesMax));
    }
  }
}

void write_pages(SectionWriter& writer, const PageLayout& layout, const Segment& segment,
                 int layers) {
  const auto page_bytes = static_cast<size_t>(layout.page_bytes());
  std::vector<std::byte> scratch(page_bytes);
  visit_pages(layout, segment, layers, [&](const std::byte* page, int64_t pairs) {
    if (pairs < layout.page_tokens) {
      std::memcpy(scratch.data(), page, page_bytes);
      clear_tail(layout, pairs, scratch.data());
      page = scratch.data();
    }
    writer.append({page, page_bytes});
  });
}

}  // namespace

KvShape make_kv_shape(uint64_t model_fingerprint, std::span<const KvGroup> groups,
                      const KvGeometry& geometry) {
  KvShape shape;
  shape.model_fingerprint = model_fingerprint;
  for (const KvGroup& group : groups) {
    shape.groups.push_back({static_cast<int>(group.layers.size()), group.window});
  }
  shape.kv_heads = geometry.kv_heads;
  shape.page = geometry.page;
  return shape;
}

void save_document(const std::string& path, const Document& document,
                   const DocumentIdentity& identity) {
  if (!document.compressed()) {
    throw Error(ErrorKind::kUsage, "only a compressed document can be saved");
  }
  check_identity(document, identity);
  AtomicFile file(system_files(), path);
  SectionWriter writer(file);
  Preamble preamble;
  const KvShape& shape = identity.shape;
  write_header(writer, document, identity);
  preamble.section[kHeader] = writer.end_section();
  for (int layer = 0; layer < document.global_layers(); ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      writer.append_value(static_cast<uint32_t>(document.retained(layer, head)));
    }
  }
  preamble.section[kLengths] = writer.end_section();
  write_pages(writer, shape.page, document.segment(0), shape.groups[0].layers);
  preamble.section[kPages] = writer.end_section();
  for (size_t group = 1; group < shape.groups.size(); ++group) {
    write_pages(writer, shape.page, document.segment(static_cast<int>(group)),
                shape.groups[group].layers);
  }
  preamble.section[kWindows] = writer.end_section();
  preamble.file_bytes = static_cast<uint64_t>(writer.offset());
  preamble.hash = preamble_hash(preamble);
  file.write_at(0, std::as_bytes(std::span(&preamble, 1)));
  file.commit();
}

}  // namespace pagezip
