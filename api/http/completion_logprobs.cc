#include "api/http/completion_logprobs.h"

#include <algorithm>
#include <utility>

#include "engine/utf8.h"

namespace pagezip::http {

namespace json = boost::json;

std::string CompletionLogprobs::name(TokenId token) const {
  return to_valid_utf8(tokenizer_.piece(token));
}

void CompletionLogprobs::add_text(TokenId token) {
  tokens_.emplace_back(name(token));
  offsets_.push_back(offset_);
  offset_ += count_characters(decoder_.feed(token));
}

void CompletionLogprobs::add(TokenId token, float logprob, const std::vector<TopLogprob>& tops) {
  add_text(token);
  logprobs_.emplace_back(logprob);
  // Tokens that are parts of characters may have the same name: the best one stands for all.
  json::object named;
  for (const TopLogprob& top : tops) {
    named.emplace(name(top.token), top.logprob);
  }
  named.emplace(name(token), logprob);
  tops_.push_back(std::move(named));
}

void CompletionLogprobs::add(const EchoedPrompt& prompt) {
  add_text(prompt.first_token);
  logprobs_.emplace_back(nullptr);
  tops_.emplace_back(nullptr);
  for (const TokenLogprob& other : prompt.others) {
    add(other.token, other.logprob, other.tops);
  }
  offset_ += count_characters(decoder_.flush());
  // A space that the tokenizer put in front is in the first token, but not in the text.
  const int64_t length = count_characters(prompt.text);
  const int64_t in_front = offset_ - std::min(offset_, length);
  for (int64_t& offset : offsets_) {
    offset -= std::min(offset, in_front);
  }
  offset_ = length;
}

json::object CompletionLogprobs::take() {
  json::object result;
  result["tokens"] = std::exchange(tokens_, {});
  result["token_logprobs"] = std::exchange(logprobs_, {});
  result["top_logprobs"] = std::exchange(tops_, {});
  json::array& offsets = result["text_offset"].emplace_array();
  for (const int64_t offset : std::exchange(offsets_, {})) {
    offsets.emplace_back(offset);
  }
  return result;
}

}  // namespace pagezip::http
