// From chat messages to the token ids that a model was trained on, by its own template.
//
// Message text cannot inject control tokens: rendering remembers which bytes came from a message,
// and encode() makes control tokens only of what the template itself wrote.
//
// Thread rule: const methods from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "engine/gguf.h"
#include "engine/jinja.h"
#include "engine/tokenizer.h"

namespace pagezip {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or what else the template knows
  std::string content;
};

struct TextSpan {
  size_t begin;  // bytes, [begin, end)
  size_t end;
};

struct RenderedPrompt {
  std::string text;
  std::vector<TextSpan> message_spans;  // ascending, apart, not empty: bytes that messages gave
};

class ChatTemplate {
 public:
  /// Throws Error(kModelFile) where the source has something that we do not know.
  ChatTemplate(std::string_view source, std::string_view bos, std::string_view eos);
  /// The template of the model file; nothing if it has none.
  static std::optional<ChatTemplate> of_model(const GgufFile& file, const Tokenizer& tokenizer);

  /// With the generation prompt: what comes next is the assistant's answer. `time`: seconds since
  /// 1970, for templates that tell the date. Throws Error(kUsage) if the template refuses the
  /// messages, Error(kModelFile) if it makes a mistake.
  RenderedPrompt render(std::span<const ChatMessage> messages, int64_t time) const;

 private:
  jinja::Template template_;
  std::string bos_;
  std::string eos_;
};

/// Control tokens where the template wrote them; all text between two of them is one run, in which
/// no control token is seen. No BOS is added: templates write it themselves.
std::vector<TokenId> encode_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer);

/// A single user turn, cut around the user's text. Each part is encoded alone, so that a document
/// has the same ids whatever stands around it.
struct PromptParts {
  std::string prefix;   // up to the user's text
  std::string postfix;  // after it, with the generation prompt
  std::vector<TokenId> prefix_ids;
  std::vector<TokenId> postfix_ids;
};

/// A conversation, cut in front of the content of message `at`, where other text stands that isn't
/// among the messages: a document. Throws as render(), and Error(kModelFile) for a template that
/// doesn't write that content exactly once.
PromptParts conversation_parts(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               std::vector<ChatMessage> messages, size_t at, int64_t time);

/// For [system, user], or [user] alone if `system` is empty. Throws Error(kUsage) where the
/// template takes no system message. Without a template (null): the BOS token, if the model has
/// one, and "\n\nAnswer: "; the system message has no place there and is left out.
PromptParts prompt_parts(const ChatTemplate* chat_template, const Tokenizer& tokenizer,
                         std::string_view system, int64_t time);

}  // namespace pagezip
