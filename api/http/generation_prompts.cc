// From messages and texts to the tokens that the model reads.
#include <fmt/format.h>

#include <functional>
#include <utility>

#include "api/http/api_error.h"
#include "api/http/documents.h"
#include "api/http/generation.h"

namespace pagezip::http {
namespace {

// Log-probabilities of prompts in one reply, where every choice repeats them.
constexpr size_t kPromptLogprobsMax = size_t{1} << 21;

void check_logprobs(const GenerateRequest& request,
                    const std::vector<std::vector<TokenId>>& prompts) {
  if (request.prompt_logprobs < 0) {
    return;
  }
  size_t tokens = 0;
  for (const std::vector<TokenId>& prompt : prompts) {
    tokens += prompt.size();
  }
  const auto each = static_cast<size_t>(request.prompt_logprobs) + 1;
  if (tokens * request.choices * each > kPromptLogprobsMax) {
    throw ApiError(400, "invalid_value",
                   fmt::format("'echo' with 'logprobs' would give more than {} log-probabilities: "
                               "ask for fewer prompts, choices or logprobs",
                               kPromptLogprobsMax),
                   "logprobs");
  }
}

std::vector<TokenId> encode_text(const Tokenizer& tokenizer, const std::string& text,
                                 bool behind_document) {
  std::vector<TokenId> tokens;
  if (const auto bos = tokenizer.bos(); bos && !behind_document && tokenizer.add_bos()) {
    tokens.push_back(*bos);
  }
  const std::vector<TokenId> own = tokenizer.encode(text, false);
  tokens.insert(tokens.end(), own.begin(), own.end());
  return tokens;
}

// What stands behind the document.
std::vector<TokenId> encode_question(const LoadedModel& model, std::vector<ChatMessage> messages,
                                     size_t at, const std::vector<TokenId>& document_prefix,
                                     int64_t time) {
  if (model.chat_template() == nullptr && messages.size() == 1) {
    return model.frame(std::nullopt, time).question(messages[0].content);
  }
  const bool has_system = messages[0].role == "system";
  messages[at].content.insert(0, "\n\n");
  PromptParts parts =
      conversation_parts(need_template(model), model.tokenizer(), std::move(messages), at, time);
  // Without a system message the document's own holds.
  if ((has_system || at > 0) && parts.prefix_ids != document_prefix) {
    throw ApiError(400, "document_not_prefix",
                   "the document was made with another system message: leave the system message "
                   "out, or make the document with it",
                   "messages");
  }
  return std::move(parts.postfix_ids);
}

}  // namespace

const ChatTemplate& need_template(const LoadedModel& model) {
  if (model.chat_template() == nullptr) {
    throw ApiError(400, "no_chat_template",
                   "the model has no chat template: use /v1/completions, or serve it with "
                   "--chat-template");
  }
  return *model.chat_template();
}

std::vector<TokenId> encode_chat(const LoadedModel& model, const std::vector<ChatMessage>& messages,
                                 int64_t time) {
  return encode_prompt(need_template(model).render(messages, time), model.tokenizer());
}

asio::awaitable<std::vector<std::vector<TokenId>>> make_prompts(const GenerationForm& form,
                                                                Service& service,
                                                                const Tenant& tenant) {
  std::vector<TokenId> prefix;
  const std::string& document = form.request.document;
  if (!document.empty()) {
    prefix = co_await document_prefix(service, tenant, document);
  }
  // By value: a client that goes ends this coroutine, but not the work.
  const std::function<std::vector<std::vector<TokenId>>()> work = [form, prefix, &service]() {
    const LoadedModel& model = service.model();
    const int64_t now = service.clock().unix_s();
    std::vector<std::vector<TokenId>> prompts = form.tokens;
    for (const std::string& text : form.texts) {
      prompts.push_back(encode_text(model.tokenizer(), text, !form.request.document.empty()));
      if (prompts.back().empty()) {
        throw ApiError(400, "invalid_value", "'prompt' is empty", "prompt");
      }
    }
    if (form.chat) {
      prompts.push_back(form.request.document.empty()
                            ? encode_chat(model, form.messages, now)
                            : encode_question(model, form.messages, form.document_at, prefix, now));
    }
    check_logprobs(form.request, prompts);
    return prompts;
  };
  co_return co_await service.on_worker(work);
}

}  // namespace pagezip::http
