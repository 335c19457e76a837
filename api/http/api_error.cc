#include "api/http/api_error.h"

#include <new>

#include "api/http/json_text.h"

namespace pagezip::http {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 409:
    case 412:
      return "conflict_error";
    case 413:
    case 431:
      return "request_too_large";
    case 415:
      return "unsupported_media_type";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

boost::json::value text_or_null(const std::string& text) {
  return text.empty() ? boost::json::value(nullptr) : boost::json::value(text);
}

}  // namespace

boost::json::object ApiError::json() const {
  boost::json::object error;
  error["message"] = message_;
  error["type"] =
      code_ == "context_length_exceeded" ? "exceed_context_size_error" : type_of(status_);
  error["param"] = text_or_null(param_);
  error["code"] = text_or_null(code_);
  for (const auto& [name, value] : fields_) {
    error[name] = value;
  }
  boost::json::object body;
  body["error"] = std::move(error);
  return body;
}

Reply ApiError::reply() const {
  Reply reply;
  reply.status = status_;
  reply.body = to_text(json());
  reply.headers = headers_;
  // OpenAI's clients repeat a 409 by themselves: no use while a document is being made.
  if (status_ == 409) {
    reply.headers.emplace_back("x-should-retry", "false");
  }
  return reply;
}

ApiError to_api_error(const std::exception& error) {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) {
    return *api;
  }
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    const bool client = ours->kind() == ErrorKind::kUsage;
    return {client ? 400 : 500, client ? "invalid_request" : "server_error", ours->what()};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {503, "out_of_memory", "the server is out of memory"};
  }
  return {500, "server_error", error.what()};
}

}  // namespace pagezip::http
