// Text to token ids and back, exactly as the model's own GGUF file describes it.
//
// Two families: byte-level BPE (tokenizer.ggml.model = gpt2) and SentencePiece-like merging by
// score (= llama). The vocabulary is untrusted: what contradicts itself is an Error(kModelFile)
// when the Tokenizer is made. Text is untrusted too: any bytes encode, in O(n log n) at worst.
//
// A control token (type 3, the unknown token, and all end-of-generation tokens) comes out of
// encode() only where it is asked for. Except: for text that a SentencePiece vocabulary cannot
// spell, its unknown token stands in, unless that is of type 3 or ends the generation. User-defined
// tokens (type 4) are matched in all text, as the models were trained.
//
// Thread rule: const methods from any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "engine/gguf.h"
#include "engine/tokenizer_encoder.h"
#include "engine/tokenizer_vocabulary.h"

namespace pagezip {

class Tokenizer {
 public:
  /// Everything is copied: the file may be closed. Throws Error(kModelFile).
  explicit Tokenizer(const GgufFile& file);
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  /// No BOS is added. `parse_special`: control tokens written in the text become their ids.
  /// Throws Error(kUsage) for text above 256 MiB.
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const;

  /// Valid UTF-8: broken parts become U+FFFD. `with_special`: control tokens appear as their text,
  /// else not at all. A space that encode() put before the text is taken away again.
  std::string decode(std::span<const TokenId> ids, bool with_special) const;

  // For one token. REQUIRES: 0 <= id < size().
  /// Its bytes, which may be part of a character; of a control token its name.
  std::string piece(TokenId id) const { return vocabulary_->piece(id); }
  bool is_control(TokenId id) const { return vocabulary_->is_control(id); }
  bool is_end_of_generation(TokenId id) const;

  TokenId size() const { return vocabulary_->size(); }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  /// Whether the model wants BOS before a plain text.
  bool add_bos() const { return add_bos_; }
  /// The token whose text is exactly this, control tokens included.
  std::optional<TokenId> find(std::string_view text) const { return vocabulary_->find(text); }
  /// The first control token written in the text at or after `from`.
  std::optional<Vocabulary::Match> find_control(std::string_view text, size_t from) const;
  /// Ascending.
  std::span<const TokenId> end_of_generation() const { return end_of_generation_; }

 private:
  std::unique_ptr<Vocabulary> vocabulary_;  // the encoder points to it
  std::unique_ptr<TextEncoder> encoder_;
  bool adds_space_prefix_ = false;
  bool add_bos_ = false;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  std::vector<TokenId> end_of_generation_;
};

/// Turns a stream of tokens into a stream of whole characters. Not thread-safe; borrows the
/// Tokenizer. Control tokens give no text.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// The characters that are complete with this token, valid UTF-8; often empty in the middle of
  /// one. REQUIRES: 0 <= id < tokenizer.size().
  std::string feed(TokenId id);
  /// Ends the stream: U+FFFD if it ended inside a character.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;  // the start of an incomplete character, at most 3 bytes between calls
};

}  // namespace pagezip
