// Identities and listings as bytes, both ways.
#include "paging/document_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "base/check.h"
#include "paging/document_file_format.h"

namespace pagezip {
namespace {

using namespace document_file;  // NOLINT(google-build-using-namespace): this file implements it

class ByteWriter {
 public:
  template <typename T>
  void value(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  void list(const T& values) {
    value(static_cast<uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()),
                  values.size() * sizeof(typename T::value_type));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

void write_record(ByteWriter& writer, const DocumentIdentity& identity) {
  const KvShape& shape = identity.shape;
  writer.value(shape.model.weights);
  writer.value(shape.model.tokenizer);
  writer.value(shape.model.rope);
  writer.value(shape.model.chat_template);
  writer.value(shape.page.version());
  writer.value(static_cast<uint32_t>(shape.page.k_type));
  writer.value(static_cast<uint32_t>(shape.page.v_type));
  writer.value(static_cast<uint32_t>(shape.page.page_tokens));
  writer.value(static_cast<uint32_t>(shape.page.head_dim));
  writer.value(static_cast<uint32_t>(shape.kv_heads));
  writer.value(static_cast<uint32_t>(shape.groups.size()));
  for (const KvGroupShape& group : shape.groups) {
    writer.value(static_cast<uint32_t>(group.layers));
    writer.value(static_cast<uint32_t>(group.window));
  }
  writer.list(identity.prefix_ids);
  writer.list(identity.context_ids);
  writer.list(identity.scorer);
  writer.value(identity.scorer_version);
  writer.value(identity.chunk_tokens);
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
    if (!is_plain_text(text, kTextBytesMax)) {
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
  shape.model.weights = reader.value<uint64_t>("fingerprint");
  shape.model.tokenizer = reader.value<uint64_t>("tokenizer");
  shape.model.rope = reader.value<uint64_t>("RoPE");
  shape.model.chat_template = reader.value<uint64_t>("chat template");
  const bool plain_keys = reader.small("page version", 0, 1) == 1;
  shape.page.key_order = plain_keys ? KeyOrder::kPlain : KeyOrder::kTransposed;
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

VersionIdentity read_version(HeaderReader& reader) {
  VersionIdentity version;
  version.full = reader.small("kind of version", 0, 1) == 1;
  version.selector = reader.text("selector");
  version.keep_ratio = reader.value<double>("keep ratio");
  if (!(version.keep_ratio > 0 && version.keep_ratio <= 1)) {
    reader.fail("keep ratio");
  }
  version.min_per_head = reader.non_negative("minimum per head");
  return version;
}

std::string describe(std::span<const KvGroupShape> groups) {
  std::string text;
  for (const KvGroupShape& group : groups) {
    text += fmt::format("{}{} layers of window {}", text.empty() ? "" : ", ", group.layers,
                        group.window);
  }
  return text;
}

const char* name_of(KeyOrder order) {
  return order == KeyOrder::kTransposed ? "transposed" : "plain";
}

const char* name_of(KvType type) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16"};
  return kNames[static_cast<size_t>(type)];
}

// Its bytes (uint16), then itself; nothing if it doesn't fit into what is left.
std::optional<std::string> take_text(std::string_view& rest) {
  uint16_t bytes = 0;
  if (rest.size() < sizeof(bytes)) {
    return std::nullopt;
  }
  std::memcpy(&bytes, rest.data(), sizeof(bytes));
  rest.remove_prefix(sizeof(bytes));
  if (rest.size() < bytes) {
    return std::nullopt;
  }
  std::string text(rest.substr(0, bytes));
  rest.remove_prefix(bytes);
  return text;
}

}  // namespace

KvShape make_kv_shape(const ModelIdentity& model, std::span<const KvGroup> groups,
                      const KvGeometry& geometry) {
  KvShape shape;
  shape.model = model;
  for (const KvGroup& group : groups) {
    shape.groups.push_back({static_cast<int>(group.layers.size()), group.window});
  }
  shape.kv_heads = geometry.kv_heads;
  shape.page = geometry.page;
  return shape;
}

std::string why_unfit(const ModelIdentity& found, const ModelIdentity& expected) {
  std::string difference;
  const auto compare = [&](const char* what, uint64_t a, uint64_t b) {
    if (difference.empty() && a != b) {
      difference = fmt::format("made with the {} {:016x} instead of {:016x}", what, a, b);
    }
  };
  compare("model of fingerprint", found.weights, expected.weights);
  compare("tokenizer", found.tokenizer, expected.tokenizer);
  compare("RoPE configuration", found.rope, expected.rope);
  compare("chat template", found.chat_template, expected.chat_template);
  return difference;
}

std::string why_unfit(const KvShape& found, const KvShape& expected) {
  std::string difference = why_unfit(found.model, expected.model);
  const auto compare = [&](const char* what, const auto& a, const auto& b) {
    if (difference.empty() && a != b) {
      difference = fmt::format("{} {} instead of {}", what, a, b);
    }
  };
  compare("KV groups of", describe(found.groups), describe(expected.groups));
  compare("KV heads:", found.kv_heads, expected.kv_heads);
  compare("head length", found.page.head_dim, expected.page.head_dim);
  compare("type of keys", std::string_view(name_of(found.page.k_type)),
          name_of(expected.page.k_type));
  compare("type of values", std::string_view(name_of(found.page.v_type)),
          name_of(expected.page.v_type));
  compare("tokens per page:", found.page.page_tokens, expected.page.page_tokens);
  compare("order of keys", std::string_view(name_of(found.page.key_order)),
          name_of(expected.page.key_order));
  return difference;
}

std::string canonical_record(const DocumentIdentity& identity) {
  ByteWriter writer;
  write_record(writer, identity);
  return writer.take() + identity.parent;  // the record knows its own end
}

std::string parent_record(const DocumentIdentity& identity) {
  ByteWriter writer;
  writer.list(canonical_record(identity));
  writer.value(identity.version.full);
  writer.list(identity.version.selector);
  writer.value(identity.version.keep_ratio);
  writer.value(identity.version.min_per_head);
  return writer.take();
}

bool may_use(const Scope& scope, const Requester& requester) {
  return scope.kind == Scope::Kind::kTenant
             ? scope.name == requester.tenant
             : std::find(requester.groups.begin(), requester.groups.end(), scope.name) !=
                   requester.groups.end();
}

bool is_plain_text(std::string_view text, size_t bytes_max) {
  return text.size() <= bytes_max && std::all_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
         });
}

bool is_document_id(std::string_view id) {
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !id.empty() && id.size() <= DocumentListing::kIdBytesMax &&
         std::all_of(id.begin(), id.end(), is_part);
}

bool is_valid_metadata(const std::map<std::string, std::string>& metadata) {
  return metadata.size() <= DocumentListing::kMetadataKeysMax &&
         document_file::bytes_of_metadata(metadata) <= DocumentListing::kMetadataBytesMax;
}

bool is_valid(const DocumentListing& listing) {
  return (listing.id.empty() || is_document_id(listing.id)) &&
         is_plain_text(listing.name, DocumentListing::kNameBytesMax) &&
         is_plain_text(listing.scope.name, DocumentListing::kScopeBytesMax) &&
         listing.created_s >= 0 && listing.ttl_s >= 0 && is_valid_metadata(listing.metadata);
}

namespace document_file {

std::string encode_header(const DocumentIdentity& identity) {
  ByteWriter writer;
  write_record(writer, identity);
  const VersionIdentity& version = identity.version;
  writer.value(static_cast<uint32_t>(version.full));
  writer.list(version.selector);
  writer.value(version.keep_ratio);
  writer.value(version.min_per_head);
  writer.list(identity.provenance);
  return writer.take();
}

DocumentIdentity decode_header(const InputFile& file, std::span<const std::byte> bytes) {
  HeaderReader reader(file, bytes);
  DocumentIdentity identity;
  identity.shape = read_shape(reader);
  identity.prefix_ids = reader.ids("prefix");
  identity.context_ids = reader.ids("text");
  identity.scorer = reader.text("scorer");
  identity.scorer_version = reader.value<uint32_t>("scorer version");
  identity.chunk_tokens = reader.non_negative("chunk size");
  identity.version = read_version(reader);
  identity.provenance = reader.text("provenance");
  reader.finish();
  return identity;
}

ListingSlot encode_listing(const DocumentListing& listing) {
  CHECK(is_valid(listing));
  ListingSlot slot;
  slot.revision = listing.revision;
  slot.created_s = listing.created_s;
  slot.ttl_s = listing.ttl_s;
  slot.pinned = listing.pinned ? 1 : 0;
  slot.imported = listing.imported ? 1 : 0;
  slot.scope_kind = static_cast<uint8_t>(listing.scope.kind);
  slot.id_bytes = static_cast<uint8_t>(listing.id.copy(slot.id, sizeof(slot.id)));
  slot.scope_bytes = static_cast<uint8_t>(listing.scope.name.copy(slot.scope, sizeof(slot.scope)));
  slot.name_bytes = static_cast<uint16_t>(listing.name.copy(slot.name, sizeof(slot.name)));
  char* end = slot.metadata;
  for (const auto& [key, value] : listing.metadata) {
    for (const std::string& text : {key, value}) {
      const auto bytes = static_cast<uint16_t>(text.size());
      std::memcpy(end, &bytes, sizeof(bytes));
      end += sizeof(bytes);
      end += text.copy(end, bytes);
    }
  }
  slot.metadata_keys = static_cast<uint8_t>(listing.metadata.size());
  slot.hash = slot_hash(slot);
  return slot;
}

size_t bytes_of_metadata(const std::map<std::string, std::string>& metadata) {
  size_t bytes = 0;
  for (const auto& [key, value] : metadata) {
    bytes += 2 * sizeof(uint16_t) + key.size() + value.size();
  }
  return bytes;
}

std::optional<DocumentListing> decode_listing(const ListingSlot& slot) {
  if (slot.hash != slot_hash(slot) || slot.pinned > 1 || slot.imported > 1 || slot.scope_kind > 1 ||
      slot.id_bytes > sizeof(slot.id) || slot.scope_bytes > sizeof(slot.scope) ||
      slot.name_bytes > sizeof(slot.name)) {
    return std::nullopt;
  }
  DocumentListing listing;
  listing.id.assign(slot.id, slot.id_bytes);
  listing.name.assign(slot.name, slot.name_bytes);
  listing.scope = {static_cast<Scope::Kind>(slot.scope_kind),
                   std::string(slot.scope, slot.scope_bytes)};
  listing.created_s = slot.created_s;
  listing.ttl_s = slot.ttl_s;
  listing.pinned = slot.pinned == 1;
  listing.revision = slot.revision;
  listing.imported = slot.imported == 1;
  std::string_view rest(slot.metadata, sizeof(slot.metadata));
  for (int i = 0; i < slot.metadata_keys; ++i) {
    const auto key = take_text(rest);
    const auto value = take_text(rest);
    if (!key || !value || !listing.metadata.emplace(*key, *value).second) {
      return std::nullopt;
    }
  }
  if (!is_valid(listing)) {
    return std::nullopt;
  }
  return listing;
}

}  // namespace document_file
}  // namespace pagezip
