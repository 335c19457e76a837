#include "engine/tokenizer_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"
#include "base/error.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;
// Bounds the work that each position of a text can cost in find_special.
constexpr size_t kMaxSpecialBytes = 1024;

[[noreturn]] void fail(const GgufFile& file, const std::string& what) {
  throw Error(ErrorKind::kModelFile, file.path() + ": " + what);
}

/// GPT-2's table: printable bytes stand for themselves, the others for U+0100 and up, in order.
std::array<int, 512> byte_of_code_point() {
  std::array<int, 512> bytes{};
  bytes.fill(-1);
  size_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    bytes[printable ? static_cast<size_t>(byte) : next++] = byte;
  }
  return bytes;
}

/// The byte of "<0x0A>"; nothing if the text is another.
std::optional<uint8_t> parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return {};
  uint8_t byte = 0;
  const auto result = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  if (result.ec != std::errc() || result.ptr != text.data() + 5) return {};
  return byte;
}

}  // namespace

std::optional<std::string> byte_level_bytes(std::string_view spelling) {
  static const std::array<int, 512> kBytes = byte_of_code_point();
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Char next = decode_utf8(spelling);
    if (next.status != Utf8Status::kValid || next.code_point >= kBytes.size()) return {};
    const int byte = kBytes[next.code_point];
    if (byte < 0) return {};
    bytes += static_cast<char>(byte);
    spelling.remove_prefix(next.bytes);
  }
  return bytes;
}

Vocabulary::Vocabulary(const GgufFile& file, TokenSpelling spelling) : spelling_(spelling) {
  const auto texts = file.get_strings("tokenizer.ggml.tokens");
  if (!texts || texts->empty()) fail(file, "the vocabulary is missing (tokenizer.ggml.tokens)");
  if (texts->size() > kMaxTokens) fail(file, "the vocabulary is too large");
  const auto kinds = file.get_ints("tokenizer.ggml.token_type");
  if (kinds && kinds->size() != texts->size()) {
    fail(file, fmt::format("tokenizer.ggml.token_type has {} entries for {} tokens", kinds->size(),
                           texts->size()));
  }
  texts_.reserve(texts->size());
  kinds_.reserve(texts->size());
  ids_.reserve(texts->size());
  for (size_t i = 0; i < texts->size(); ++i) {
    const int64_t kind = kinds ? (*kinds)[i] : static_cast<int64_t>(TokenKind::kNormal);
    if (kind < 1 || kind > 6) fail(file, fmt::format("token {} has unknown type {}", i, kind));
    kinds_.push_back(static_cast<TokenKind>(kind));
    std::string text((*texts)[i]);
    if (spelling == TokenSpelling::kByteLevel && kinds_.back() == TokenKind::kNormal) {
      text = byte_level_bytes(text).value_or(text);
    }
    texts_.push_back(std::move(text));
    const auto id = static_cast<TokenId>(i);
    ids_[texts_.back()] = id;
    if (kinds_.back() == TokenKind::kByte) {
      const std::optional<uint8_t> byte = parse_byte_token(texts_.back());
      if (!byte) fail(file, fmt::format("token {} is a byte token but not named like one", i));
      byte_tokens_[*byte] = id;
    }
  }
}

std::optional<TokenId> Vocabulary::token_of_key(const GgufFile& file, std::string_view key) const {
  const std::optional<uint64_t> id = file.get_uint(key);
  if (!id) return {};
  if (*id >= texts_.size()) {
    fail(file, fmt::format("{} is {}, outside of the {} tokens", key, *id, texts_.size()));
  }
  return static_cast<TokenId>(*id);
}

std::string Vocabulary::piece(TokenId id) const {
  if (kind(id) == TokenKind::kByte) {
    const std::optional<uint8_t> byte = parse_byte_token(text(id));
    CHECK(byte.has_value());  // the constructor takes no other text for such a token
    return std::string(1, static_cast<char>(*byte));
  }
  const bool has_marks = spelling_ == TokenSpelling::kSpaceMark &&
                         (kind(id) == TokenKind::kNormal || kind(id) == TokenKind::kUnused);
  if (!has_marks) return text(id);
  std::string piece;
  std::string_view rest = text(id);
  for (size_t at = rest.find(kSpaceMark); at != rest.npos; at = rest.find(kSpaceMark)) {
    piece += rest.substr(0, at);
    piece += ' ';
    rest.remove_prefix(at + kSpaceMark.size());
  }
  piece += rest;
  return piece;
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<TokenId> Vocabulary::find_text(std::string_view text) const {
  const std::optional<TokenId> id = find(text);
  if (!id || is_control(*id) || kind(*id) == TokenKind::kByte) return {};
  return id;
}

void Vocabulary::make_control(TokenId id) {
  kinds_[static_cast<size_t>(id)] = TokenKind::kControl;
  std::replace(std::begin(byte_tokens_), std::end(byte_tokens_), std::optional(id),
               std::optional<TokenId>());
}

void Vocabulary::index_special_tokens() {
  special_.emplace_back();
  for (TokenId id = 0; id < size(); ++id) {
    if (!is_control(id) && kind(id) != TokenKind::kUserDefined) continue;
    if (text(id).empty() || text(id).size() > kMaxSpecialBytes) continue;
    uint32_t node = 0;
    for (const char c : text(id)) {
      const auto byte = static_cast<uint8_t>(c);
      uint32_t child = child_of(node, byte);
      if (child == 0) {
        child = static_cast<uint32_t>(special_.size());
        special_.emplace_back();
        auto& children = special_[node].children;
        children.insert(std::lower_bound(children.begin(), children.end(), std::pair(byte, 0u)),
                        {byte, child});
      }
      node = child;
    }
    special_[node].id = id;
  }
}

uint32_t Vocabulary::child_of(uint32_t node, uint8_t byte) const {
  const auto& children = special_[node].children;
  const auto found = std::lower_bound(children.begin(), children.end(), std::pair(byte, 0u));
  return found != children.end() && found->first == byte ? found->second : 0;
}

std::optional<Vocabulary::Match> Vocabulary::find_special(std::string_view text, size_t from,
                                                          bool with_control) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      node = child_of(node, static_cast<uint8_t>(text[at]));
      if (node == 0) break;
      const TokenId id = special_[node].id;
      if (id >= 0 && (with_control || !is_control(id))) longest = Match{begin, at + 1, id};
    }
    if (longest) return longest;
  }
  return {};
}

}  // namespace pagezip
