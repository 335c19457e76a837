// /v1/chat/completions and /v1/completions: from OpenAI's JSON to requests of the engine, and from
// their tokens back, whole or as a stream of events.
#pragma once

#include <string>
#include <vector>

#include "api/http/exchange.h"
#include "api/http/json_fields.h"
#include "api/http/service.h"
#include "api/http/tenants.h"

namespace pagezip::http {

/// What a request asks for, read and checked, but for its text.
struct GenerationForm {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool return_progress = false;
  bool echo = false;
  double ping_interval_s = 0;
  GenerateRequest request;  // without tokens
  /// Of a chat. If there is a document, it stands in front of the content of message `document_at`.
  std::vector<ChatMessage> messages;
  size_t document_at = 0;
  /// Of a completion: each a text or tokens.
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> tokens;
};

/// Throw ApiError(400).
GenerationForm read_chat(const json::object& body, const Service& service, const Tenant& tenant);
GenerationForm read_completion(const json::object& body, const Service& service,
                               const Tenant& tenant);
/// Messages as /apply-template and /tokenize take them; documents aren't among them.
std::vector<ChatMessage> read_messages(const Fields& body);

/// Throws ApiError(400) if the model has none.
const ChatTemplate& need_template(const LoadedModel& model);
/// A conversation without a document.
std::vector<TokenId> encode_chat(const LoadedModel& model, const std::vector<ChatMessage>& messages,
                                 int64_t time);

/// The prompts' tokens. Throws ApiError for a document that isn't there or whose system message is
/// another one.
asio::awaitable<std::vector<std::vector<TokenId>>> make_prompts(const GenerationForm& form,
                                                                Service& service,
                                                                const Tenant& tenant);

/// Generates, and answers the exchange.
asio::awaitable<void> generate(Exchange& exchange, GenerationForm form, Service& service,
                               const Tenant& tenant);

}  // namespace pagezip::http
