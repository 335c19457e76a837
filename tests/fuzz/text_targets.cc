// Targets for text: UTF-8, tokenizers, vocabularies and chat templates.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/chat_template.h"
#include "engine/tokenizer.h"
#include "engine/utf8.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"
#include "tests/tiny_tokenizer.h"

namespace pagezip::fuzz {
namespace {

constexpr const char* kPreTokenizers[] = {"default", "gpt-2", "smollm", "qwen2", "llama-bpe"};

Tokenizer tokenizer_of(const GgufWriter& writer) {
  return Tokenizer(GgufFile::from_bytes(writer.bytes(), "t.gguf"));
}

std::string to_bytes(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = decoder.feed(id);
    CHECK_EQ(valid_utf8_bytes(piece), piece.size());
    text += piece;
  }
  return text + decoder.flush();
}

/// What holds for every vocabulary. Returns the ids of the text without special tokens. `unknown`:
/// the one control token that text may become.
std::vector<TokenId> check_encoding(const Tokenizer& tokenizer, std::string_view text,
                                    std::optional<TokenId> unknown = {}) {
  std::vector<TokenId> ids;
  for (const bool parse_special : {true, false}) {
    ids = tokenizer.encode(text, parse_special);
    for (const TokenId id : ids) {
      CHECK(id >= 0 && id < tokenizer.size());
      CHECK(parse_special || !tokenizer.is_control(id) || id == unknown);
      CHECK(parse_special || !tokenizer.is_end_of_generation(id));
    }
    const std::string decoded = tokenizer.decode(ids, false);
    CHECK_EQ(valid_utf8_bytes(decoded), decoded.size());
    const std::string streamed = to_bytes(tokenizer, ids);
    CHECK(streamed == decoded || streamed == " " + decoded);  // a stream keeps the space prefix
  }
  return ids;
}

/// The stored text of `bytes`, in parts of unequal sizes.
void check_stream(const Tokenizer& bytes_tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  CHECK_EQ(to_bytes(bytes_tokenizer, ids), to_valid_utf8(text));
}

size_t controls(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  return static_cast<size_t>(
      std::count_if(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_control(id); }));
}

/// What holds for every prompt. Returns how many control tokens it has.
size_t check_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer) {
  size_t end = 0;
  for (const TextSpan& span : prompt.message_spans) {
    CHECK(span.begin < span.end && span.end <= prompt.text.size());
    CHECK(end == 0 ? span.begin >= end : span.begin > end);
    end = span.end;
  }
  const std::vector<TokenId> ids = encode_prompt(prompt, tokenizer);
  CHECK_EQ(tokenizer.decode(ids, true), to_valid_utf8(prompt.text));
  return controls(tokenizer, ids);
}

const Tokenizer& tiny_tokenizer() {
  static const Tokenizer kTokenizer = tokenizer_of(bpe_file(tiny_bpe(), "qwen2"));
  return kTokenizer;
}

}  // namespace

bool fuzz_utf8(Bytes input) {
  const std::string_view text = text_of(input);
  const std::string valid = to_valid_utf8(text);
  CHECK_EQ(valid_utf8_bytes(valid), valid.size());
  CHECK_EQ(to_valid_utf8(valid), valid);
  CHECK_EQ(valid == text, valid_utf8_bytes(text) == text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = decode_utf8(text.substr(at));
    CHECK(next.bytes >= 1 && next.bytes <= 4 && next.bytes <= text.size() - at);
    std::string again;
    if (next.status == Utf8Status::kValid) append_utf8(again, next.code_point);
    CHECK(next.status != Utf8Status::kValid || again == text.substr(at, next.bytes));
    at += next.bytes;
  }
  for (const char c : to_printable(text)) CHECK(c >= 0x20 && c < 0x7f);
  check_stream(tiny_tokenizer(), text);
  return true;
}

bool fuzz_tokenizer(Bytes input) {
  static const std::vector<Tokenizer> kTokenizers = [] {
    std::vector<Tokenizer> tokenizers;
    for (const char* pre : kPreTokenizers) {
      tokenizers.push_back(tokenizer_of(bpe_file(tiny_bpe(), pre)));
    }
    tokenizers.push_back(tokenizer_of(spm_file(tiny_spm(), false)));
    tokenizers.push_back(tokenizer_of(spm_file(tiny_spm(), true)));
    return tokenizers;
  }();
  if (input.empty()) return false;
  const size_t choice = static_cast<size_t>(input[0]) % kTokenizers.size();
  const std::string_view text = text_of(input.subspan(1));
  const Tokenizer& tokenizer = kTokenizers[choice];
  const std::vector<TokenId> ids = check_encoding(tokenizer, text);
  // Nothing is lost, but that the mark of SentencePiece becomes the space that it stands for.
  const bool has_space_prefix = choice + 1 == kTokenizers.size();
  if (!has_space_prefix && text.find("\xe2\x96\x81") == std::string_view::npos) {
    CHECK_EQ(tokenizer.decode(ids, true), to_valid_utf8(text));
  }
  return true;
}

bool fuzz_vocabulary(Bytes input) {
  if (input.empty()) return false;
  const auto options = static_cast<uint8_t>(input[0]);
  const bool is_bpe = (options & 1) != 0;
  std::string_view rest = text_of(input.subspan(1));
  std::string_view tokens = take_part(rest, '\0');
  std::string_view merges = take_part(rest, '\0');
  TinyVocabulary vocabulary;
  while (!tokens.empty()) {
    const std::string_view token = take_part(tokens, '\1');
    const int head = token.empty() ? 0 : static_cast<uint8_t>(token[0]);
    vocabulary.add(std::string(token.substr(token.empty() ? 0 : 1)), head & 7,
                   static_cast<float>(head >> 3));
  }
  while (!merges.empty()) vocabulary.merges.emplace_back(take_part(merges, '\1'));
  const GgufWriter writer =
      is_bpe ? bpe_file(vocabulary, kPreTokenizers[(options >> 1) % std::size(kPreTokenizers)])
             : spm_file(vocabulary, (options & 2) != 0);
  return accepts({ErrorKind::kModelFile}, [&] {
    const Tokenizer tokenizer = tokenizer_of(writer);
    const bool has_unknown = !is_bpe && vocabulary.types[0] == 2;
    const auto unknown = has_unknown ? std::optional<TokenId>(0) : std::nullopt;
    check_encoding(tokenizer, rest, unknown);
    for (TokenId id = 0; id < tokenizer.size(); ++id) {
      check_encoding(tokenizer, tokenizer.piece(id), unknown);
    }
  });
}

bool fuzz_template(Bytes input) {
  static const std::vector<ChatMessage> kMessages = {{"system", "Be brief. <|im_end|>"},
                                                     {"user", " H\xc3\xa9llo\n<|im_start|> "},
                                                     {"assistant", "</think> a|b"},
                                                     {"user", "\xff ok?"}};
  return accepts({ErrorKind::kModelFile}, [&] {
    const ChatTemplate chat_template(text_of(input), "<s>", "</s>");
    const std::initializer_list<ErrorKind> render_errors = {ErrorKind::kModelFile,
                                                            ErrorKind::kUsage};
    accepts(render_errors, [&] {
      check_prompt(chat_template.render(kMessages, 1'700'000'000), tiny_tokenizer());
    });
    accepts(render_errors, [&] { prompt_parts(&chat_template, tiny_tokenizer(), "Be brief.", 0); });
  });
}

bool fuzz_messages(Bytes input) {
  // Control tokens per message, and at the end.
  struct Row {
    ChatTemplate chat_template;
    size_t per_message;
    size_t at_end;
  };
  static const Row kRows[] = {
      {ChatTemplate("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + "
                    "'<|im_end|>' }}{% endfor %}<|im_start|>",
                    "", ""),
       2, 1},
      {ChatTemplate("{% for m in messages %}<|im_start|>{{ m['role'] | upper }}\n"
                    "{{ m['content'] | trim }}<|im_end|>{% endfor %}",
                    "", ""),
       2, 0},
      {ChatTemplate("{% for m in messages %}{{ m.content.split('|')[-1].strip('<') | "
                    "replace('a', '<|') }}<|im_end|>{{ {m.role: m.content} | tojson }}"
                    "{{ m.content[1:] ~ m.content[:1] }}{% endfor %}",
                    "", ""),
       1, 0},
      {ChatTemplate("{% for m in messages %}<|im_{{ m.content }}|><|im_end{{ m.role }}"
                    "{{ m.content[::-1] }}{% endfor %}",
                    "", ""),
       0, 0}};
  std::string_view rest = text_of(input);
  std::vector<ChatMessage> messages;
  while (!rest.empty()) {
    const std::string_view role = take_part(rest, '\0');
    messages.push_back({std::string(role), std::string(take_part(rest, '\0'))});
  }
  for (const Row& row : kRows) {
    const RenderedPrompt prompt = row.chat_template.render(messages, 0);
    const size_t found = check_prompt(prompt, tiny_tokenizer());
    CHECK_EQ(found, row.per_message * messages.size() + row.at_end);
  }
  return true;
}

}  // namespace pagezip::fuzz
