// Reading what a request asks for.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "api/http/api_error.h"
#include "api/http/generation.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

constexpr int64_t kChoicesMax = 64;
constexpr int64_t kTopLogprobsMax = 20;
constexpr size_t kStopsMax = 16;
constexpr size_t kPromptsMax = 64;
constexpr size_t kMessagesMax = 4096;
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default for completions

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// Settings that would change the answer, and that we don't have: better refused than ignored.
void refuse_unsupported(const Fields& body) {
  for (const char* name : {"tools", "functions", "logit_bias"}) {
    const json::value* value = body.find(name);
    if (value != nullptr && !(value->is_array() && value->get_array().empty()) &&
        !(value->is_object() && value->get_object().empty())) {
      throw ApiError(501, "not_supported", fmt::format("'{}' is not supported", name), name);
    }
  }
  if (const json::object* format = body.object("response_format")) {
    if (Fields(*format, "response_format").text("type").value_or("text") != "text") {
      throw ApiError(501, "not_supported", "'response_format' can only be text", "response_format");
    }
  }
  for (const char* name : {"frequency_penalty", "presence_penalty"}) {
    if (body.number(name, -2, 2).value_or(0) != 0) {
      throw ApiError(501, "not_supported", fmt::format("'{}' can only be 0", name), name);
    }
  }
  const std::optional<int64_t> best_of = body.integer("best_of", 1, kChoicesMax);
  if (best_of && *best_of != body.integer("n", 1, kChoicesMax).value_or(1)) {
    throw ApiError(501, "not_supported", "'best_of' can only be n", "best_of");
  }
}

void read_sampling(const Fields& body, SamplingParams& sampling) {
  sampling.temperature = body.number("temperature", 0, 100).value_or(1);
  sampling.top_p = body.number("top_p", 0, 1).value_or(1);
  if (sampling.top_p <= 0) {
    body.fail("top_p", "must be above 0");
  }
  sampling.min_p = body.number("min_p", 0, 1).value_or(0);
  // -1 is what some clients send for "all".
  sampling.top_k =
      static_cast<int>(std::max<int64_t>(0, body.integer("top_k", -1, 1 << 30).value_or(0)));
  sampling.repetition_penalty = body.number("repetition_penalty", 0.01, 100).value_or(1);
  const std::optional<int64_t> seed = body.integer("seed", INT64_MIN, INT64_MAX);
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
}

GenerationForm read_common(const Fields& body, const Service& service, const Tenant& tenant) {
  refuse_unsupported(body);
  const std::optional<std::string> model = body.text("model");
  if (model && !model->empty() && *model != service.model_name()) {
    throw ApiError(404, "model_not_found",
                   fmt::format("the model '{}' is not here; '{}' is", to_printable(*model),
                               service.model_name()),
                   "model");
  }
  GenerationForm form;
  form.stream = body.boolean("stream").value_or(false);
  if (const json::object* stream_options = body.object("stream_options")) {
    form.include_usage =
        Fields(*stream_options, "stream_options").boolean("include_usage").value_or(false);
  }
  form.return_progress = body.boolean("return_progress").value_or(false);
  form.ping_interval_s =
      body.number("sse_ping_interval", 0.05, 3600).value_or(service.options().ping_interval_s);
  GenerateRequest& request = form.request;
  request.tenant = tenant.name;
  request.groups = tenant.groups;
  request.choices = static_cast<uint32_t>(body.integer("n", 1, kChoicesMax).value_or(1));
  request.stops = body.texts("stop", kStopsMax);
  if (std::any_of(request.stops.begin(), request.stops.end(),
                  [](const std::string& stop) { return stop.empty(); })) {
    body.fail("stop", "may not have an empty string");
  }
  request.ignore_end = body.boolean("ignore_eos").value_or(false);
  request.priority = static_cast<int>(body.integer("priority", -100, 100).value_or(0));
  request.keep_ratio = body.number("keep_ratio", 0, 1);
  if (request.keep_ratio == 0.0) {
    body.fail("keep_ratio", "must be above 0");
  }
  read_sampling(body, request.sampling);
  return form;
}

int64_t output_max(const Fields& body, const Service& service, int64_t otherwise) {
  const std::optional<int64_t> old_name = body.integer("max_tokens", -1, 1 << 30);
  const std::optional<int64_t> new_name = body.integer("max_completion_tokens", -1, 1 << 30);
  const std::optional<int64_t> max = new_name ? new_name : old_name;
  const int64_t most = service.engine_context_max();
  // -1 is what some clients send for "as many as there are".
  const int64_t tokens = max.value_or(otherwise);
  return tokens < 0 ? most : std::min(tokens, most);
}

// The text of a message's parts; a document that stands first among them goes to `document`.
std::string read_parts(const json::array& parts, const std::string& path, std::string* document) {
  std::string content;
  bool has_text = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", path, i);
    if (!parts[i].is_object()) {
      throw ApiError(400, "invalid_value", fmt::format("'{}' must be an object", name), name);
    }
    const Fields part(parts[i].get_object(), name);
    const std::string type = part.need_text("type");
    if (type == "text") {
      content += (has_text ? "\n" : "") + part.need_text("text");
      has_text = true;
    } else if (type == "file") {
      const json::object* file = part.object("file");
      if (file == nullptr) {
        part.fail("file", "is missing");
      }
      if (document == nullptr || !document->empty() || has_text) {
        throw ApiError(400, "document_not_prefix",
                       "a document can only be the first part of the first user message, and only "
                       "one",
                       name);
      }
      *document = Fields(*file, part.name_of("file")).need_text("file_id");
      if (document->empty()) {
        part.fail("file", "has an empty file_id");
      }
    } else {
      throw ApiError(400, "invalid_value", fmt::format("'{}.type' is neither text nor file", name),
                     name + ".type");
    }
  }
  return content;
}

// `document` may be null: none can be used.
std::vector<ChatMessage> read_messages(const Fields& body, std::string* document,
                                       size_t* document_at) {
  const json::array* list = body.array("messages");
  if (list == nullptr || list->empty() || list->size() > kMessagesMax) {
    body.fail("messages", fmt::format("must have 1 to {} messages", kMessagesMax));
  }
  std::vector<ChatMessage> messages;
  bool was_user = false;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!(*list)[i].is_object()) {
      throw ApiError(400, "invalid_value", fmt::format("'{}' must be an object", path), path);
    }
    const Fields fields((*list)[i].get_object(), path);
    ChatMessage message;
    message.role = fields.need_text("role");
    if (message.role == "developer") {
      message.role = "system";  // the name that newer clients use
    }
    const bool first_user = message.role == "user" && !was_user;
    was_user = was_user || message.role == "user";
    const json::value* content = fields.find("content");
    if (content != nullptr && content->is_array()) {
      message.content =
          read_parts(content->get_array(), path + ".content", first_user ? document : nullptr);
      if (first_user && document != nullptr && !document->empty()) {
        *document_at = i;
      }
    } else if (content != nullptr || message.role != "assistant") {
      message.content = fields.need_text("content");
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

void read_token_prompt(const json::array& ids, const Fields& body, int vocab,
                       std::vector<TokenId>& tokens) {
  for (const json::value& id : ids) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= vocab) {
      body.fail("prompt", fmt::format("has something that is no token id below {}", vocab));
    }
    tokens.push_back(static_cast<TokenId>(id.get_int64()));
  }
  if (tokens.empty()) {
    body.fail("prompt", "is empty");
  }
}

void read_prompts(const Fields& body, int vocab, GenerationForm& form) {
  const json::value* prompt = body.find("prompt");
  if (prompt == nullptr) {
    body.fail("prompt", "is missing");
  }
  if (prompt->is_string()) {
    form.texts.emplace_back(prompt->get_string());
    return;
  }
  if (!prompt->is_array() || prompt->get_array().empty()) {
    body.fail("prompt", "must be a string, an array of strings, or token ids");
  }
  const json::array& list = prompt->get_array();
  if (list.front().is_number()) {
    read_token_prompt(list, body, vocab, form.tokens.emplace_back());
    return;
  }
  if (list.size() > kPromptsMax) {
    body.fail("prompt", fmt::format("has more than {} prompts", kPromptsMax));
  }
  for (const json::value& each : list) {
    if (each.kind() != list.front().kind()) {
      body.fail("prompt", "mixes texts and token ids");
    }
    if (each.is_string()) {
      form.texts.emplace_back(each.get_string());
    } else if (each.is_array()) {
      read_token_prompt(each.get_array(), body, vocab, form.tokens.emplace_back());
    } else {
      body.fail("prompt", "must be a string, an array of strings, or token ids");
    }
  }
}

}  // namespace

std::vector<ChatMessage> read_messages(const Fields& body) {
  return read_messages(body, nullptr, nullptr);
}

GenerationForm read_chat(const json::object& object, const Service& service, const Tenant& tenant) {
  const Fields body(object);
  GenerationForm form = read_common(body, service, tenant);
  form.chat = true;
  form.messages = read_messages(body, &form.request.document, &form.document_at);
  form.request.output_max = output_max(body, service, -1);
  if (form.request.output_max == 0) {
    body.fail("max_tokens", "must be at least 1");
  }
  if (body.boolean("logprobs").value_or(false)) {
    form.request.top_logprobs =
        static_cast<int>(body.integer("top_logprobs", 0, kTopLogprobsMax).value_or(0));
  } else if (body.has("top_logprobs")) {
    body.fail("top_logprobs", "needs logprobs to be true");
  }
  return form;
}

GenerationForm read_completion(const json::object& object, const Service& service,
                               const Tenant& tenant) {
  const Fields body(object);
  GenerationForm form = read_common(body, service, tenant);
  if (body.text("suffix").value_or("") != "") {
    throw ApiError(501, "not_supported", "'suffix' is not supported", "suffix");
  }
  form.request.document = body.text("document_id").value_or("");
  form.echo = body.boolean("echo").value_or(false);
  form.request.output_max = output_max(body, service, kCompletionTokens);
  if (form.request.output_max == 0 && !form.echo) {
    body.fail("max_tokens", "must be at least 1 without echo");
  }
  if (const auto tops = body.integer("logprobs", 0, kTopLogprobsMax)) {
    form.request.top_logprobs = static_cast<int>(*tops);
    form.request.prompt_logprobs = form.echo ? form.request.top_logprobs : -1;
  }
  read_prompts(body, service.vocabulary(), form);
  return form;
}

}  // namespace pagezip::http
