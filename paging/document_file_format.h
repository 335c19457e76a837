// What the two halves of document_file.h share: the bytes of a file, and their order.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/math.h"
#include "kernels/kv_view.h"

namespace pagezip::document_file {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

inline constexpr uint32_t kVersion = 0;
inline constexpr int64_t kAlignment = 64;
inline constexpr size_t kSections = 4;
enum SectionIndex : size_t { kHeader, kLengths, kPages, kWindows };
inline constexpr const char* kSectionNames[kSections] = {"header", "list of lengths", "pages",
                                                         "windows"};

struct Section {
  uint64_t bytes = 0;  // without padding
  uint64_t hash = 0;   // of the padded bytes
};

struct Preamble {
  char magic[8] = {'P', 'A', 'G', 'E', 'Z', 'I', 'P', 'D'};
  uint32_t version = kVersion;
  uint32_t sections = kSections;
  uint64_t file_bytes = 0;
  Section section[kSections];
  uint64_t reserved[4] = {};
  uint64_t hash = 0;  // of all before it
};
static_assert(sizeof(Preamble) == 128 && sizeof(Preamble) % kAlignment == 0);

// Sanity bounds: far above any real document, far below what exhausts memory or overflows.
inline constexpr uint64_t kMetadataBytesMax = uint64_t{1} << 28;  // of header, of lengths
inline constexpr uint64_t kTextBytesMax = 4096;
inline constexpr uint32_t kGroupsMax = 1024;
inline constexpr uint32_t kLayersMax = 1024;
inline constexpr uint32_t kHeadsMax = 1 << 16;
inline constexpr int64_t kBufferBytes = 1 << 20;

constexpr int64_t padded(int64_t bytes) { return round_up(bytes, kAlignment); }

inline uint64_t preamble_hash(const Preamble& preamble) {
  return XXH3_64bits(&preamble, offsetof(Preamble, hash));
}

// Texts get to a terminal with `inspect`: no control characters.
inline bool is_plain_text(std::string_view text) {
  return text.size() <= kTextBytesMax && std::all_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
         });
}

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    CHECK(state_ != nullptr);
    XXH3_64bits_reset(state_);
  }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_, bytes.data(), bytes.size());
  }
  uint64_t digest() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* state_;
};

// Calls f(page, pairs in it) for every page of a segment that holds pairs: the order of the file.
template <typename Visit>
void visit_pages(const PageLayout& layout, const Segment& segment, int layers, const Visit& f) {
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; head < segment.heads; ++head) {
      const int64_t length = segment.length(layer, head);
      for (int64_t page = segment.first_page; page * layout.page_tokens < length; ++page) {
        const int64_t pairs = length - page * layout.page_tokens;
        f(segment.page(layer, head, page), std::min<int64_t>(pairs, layout.page_tokens));
      }
    }
  }
}

}  // namespace pagezip::document_file
