// The metadata of small tokenizers, for tests that need one without a real model.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/utf8.h"
#include "tests/gguf_writer.h"

namespace pagezip {

/// GPT-2's printable spelling of bytes.
inline std::string byte_level(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t shift = 0;  // how many unprintable bytes lie below this one
    const auto printable = [](uint32_t b) {
      return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
    };
    for (uint32_t b = 0; b < byte; ++b) shift += printable(b) ? 0 : 1;
    append_utf8(spelling, printable(byte) ? byte : 256 + shift);
  }
  return spelling;
}

struct TinyVocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges;  // byte-level BPE
  std::vector<float> scores;        // SentencePiece

  int32_t add(const std::string& text, int32_t type = 1, float score = 0) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size()) - 1;
  }
  int32_t add_merge(std::string_view left, std::string_view right) {
    merges.push_back(byte_level(left) + " " + byte_level(right));
    return add(byte_level(std::string(left) + std::string(right)));
  }
};

/// Ids 0 to 255 are the bytes; then a few merges, two control tokens and a user-defined one.
inline TinyVocabulary tiny_bpe() {
  TinyVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.add(byte_level(std::string(1, static_cast<char>(byte))));
  }
  for (const auto& [left, right] :
       std::vector<std::pair<std::string, std::string>>{{"a", "b"},
                                                        {"b", "c"},
                                                        {"ab", "c"},
                                                        {" ", "ab"},
                                                        {"a", "a"},
                                                        {"aa", "aa"},
                                                        {" ", " "},
                                                        {"1", "2"},
                                                        {"12", "3"},
                                                        {"\xc3", "\xa9"},
                                                        {"c", "\xc3\xa9"}}) {
    vocabulary.add_merge(left, right);
  }
  vocabulary.add("<|im_start|>", 3);
  vocabulary.add("<|im_end|>", 3);
  vocabulary.add("<tool>", 4);
  return vocabulary;
}

/// Ids 0 to 2 are <unk>, <s>, </s>; then 256 byte tokens, then pieces.
inline TinyVocabulary tiny_spm() {
  TinyVocabulary vocabulary;
  vocabulary.add("<unk>", 2);
  vocabulary.add("<s>", 3);
  vocabulary.add("</s>", 3);
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    vocabulary.add(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", 6);
  }
  const std::string mark = "\xe2\x96\x81";
  float score = 0;
  for (const std::string& text :
       {mark + "a", std::string("ab"), mark + "ab", std::string("bc"), std::string("abc"),
        mark + mark, std::string("</"), std::string("s>"), std::string("\xc3\xa9"),
        "c" + mark + "a", mark, std::string("a"), std::string("b"), std::string("c"),
        std::string("<"), std::string("/"), std::string("s"), std::string(">")}) {
    vocabulary.add(text, 1, score -= 1);
  }
  vocabulary.add("<tool>", 4);
  vocabulary.add("\n\n", 4);
  return vocabulary;
}

inline GgufWriter bpe_file(const TinyVocabulary& vocabulary, const std::string& pre = "gpt-2") {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", "gpt2")
      .add("tokenizer.ggml.pre", pre)
      .add_array("tokenizer.ggml.tokens", vocabulary.tokens)
      .add_array("tokenizer.ggml.token_type", vocabulary.types)
      .add_array("tokenizer.ggml.merges", vocabulary.merges);
  return writer;
}

inline GgufWriter spm_file(const TinyVocabulary& vocabulary, bool space_prefix) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", "llama")
      .add_array("tokenizer.ggml.tokens", vocabulary.tokens)
      .add_array("tokenizer.ggml.token_type", vocabulary.types)
      .add_array("tokenizer.ggml.scores", vocabulary.scores)
      .add("tokenizer.ggml.add_space_prefix", space_prefix)
      .add("tokenizer.ggml.unknown_token_id", uint32_t{0})
      .add("tokenizer.ggml.bos_token_id", uint32_t{1})
      .add("tokenizer.ggml.eos_token_id", uint32_t{2});
  return writer;
}

}  // namespace pagezip
