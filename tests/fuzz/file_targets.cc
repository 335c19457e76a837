// Targets for files: GGUF and documents.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "engine/chat_template.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "paging/document_file_format.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace pagezip::fuzz {
namespace {

void check_config(const ModelConfig& config) {
  CHECK(config.layers > 0 && config.hidden > 0 && config.heads > 0 && config.kv_heads > 0);
  CHECK_EQ(config.heads % config.kv_heads, 0);
  CHECK_EQ(config.is_global.size(), static_cast<size_t>(config.layers));
  CHECK_EQ(config.rope_global.inverse_frequency.size() * 2, static_cast<size_t>(config.head_dim));
}

/// A file that lives in memory only and has a path.
class MemoryFile {
 public:
  explicit MemoryFile(Bytes bytes) : fd_(memfd_create("document", MFD_CLOEXEC)) {
    CHECK(fd_ >= 0);
    const auto size = static_cast<ssize_t>(bytes.size());
    CHECK_EQ(pwrite(fd_, bytes.data(), bytes.size(), 0), size);
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// Makes size and hashes right, as far as the sections lie inside the file.
std::vector<std::byte> repaired(Bytes input) {
  using namespace document_file;  // NOLINT(google-build-using-namespace): its bytes are our input
  std::vector<std::byte> bytes(input.begin(), input.end());
  Preamble preamble;
  if (bytes.size() < static_cast<size_t>(kSectionsBegin)) return bytes;
  std::memcpy(&preamble, bytes.data(), sizeof(preamble));
  preamble.file_bytes = bytes.size();
  uint64_t begin = kSectionsBegin;
  for (Section& section : preamble.section) {
    const uint64_t left = bytes.size() - begin;
    if (section.bytes > left ||
        static_cast<uint64_t>(padded(static_cast<int64_t>(section.bytes))) > left) {
      break;
    }
    const auto stored = static_cast<uint64_t>(padded(static_cast<int64_t>(section.bytes)));
    section.hash = hash_of(std::span(bytes).subspan(begin, stored));
    begin += stored;
  }
  preamble.hash = preamble_hash(preamble);
  std::memcpy(bytes.data(), &preamble, sizeof(preamble));
  for (const int64_t at : {kSlotsBegin, kSlotsBegin + int64_t{sizeof(ListingSlot)}}) {
    ListingSlot slot;
    std::memcpy(&slot, bytes.data() + at, sizeof(slot));
    slot.hash = slot_hash(slot);
    std::memcpy(bytes.data() + at, &slot, sizeof(slot));
  }
  return bytes;
}

void check_document(const LoadedDocument& loaded, const DocumentHeader& header,
                    const DocumentWorld& world) {
  const Document& document = *loaded.document;
  CHECK_EQ(document.logical_length(), header.logical_length());
  CHECK_EQ(static_cast<size_t>(document.groups()), world.groups.size());
  const PageLayout& layout = world.shape.page;
  const auto inside = static_cast<size_t>(layout.page_bytes());
  int sum = 0;  // reads every page that attention would
  for (int group = 0; group < document.groups(); ++group) {
    const int layers = world.shape.groups[static_cast<size_t>(group)].layers;
    document_file::PageCursor pages(layout, {{document.segment(group), layers}});
    for (auto place = pages.next(); place.page != nullptr; place = pages.next()) {
      CHECK(place.pairs > 0 && place.pairs <= layout.page_tokens);
      sum += static_cast<int>(place.page[0]);
      sum += static_cast<int>(place.page[inside - 1]);
    }
  }
  CHECK(sum >= 0);
  for (int head = 0; head < world.shape.kv_heads; ++head) {
    CHECK_EQ(document.retained(0, head), int64_t{header.lengths[static_cast<size_t>(head)]});
    CHECK(document.retained_own(0, head) >= 0);
  }
  CHECK_EQ(document.compressed(), !header.identity.version.full);
  CHECK(is_valid(header.listing));
  CHECK_EQ(loaded.scores != nullptr, header.has_scores);
  if (loaded.scores != nullptr)
    CHECK_EQ(loaded.scores->tokens, header.logical_length() - document.prefix_length());
}

}  // namespace

DocumentWorld::DocumentWorld()
    : groups(make_kv_groups({true, false}, 8)),
      pool(KvGeometry{{KvType::kF16, KvType::kBF16, 16, 16}, 2, 1}, 64),
      shape(make_kv_shape({1, 2, 3, 4}, groups, pool.geometry())) {}

bool fuzz_gguf(Bytes input) {
  return accepts({ErrorKind::kModelFile}, [&] {
    const GgufFile file = GgufFile::from_bytes({input.begin(), input.end()}, "f.gguf");
    int sum = 0;  // reads both ends of every tensor
    for (const GgufTensor& tensor : file.tensors()) {
      CHECK(file.find(tensor.name) == &tensor);
      if (tensor.bytes == 0) continue;
      sum += static_cast<int>(tensor.data[0]) + static_cast<int>(tensor.data[tensor.bytes - 1]);
    }
    CHECK(sum >= 0);
    accepts({ErrorKind::kModelFile}, [&] { check_config(read_model_config(file)); });
    accepts({ErrorKind::kModelFile}, [&] {
      const Tokenizer tokenizer(file);
      const auto chat_template = ChatTemplate::of_model(file, tokenizer);
      if (chat_template) {
        accepts({ErrorKind::kModelFile, ErrorKind::kUsage},
                [&] { prompt_parts(&*chat_template, tokenizer, "Be brief.", 0); });
      }
    });
  });
}

bool fuzz_document(Bytes input) {
  static DocumentWorld world;
  const MemoryFile file(repaired(input));
  const bool has_header =
      accepts({ErrorKind::kModelFile}, [&] { read_document_header(file.path()); });
  const bool loads = accepts({ErrorKind::kModelFile, ErrorKind::kOutOfMemory}, [&] {
    const LoadedDocument loaded = load_document(file.path(), world.pool, world.shape);
    check_document(loaded, read_document_header(file.path()), world);
  });
  const bool is_whole = accepts({ErrorKind::kModelFile},
                                [&] { verify_document(InputFile(system_files(), file.path())); });
  CHECK(has_header || !is_whole);
  CHECK(is_whole || !loads);
  CHECK_EQ(world.pool.blocks_in_use(), 0);
  CHECK_EQ(world.pool.blocks_reserved(), 0);
  return loads;
}

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"gguf", fuzz_gguf},         {"tokenizer", fuzz_tokenizer}, {"vocabulary", fuzz_vocabulary},
      {"template", fuzz_template}, {"messages", fuzz_messages},   {"document", fuzz_document},
      {"utf8", fuzz_utf8}};
  return kTargets;
}

}  // namespace pagezip::fuzz
