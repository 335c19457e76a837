#include "engine/prompt.h"

#include <string>
#include <utility>

namespace pagezip {
namespace {

// The words of the released KVzip code.
constexpr std::string_view kRepeatFirst = "\n\nRepeat the previous context exactly.";
constexpr std::string_view kRepeatNext =
    "\n\nRepeat the part of the previous context exactly, starting with ";

}  // namespace

PromptFrame::PromptFrame(const ChatTemplate* chat_template, const Tokenizer& tokenizer,
                         std::string_view system, int64_t time)
    : tokenizer_(tokenizer) {
  PromptParts parts = prompt_parts(chat_template, tokenizer, system, time);
  prefix_ = std::move(parts.prefix_ids);
  repeat_ = {tokenizer.encode(kRepeatFirst, false), tokenizer.encode(kRepeatNext, false),
             std::move(parts.postfix_ids)};
}

std::vector<TokenId> PromptFrame::document(std::string_view text) const {
  return tokenizer_.encode(text, false);
}

std::vector<TokenId> PromptFrame::question(std::string_view text) const {
  std::vector<TokenId> ids = tokenizer_.encode("\n\n" + std::string(text), false);
  ids.insert(ids.end(), repeat_.postfix.begin(), repeat_.postfix.end());
  return ids;
}

}  // namespace pagezip
