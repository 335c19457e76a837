#include "engine/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "engine/jinja_text.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::None;
using jinja::Text;
using jinja::Value;

// Stands for the user's text where a prompt is cut around it. Letters and digits, so that no
// template changes it, and unlikely in any template or message.
constexpr std::string_view kSentinel = "PageZipUserText7f3a91c25d08";

Value message_value(const ChatMessage& message) {
  Dict dict;
  // The role is the client's too, so it is no more trusted than the text.
  dict.entries.emplace_back(Text("role"), Value(Text(message.role, true)));
  dict.entries.emplace_back(Text("content"), Value(Text(message.content, true)));
  return Value(std::move(dict));
}

RenderedPrompt prompt_of(const Text& text) {
  RenderedPrompt prompt{text.bytes(), {}};
  for (size_t i = 0; i < text.size(); ++i) {
    if (!text.is_from_message(i)) continue;
    if (prompt.message_spans.empty() || prompt.message_spans.back().end < i) {
      prompt.message_spans.push_back({i, i});
    }
    prompt.message_spans.back().end = i + 1;
  }
  return prompt;
}

/// [begin, end) of a prompt.
RenderedPrompt part_of(const RenderedPrompt& prompt, size_t begin, size_t end) {
  RenderedPrompt part{prompt.text.substr(begin, end - begin), {}};
  for (const TextSpan& span : prompt.message_spans) {
    const size_t first = std::max(span.begin, begin);
    const size_t last = std::min(span.end, end);
    if (first < last) part.message_spans.push_back({first - begin, last - begin});
  }
  return part;
}

/// The control tokens that the template wrote, in order.
std::vector<Vocabulary::Match> control_tokens(const RenderedPrompt& prompt,
                                              const Tokenizer& tokenizer) {
  std::vector<Vocabulary::Match> matches;
  const auto search = [&](size_t begin, size_t end) {
    const std::string_view written = std::string_view(prompt.text).substr(begin, end - begin);
    size_t at = 0;
    while (const auto match = tokenizer.find_control(written, at)) {
      matches.push_back({begin + match->begin, begin + match->end, match->id});
      at = match->end;
    }
  };
  size_t done = 0;
  for (const TextSpan& span : prompt.message_spans) {
    search(done, span.begin);
    done = span.end;
  }
  search(done, prompt.text.size());
  return matches;
}

bool refuses(const ChatTemplate& chat_template, std::span<const ChatMessage> messages,
             int64_t time) {
  try {
    chat_template.render(messages, time);
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// Renders [system, user = sentinel]; says so if it is the system message that is refused.
RenderedPrompt render_single_turn(const ChatTemplate& chat_template, std::string_view system,
                                  int64_t time) {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", std::string(system)});
  messages.push_back({"user", std::string(kSentinel)});
  try {
    return chat_template.render(messages, time);
  } catch (const Error& error) {
    const std::span<const ChatMessage> user(&messages.back(), 1);
    if (system.empty() || refuses(chat_template, user, time)) throw;
    throw Error(ErrorKind::kUsage,
                fmt::format("this model takes no system message: {}", error.what()));
  }
}

PromptParts parts_around_sentinel(const RenderedPrompt& prompt, const Tokenizer& tokenizer) {
  const size_t begin = prompt.text.find(kSentinel);
  if (begin == std::string::npos || prompt.text.find(kSentinel, begin + 1) != std::string::npos) {
    throw Error(ErrorKind::kModelFile,
                "the chat template does not write the user's text exactly once; --chat-template "
                "overrides it");
  }
  const RenderedPrompt prefix = part_of(prompt, 0, begin);
  const RenderedPrompt postfix = part_of(prompt, begin + kSentinel.size(), prompt.text.size());
  return {prefix.text, postfix.text, encode_prompt(prefix, tokenizer),
          encode_prompt(postfix, tokenizer)};
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string_view bos, std::string_view eos)
    : template_(source), bos_(bos), eos_(eos) {}

std::optional<ChatTemplate> ChatTemplate::of_model(const GgufFile& file,
                                                   const Tokenizer& tokenizer) {
  const auto source = file.get_string("tokenizer.chat_template");
  if (!source) return {};
  const auto text = [&tokenizer](std::optional<TokenId> id) {
    return id ? tokenizer.piece(*id) : std::string();
  };
  return ChatTemplate(*source, text(tokenizer.bos()), text(tokenizer.eos()));
}

RenderedPrompt ChatTemplate::render(std::span<const ChatMessage> messages, int64_t time) const {
  List list;
  for (const ChatMessage& message : messages) list.push_back(message_value(message));
  std::vector<std::pair<std::string, Value>> variables;
  variables.emplace_back("messages", Value(std::move(list)));
  variables.emplace_back("add_generation_prompt", Value(true));
  variables.emplace_back("bos_token", Value(std::string_view(bos_)));
  variables.emplace_back("eos_token", Value(std::string_view(eos_)));
  variables.emplace_back("tools", Value(None{}));
  variables.emplace_back("documents", Value(None{}));
  try {
    return prompt_of(template_.render(std::move(variables), time));
  } catch (const jinja::Refusal& refusal) {
    throw Error(ErrorKind::kUsage, fmt::format("the chat template refuses these messages: {}",
                                               to_printable(refusal.what())));
  }
}

std::vector<TokenId> encode_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  const std::string_view text = prompt.text;
  size_t done = 0;
  const auto encode_run = [&](size_t end) {
    const std::vector<TokenId> run = tokenizer.encode(text.substr(done, end - done), false);
    ids.insert(ids.end(), run.begin(), run.end());
  };
  for (const Vocabulary::Match& match : control_tokens(prompt, tokenizer)) {
    encode_run(match.begin);
    ids.push_back(match.id);
    done = match.end;
  }
  encode_run(text.size());
  return ids;
}

PromptParts conversation_parts(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               std::vector<ChatMessage> messages, size_t at, int64_t time) {
  CHECK_LT(at, messages.size());
  messages[at].content.insert(0, kSentinel);
  return parts_around_sentinel(chat_template.render(messages, time), tokenizer);
}

PromptParts prompt_parts(const ChatTemplate* chat_template, const Tokenizer& tokenizer,
                         std::string_view system, int64_t time) {
  if (!chat_template) {
    PromptParts parts;
    parts.postfix = "\n\nAnswer: ";
    parts.postfix_ids = tokenizer.encode(parts.postfix, false);
    if (const std::optional<TokenId> bos = tokenizer.bos()) {
      parts.prefix = tokenizer.piece(*bos);
      parts.prefix_ids = {*bos};
    }
    return parts;
  }
  PromptParts parts =
      parts_around_sentinel(render_single_turn(*chat_template, system, time), tokenizer);
  const std::string wanted = jinja::strip(Text(system), nullptr, true, true).bytes();
  if (parts.prefix.find(wanted) == std::string::npos &&
      parts.postfix.find(wanted) == std::string::npos) {
    throw Error(ErrorKind::kUsage, "this model's chat template leaves out the system message");
  }
  return parts;
}

}  // namespace pagezip
