// A merge may only make a token, so a word can be cut wherever no token of the vocabulary could
// reach across: before a space mark, unless some token has that mark after the very byte that
// stands there. Cutting there changes no id, and short words are merged fast and cached.

#include "engine/tokenizer_spm.h"

#include <fmt/format.h>

#include <bitset>
#include <cmath>

#include "base/error.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

[[noreturn]] void fail(const GgufFile& file, const std::string& what) {
  throw Error(ErrorKind::kModelFile, file.path() + ": " + what);
}

/// A space mark at `at` that follows something other than a space mark.
bool starts_word(std::string_view text, size_t at) {
  return text.substr(at).starts_with(kSpaceMark) && !text.substr(0, at).ends_with(kSpaceMark);
}

class SpmEncoder : public TextEncoder {
 public:
  SpmEncoder(const GgufFile& file, const Vocabulary& vocabulary, bool space_prefix)
      : vocabulary_(vocabulary), space_prefix_(space_prefix) {
    auto scores = file.get_floats("tokenizer.ggml.scores");
    if (!scores) fail(file, "the scores are missing (tokenizer.ggml.scores)");
    if (scores->size() != static_cast<size_t>(vocabulary.size())) {
      fail(file, fmt::format("tokenizer.ggml.scores has {} entries for {} tokens", scores->size(),
                             vocabulary.size()));
    }
    for (const float score : *scores) {
      if (!std::isfinite(score)) fail(file, "tokenizer.ggml.scores has a value that is no number");
    }
    scores_ = std::move(*scores);
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
      const std::string& text = vocabulary.text(id);
      if (vocabulary.is_control(id)) continue;
      for (size_t at = 1; at < text.size(); ++at) {
        if (starts_word(text, at)) bytes_before_mark_.set(static_cast<uint8_t>(text[at - 1]));
      }
    }
    unknown_ = vocabulary.token_of_key(file, "tokenizer.ggml.unknown_token_id");
    // Else text could end a turn.
    if (unknown_ && vocabulary.kind(*unknown_) == TokenKind::kControl) unknown_.reset();
  }

  void encode(std::string_view text, bool at_start, WordCache& words) const override {
    if (text.empty()) return;
    std::string marked;
    marked.reserve(text.size() + text.size() / 2 + kSpaceMark.size());
    if (space_prefix_ && at_start) marked += kSpaceMark;
    for (const char c : text) {
      if (c == ' ') {
        marked += kSpaceMark;
      } else {
        marked += c;
      }
    }
    std::vector<Symbol> symbols;
    size_t begin = 0;
    const std::string_view all = marked;
    const auto finish_word = [&](size_t end) {
      const std::string_view word = all.substr(begin, end - begin);
      words.append(word, [&] { append_word(word, symbols, words.ids()); });
      begin = end;
    };
    for (size_t at = 1; at < all.size(); ++at) {
      if (all[at] == kSpaceMark[0] && starts_word(all, at) &&
          !bytes_before_mark_[static_cast<uint8_t>(all[at - 1])]) {
        finish_word(at);
      }
    }
    finish_word(all.size());
  }

 private:
  void append_word(std::string_view word, std::vector<Symbol>& symbols,
                   std::vector<TokenId>& ids) const {
    symbols.clear();
    for (size_t at = 0; at < word.size();) {
      const size_t bytes = decode_utf8(word.substr(at)).bytes;
      const TokenId id = vocabulary_.find_text(word.substr(at, bytes)).value_or(-1);
      symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(bytes), id, 0, 0});
      at += bytes;
    }
    link_symbols(symbols);
    merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
      const auto id = vocabulary_.find_text(word.substr(left.begin, left.length + right.length));
      if (!id) return {};
      return Merge{-static_cast<double>(scores_[static_cast<size_t>(*id)]), *id};
    });
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      const Symbol& symbol = symbols[static_cast<size_t>(i)];
      if (symbol.id >= 0) {
        ids.push_back(symbol.id);
      } else {
        append_bytes(word.substr(symbol.begin, symbol.length), ids);
      }
    }
  }

  void append_bytes(std::string_view text, std::vector<TokenId>& ids) const {
    for (const char c : text) {
      const std::optional<TokenId> id = vocabulary_.byte_token(static_cast<uint8_t>(c));
      if (id) {
        ids.push_back(*id);
      } else if (unknown_) {
        ids.push_back(*unknown_);
      }
    }
  }

  const Vocabulary& vocabulary_;
  bool space_prefix_;
  std::vector<float> scores_;  // [tokens]
  std::bitset<256> bytes_before_mark_;
  std::optional<TokenId> unknown_;
};

}  // namespace

std::unique_ptr<TextEncoder> make_spm_encoder(const GgufFile& file, const Vocabulary& vocabulary,
                                              bool space_prefix) {
  return std::make_unique<SpmEncoder>(file, vocabulary, space_prefix);
}

}  // namespace pagezip
