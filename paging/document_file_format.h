// The bytes of a document file, for the files that implement document_file.h, and for tests.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/math.h"
#include "kernels/kv_view.h"
#include "paging/document_identity.h"
#include "paging/file_io.h"

namespace pagezip::document_file {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

inline constexpr uint32_t kVersion = 2;
inline constexpr int64_t kAlignment = 64;
inline constexpr size_t kSections = 5;
enum SectionIndex : size_t { kHeader, kLengths, kPages, kWindows, kScores };
inline constexpr const char* kSectionNames[kSections] = {"header", "list of lengths", "pages",
                                                         "windows", "scores"};

// Sanity bounds: far above any real document, far below what exhausts memory or overflows.
inline constexpr uint64_t kMetadataBytesMax = uint64_t{1} << 28;  // of header, of lengths
inline constexpr uint64_t kTextBytesMax = 4096;
inline constexpr uint32_t kGroupsMax = 1024;
inline constexpr uint32_t kLayersMax = 1024;
inline constexpr uint32_t kHeadsMax = 1 << 16;
/// What is read or written at once.
inline constexpr int64_t kBufferBytes = 256 << 10;

/// XXH3-128.
struct Hash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const Hash&, const Hash&) = default;
};

inline Hash hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

struct Section {
  uint64_t bytes = 0;  // without padding
  Hash hash;           // of the padded bytes
};

struct Preamble {
  char magic[8] = {'P', 'A', 'G', 'E', 'Z', 'I', 'P', 'D'};
  uint32_t version = kVersion;
  uint32_t sections = kSections;
  uint64_t file_bytes = 0;
  Section section[kSections];
  uint64_t reserved[12] = {};
  Hash hash;  // of all before it
};
static_assert(sizeof(Preamble) == 256);

/// A listing as it lies in the file. There are two: a change goes into the older one, so that a
/// crash leaves one of them whole.
struct ListingSlot {
  Hash hash;  // of all behind it
  uint64_t revision = 0;
  int64_t created_s = 0;
  int64_t ttl_s = 0;
  uint8_t pinned = 0;
  uint8_t scope_kind = 0;
  uint8_t id_bytes = 0;
  uint8_t scope_bytes = 0;
  uint16_t name_bytes = 0;
  uint8_t imported = 0;
  uint8_t metadata_keys = 0;
  uint64_t reserved_b[2] = {};
  char id[DocumentListing::kIdBytesMax] = {};
  char scope[DocumentListing::kScopeBytesMax] = {};
  char name[DocumentListing::kNameBytesMax] = {};
  /// One after the other: bytes of a key (uint16), the key, bytes of its value, the value.
  char metadata[DocumentListing::kMetadataBytesMax] = {};
};
static_assert(sizeof(ListingSlot) == 512 + DocumentListing::kMetadataBytesMax);

inline constexpr int64_t kSlotsBegin = sizeof(Preamble);
inline constexpr int64_t kSectionsBegin = kSlotsBegin + 2 * sizeof(ListingSlot);
static_assert(kSectionsBegin % kAlignment == 0);

constexpr int64_t padded(int64_t bytes) { return round_up(bytes, kAlignment); }

inline Hash preamble_hash(const Preamble& preamble) {
  return hash_of(std::as_bytes(std::span(&preamble, 1)).first(offsetof(Preamble, hash)));
}
inline Hash slot_hash(const ListingSlot& slot) {
  return hash_of(std::as_bytes(std::span(&slot, 1)).subspan(sizeof(Hash)));
}

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    CHECK(state_ != nullptr);
    XXH3_128bits_reset(state_);
  }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_, bytes.data(), bytes.size());
  }
  Hash digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return {hash.low64, hash.high64};
  }
  void reset() { XXH3_128bits_reset(state_); }

 private:
  XXH3_state_t* state_;
};

/// The pages of some segments that hold pairs, in the order of the file.
class PageCursor {
 public:
  struct Part {
    Segment segment;
    int layers = 0;
  };
  struct Place {
    std::byte* page = nullptr;  // null: there are no more
    int64_t pairs = 0;
  };

  PageCursor() = default;
  PageCursor(const PageLayout& layout, std::vector<Part> parts)
      : page_tokens_(layout.page_tokens), parts_(std::move(parts)) {
    page_ = parts_.empty() ? 0 : parts_[0].segment.first_page;
  }

  Place next() {
    for (; part_ < parts_.size(); next_list()) {
      const Segment& segment = parts_[part_].segment;
      const int64_t pairs = segment.length(layer_, head_) - page_ * page_tokens_;
      if (pairs > 0) {
        return {segment.page(layer_, head_, page_++), std::min<int64_t>(pairs, page_tokens_)};
      }
    }
    return {};
  }

 private:
  void next_list() {
    if (++head_ == parts_[part_].segment.heads) {
      head_ = 0;
      if (++layer_ == parts_[part_].layers) {
        layer_ = 0;
        ++part_;
      }
    }
    page_ = part_ < parts_.size() ? parts_[part_].segment.first_page : 0;
  }

  int page_tokens_ = 0;
  std::vector<Part> parts_;
  size_t part_ = 0;
  int layer_ = 0;
  int head_ = 0;
  int64_t page_ = 0;
};

/// The header section: the canonical record, then the version and the provenance.
std::string encode_header(const DocumentIdentity& identity);
/// REQUIRES: `bytes` are the header section of `file`, which gets the blame. Throws
/// Error(kModelFile).
DocumentIdentity decode_header(const InputFile& file, std::span<const std::byte> bytes);

/// In a slot.
size_t bytes_of_metadata(const std::map<std::string, std::string>& metadata);
/// REQUIRES: is_valid(listing).
ListingSlot encode_listing(const DocumentListing& listing);
/// Nothing if the slot was never written, was torn, or says what can't be.
std::optional<DocumentListing> decode_listing(const ListingSlot& slot);

}  // namespace pagezip::document_file
