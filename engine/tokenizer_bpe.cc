// Everything works on bytes and token ids: the printable spelling of GPT-2 was undone when the
// vocabulary was read. A merge is found by its pair of ids.

#include "engine/tokenizer_bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

[[noreturn]] void fail(const GgufFile& file, const std::string& what) {
  throw Error(ErrorKind::kModelFile, file.path() + ": " + what);
}

// A text is cut by the first expression; each match, and each gap between matches, is cut on by the
// next. The expressions are those of the models' own tokenizer.json files.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  std::vector<const char*> patterns;
  bool whole_words_first;  // a word that is a token needs no merges to become it
};

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> kAll = {
      {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)", "[0-9][0-9][0-9]"}, false},
      {"gpt-2", {kGpt2Words}, false},
      {"smollm", {R"(\p{N})", kGpt2Words}, false},
      {"qwen2", {kQwen2Words}, false},
      {"llama-bpe", {kLlama3Words}, true},
      {"llama3", {kLlama3Words}, true},
      {"llama-v3", {kLlama3Words}, true},
  };
  return kAll;
}

const PreTokenizer& pre_tokenizer_of(const GgufFile& file) {
  const std::string_view name = file.get_string("tokenizer.ggml.pre").value_or("default");
  for (const PreTokenizer& known : pre_tokenizers()) {
    if (known.name == name) return known;
  }
  fail(file, fmt::format("the pre-tokenizer '{}' is not supported (tokenizer.ggml.pre)",
                         to_printable(name)));
}

/// One compiled expression. Const methods from any thread.
class Regex {
 public:
  explicit Regex(const char* pattern) {
    int code = 0;
    size_t offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr));
    CHECK(code_ != nullptr);  // the patterns are constants of ours
    // May fail where memory cannot be made executable: matching then interprets, only slower.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  }

  /// Calls visit(piece) for each match and each gap between matches, in order: no byte is lost.
  /// REQUIRES: valid UTF-8.
  template <typename Visit>
  void split(std::string_view text, const Visit& visit) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (!match) throw std::bad_alloc();
    size_t done = 0;
    while (done < text.size() && find(text, done, match.get())) {
      const size_t* bounds = pcre2_get_ovector_pointer(match.get());
      CHECK_LT(bounds[0], bounds[1]);  // none of the patterns matches nothing
      if (bounds[0] > done) visit(text.substr(done, bounds[0] - done));
      visit(text.substr(bounds[0], bounds[1] - bounds[0]));
      done = bounds[1];
    }
    if (done < text.size()) visit(text.substr(done));
  }

 private:
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct FreeMatch {
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };

  bool find(std::string_view text, size_t from, pcre2_match_data* match) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    constexpr uint32_t kFlags = PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(code_.get(), subject, text.size(), from, kFlags, match, nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_.get(), subject, text.size(), from, kFlags | PCRE2_NO_JIT, match,
                          nullptr);
    }
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0) {
      std::array<PCRE2_UCHAR, 128> message{};
      pcre2_get_error_message(found, message.data(), message.size());
      throw Error(ErrorKind::kUsage, fmt::format("the text cannot be cut into words: {}",
                                                 reinterpret_cast<const char*>(message.data())));
    }
    return true;
  }

  std::unique_ptr<pcre2_code, FreeCode> code_;
};

class BpeEncoder : public TextEncoder {
 public:
  BpeEncoder(const GgufFile& file, const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    const PreTokenizer& pre = pre_tokenizer_of(file);
    whole_words_first_ = pre.whole_words_first;
    for (const char* pattern : pre.patterns) patterns_.emplace_back(pattern);
    for (int byte = 0; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      byte_ids_[static_cast<size_t>(byte)] = vocabulary.find_text({&text, 1}).value_or(-1);
    }
    read_merges(file);
  }

  void encode(std::string_view text, bool /*at_start*/, WordCache& words) const override {
    std::vector<Symbol> symbols;
    const auto encode_word = [&](std::string_view word) {
      words.append(word, [&] { append_word(word, symbols, words.ids()); });
    };
    while (!text.empty()) {
      const size_t valid = valid_utf8_bytes(text);
      split(text.substr(0, valid), 0, encode_word);
      text.remove_prefix(valid);
      // Broken bytes are a word of their own: no expression could match them.
      size_t broken = 0;
      while (broken < text.size()) {
        const Utf8Char next = decode_utf8(text.substr(broken));
        if (next.status == Utf8Status::kValid) break;
        broken += next.bytes;
      }
      if (broken > 0) encode_word(text.substr(0, broken));
      text.remove_prefix(broken);
    }
  }

 private:
  static uint64_t pair_key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  void read_merges(const GgufFile& file) {
    const auto merges = file.get_strings("tokenizer.ggml.merges");
    if (!merges) fail(file, "the merges are missing (tokenizer.ggml.merges)");
    const auto side = [&](std::string_view printable) {
      return vocabulary_.find_text(byte_level_bytes(printable).value_or(""));
    };
    merges_.reserve(merges->size());
    for (size_t rank = 0; rank < merges->size(); ++rank) {
      const std::string_view line = (*merges)[rank];
      const size_t space = line.find(' ', 1);
      if (space == std::string_view::npos) fail(file, fmt::format("merge {} has no space", rank));
      const auto left = side(line.substr(0, space));
      const auto right = side(line.substr(space + 1));
      const auto whole =
          left && right ? vocabulary_.find_text(vocabulary_.text(*left) + vocabulary_.text(*right))
                        : std::nullopt;
      if (!whole) fail(file, fmt::format("merge {} names a token that does not exist", rank));
      merges_.emplace(pair_key(*left, *right), Merge{static_cast<double>(rank), *whole});
    }
  }

  template <typename Visit>
  void split(std::string_view text, size_t level, const Visit& visit) const {
    if (level == patterns_.size()) return visit(text);
    patterns_[level].split(text, [&](std::string_view piece) { split(piece, level + 1, visit); });
  }

  void append_word(std::string_view word, std::vector<Symbol>& symbols,
                   std::vector<TokenId>& ids) const {
    if (whole_words_first_) {
      if (const std::optional<TokenId> id = vocabulary_.find_text(word)) return ids.push_back(*id);
    }
    symbols.clear();
    for (size_t i = 0; i < word.size(); ++i) {
      symbols.push_back(
          {static_cast<uint32_t>(i), 1, byte_ids_[static_cast<uint8_t>(word[i])], 0, 0});
    }
    link_symbols(symbols);
    merge_symbols(symbols, [this](const Symbol& left, const Symbol& right) {
      const auto found = merges_.find(pair_key(left.id, right.id));
      return found == merges_.end() ? std::nullopt : std::optional<Merge>(found->second);
    });
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      // Some vocabularies lack tokens for bytes that text hardly has (SmolLM2: 0x04); the models
      // know no way to see them, so they are left out.
      const TokenId id = symbols[static_cast<size_t>(i)].id;
      if (id >= 0) ids.push_back(id);
    }
  }

  const Vocabulary& vocabulary_;
  std::vector<Regex> patterns_;
  bool whole_words_first_ = false;
  std::array<TokenId, 256> byte_ids_{};
  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace

std::unique_ptr<TextEncoder> make_bpe_encoder(const GgufFile& file, const Vocabulary& vocabulary) {
  return std::make_unique<BpeEncoder>(file, vocabulary);
}

}  // namespace pagezip
