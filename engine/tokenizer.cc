#include "engine/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/tokenizer_bpe.h"
#include "engine/tokenizer_spm.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 20;  // symbols are counted in 31 bits

// Ends of a turn or a text that files often do not name in their metadata.
constexpr std::string_view kEndTexts[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",
                                          "<end_of_turn>"};

TokenSpelling spelling_of(const GgufFile& file) {
  const std::string_view model = file.get_string("tokenizer.ggml.model").value_or("");
  if (model == "gpt2") return TokenSpelling::kByteLevel;
  if (model == "llama") return TokenSpelling::kSpaceMark;
  throw Error(ErrorKind::kModelFile,
              fmt::format("{}: the tokenizer '{}' is not supported (tokenizer.ggml.model)",
                          file.path(), to_printable(model)));
}

}  // namespace

Tokenizer::Tokenizer(const GgufFile& file)
    : vocabulary_(std::make_unique<Vocabulary>(file, spelling_of(file))) {
  bos_ = vocabulary_->token_of_key(file, "tokenizer.ggml.bos_token_id");
  eos_ = vocabulary_->token_of_key(file, "tokenizer.ggml.eos_token_id");
  std::vector<TokenId>& ends = end_of_generation_;
  for (const auto& end : {eos_, vocabulary_->token_of_key(file, "tokenizer.ggml.eot_token_id")}) {
    if (end) ends.push_back(*end);
  }
  for (const std::string_view text : kEndTexts) {
    if (const std::optional<TokenId> end = vocabulary_->find(text)) ends.push_back(*end);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  // Some files mark them as user-defined: then any text could end a turn.
  for (const TokenId end : ends) vocabulary_->make_control(end);
  vocabulary_->index_special_tokens();

  const std::optional<bool> add_bos = file.get_bool("tokenizer.ggml.add_bos_token");
  if (spelling_of(file) == TokenSpelling::kSpaceMark) {
    adds_space_prefix_ = file.get_bool("tokenizer.ggml.add_space_prefix").value_or(true);
    add_bos_ = add_bos.value_or(true) && bos_;
    encoder_ = make_spm_encoder(file, *vocabulary_, adds_space_prefix_);
  } else {
    const std::string_view pre = file.get_string("tokenizer.ggml.pre").value_or("");
    add_bos_ = add_bos.value_or(pre.starts_with("llama")) && bos_;
    encoder_ = make_bpe_encoder(file, *vocabulary_);
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool parse_special) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(ErrorKind::kUsage, fmt::format("a text of {} bytes is too long", text.size()));
  }
  std::vector<TokenId> ids;
  WordCache words(text.size(), ids);
  size_t done = 0;
  while (done < text.size()) {
    const auto match = vocabulary_->find_special(text, done, parse_special);
    const size_t plain_end = match ? match->begin : text.size();
    if (plain_end > done) {
      // Plain text always stands at the start or behind a special token.
      encoder_->encode(text.substr(done, plain_end - done), /*at_start=*/true, words);
    }
    if (!match) break;
    ids.push_back(match->id);
    done = match->end;
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool with_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (with_special || !is_control(id)) bytes += piece(id);
  }
  const bool starts_with_text = !ids.empty() && !is_control(ids[0]);
  if (adds_space_prefix_ && starts_with_text && bytes.starts_with(' ')) bytes.erase(0, 1);
  return to_valid_utf8(bytes);
}

std::optional<Vocabulary::Match> Tokenizer::find_control(std::string_view text, size_t from) const {
  auto match = vocabulary_->find_special(text, from, true);
  while (match && !is_control(match->id)) {
    match = vocabulary_->find_special(text, match->end, true);
  }
  return match;
}

bool Tokenizer::is_end_of_generation(TokenId id) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), id);
}

std::string StreamDecoder::feed(TokenId id) {
  if (tokenizer_.is_control(id)) return {};
  pending_ += tokenizer_.piece(id);
  // Only an incomplete end waits; what is already broken will not get better.
  size_t ready = 0;
  while (ready < pending_.size()) {
    const Utf8Char next = decode_utf8(std::string_view(pending_).substr(ready));
    if (next.status == Utf8Status::kIncomplete) break;
    ready += next.bytes;
  }
  std::string text = to_valid_utf8(std::string_view(pending_).substr(0, ready));
  pending_.erase(0, ready);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text = to_valid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace pagezip
