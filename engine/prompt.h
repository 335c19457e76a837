// The token ids around a document and its questions.
//
//   prefix    the chat template up to the user's text, with the system message
//   document  its text, nothing else
//   question  "\n\n", the question, and the template from the user's text to the assistant's
//
// Each part is encoded alone, so that a document has the same ids whatever stands around it. Text
// of documents and questions never becomes a control token.
//
// Thread rule: const methods from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "engine/chat_template.h"
#include "engine/scorer.h"
#include "engine/tokenizer.h"

namespace pagezip {

class PromptFrame {
 public:
  /// Borrows the tokenizer. `chat_template` may be null: see prompt_parts(), which tells `time` and
  /// what is thrown.
  PromptFrame(const ChatTemplate* chat_template, const Tokenizer& tokenizer,
              std::string_view system, int64_t time);

  std::span<const TokenId> prefix() const { return prefix_; }
  /// What KVzip's scoring asks the model to do.
  const RepeatPrompts& repeat() const { return repeat_; }
  std::vector<TokenId> document(std::string_view text) const;
  std::vector<TokenId> question(std::string_view text) const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<TokenId> prefix_;
  RepeatPrompts repeat_;
};

}  // namespace pagezip
