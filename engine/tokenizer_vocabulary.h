// The token table of a model file: texts, kinds, and search for special tokens in text.
//
// Thread rule: const methods from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "engine/gguf.h"

namespace pagezip {

/// The numbers are those of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// How the texts of normal tokens are written in the file.
enum class TokenSpelling : uint8_t {
  kByteLevel,  // each byte as one printable character (GPT-2); text() is decoded to the bytes
  kSpaceMark,  // spaces as U+2581 (SentencePiece); text() keeps the mark, piece() has the space
};

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

/// Undoes the byte-level spelling; nothing if the text is not spelt so.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

class Vocabulary {
 public:
  /// Reads tokenizer.ggml.tokens and token_type. Throws Error(kModelFile).
  Vocabulary(const GgufFile& file, TokenSpelling spelling);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  TokenId size() const { return static_cast<TokenId>(texts_.size()); }
  /// The token that a metadata key names, nothing if there is no such key. Throws if the id lies
  /// outside of the vocabulary.
  std::optional<TokenId> token_of_key(const GgufFile& file, std::string_view key) const;

  const std::string& text(TokenId id) const { return texts_[static_cast<size_t>(id)]; }
  TokenKind kind(TokenId id) const { return kinds_[static_cast<size_t>(id)]; }
  bool is_control(TokenId id) const {
    return kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown;
  }
  /// The bytes that the token stands for; of a control token its name.
  std::string piece(TokenId id) const;

  std::optional<TokenId> find(std::string_view text) const;
  /// Like find, but only tokens that ordinary text may become: neither control nor byte tokens.
  std::optional<TokenId> find_text(std::string_view text) const;
  /// The token of that byte in vocabularies with byte fallback (<0xXX>).
  std::optional<TokenId> byte_token(uint8_t byte) const { return byte_tokens_[byte]; }

  /// From now on no text becomes this token, not even as a byte.
  void make_control(TokenId id);
  /// REQUIRES: called once, after the last make_control.
  void index_special_tokens();

  struct Match {
    size_t begin;
    size_t end;
    TokenId id;
  };
  /// The first user-defined token (with `with_control`: or control token) in the text at or after
  /// `from`; of several at one place the longest.
  std::optional<Match> find_special(std::string_view text, size_t from, bool with_control) const;

 private:
  struct TrieNode {
    TokenId id = -1;
    std::vector<std::pair<uint8_t, uint32_t>> children;  // ascending by byte
  };
  uint32_t child_of(uint32_t node, uint8_t byte) const;  // 0: none

  TokenSpelling spelling_;
  std::vector<std::string> texts_;
  std::vector<TokenKind> kinds_;
  std::unordered_map<std::string_view, TokenId> ids_;  // views into texts_
  std::optional<TokenId> byte_tokens_[256];
  std::vector<TrieNode> special_;  // node 0 is the root
};

}  // namespace pagezip
