// Reading what a document shall be.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>

#include "api/http/api_error.h"
#include "api/http/documents.h"
#include "api/http/target.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

constexpr int64_t kSecondsMax = int64_t{100} * 365 * 86'400;
constexpr size_t kRatiosMax = 8;
constexpr int64_t kMetadataKeyMax = 64;     // characters
constexpr int64_t kMetadataValueMax = 512;  // likewise

void add_ratio(DocumentForm& form, double ratio) {
  if (ratio >= 1) {
    form.keep_full = true;
  } else if (std::find(form.ratios.begin(), form.ratios.end(), ratio) == form.ratios.end()) {
    form.ratios.push_back(ratio);
  }
}

double ratio_of(const json::value& value, const Fields& fields, std::string_view name) {
  const double ratio = value.is_number() ? value.to_number<double>() : std::nan("");
  if (!(ratio > 0 && ratio <= 1)) {
    fields.fail(name, "must be above 0 and at most 1: the share of KV pairs that is kept");
  }
  return ratio;
}

void read_compression(const Fields& body, DocumentForm& form) {
  if (body.has("compression_ratio")) {
    body.fail("compression_ratio",
              "means the share removed elsewhere: say compression.ratio, the share kept");
  }
  const json::object* object = body.object("compression");
  if (object == nullptr) {
    return;
  }
  const Fields fields(*object, "compression");
  const std::string method = fields.text("method").value_or("kvzip");
  if (method != "kvzip") {
    fields.fail("method", "can only be kvzip");
  }
  if (const json::value* ratio = fields.find("ratio")) {
    add_ratio(form, ratio_of(*ratio, fields, "ratio"));
  }
  if (const json::array* ratios = fields.array("ratios")) {
    if (ratios->empty() || ratios->size() > kRatiosMax) {
      fields.fail("ratios", fmt::format("must have 1 to {} ratios", kRatiosMax));
    }
    for (const json::value& ratio : *ratios) {
      add_ratio(form, ratio_of(ratio, fields, "ratios"));
    }
  }
  const std::string budget = fields.text("budget").value_or("global");
  if (budget != "global" && budget != "per_head_uniform") {
    fields.fail("budget", "must be global or per_head_uniform");
  }
  form.uniform = budget == "per_head_uniform";
  form.min_per_head = fields.integer("min_per_head", 0, 1 << 30).value_or(0);
  form.keep_full = fields.boolean("keep_full").value_or(false) || form.keep_full;
  form.keep_scores = fields.boolean("keep_scores").value_or(true);
}

std::string read_content(const Fields& body) {
  const json::value* content = body.find("content");
  if (content == nullptr) {
    body.fail("content", "is missing");
  }
  if (content->is_string()) {
    return std::string(content->get_string());
  }
  if (!content->is_array()) {
    body.fail("content", "must be a string or an array of parts with text");
  }
  std::string text;
  for (const json::value& part : content->get_array()) {
    if (!part.is_object()) {
      body.fail("content", "must be a string or an array of parts with text");
    }
    const Fields fields(part.get_object(), "content");
    if (fields.need_text("type") != "text") {
      fields.fail("type", "can only be text");
    }
    text += (text.empty() ? "" : "\n") + fields.need_text("text");
  }
  return text;
}

std::optional<std::string> read_system(const Fields& body) {
  std::optional<std::string> system = body.text("system");
  if (const json::array* messages = body.array("messages")) {
    if (messages->size() != 1 || !messages->front().is_object()) {
      body.fail("messages", "can only be one system message");
    }
    const Fields message(messages->front().get_object(), "messages[0]");
    const std::string role = message.need_text("role");
    if (role != "system" && role != "developer") {
      message.fail("role", "can only be system");
    }
    system = message.need_text("content");
  }
  return system;
}

void check(DocumentForm& form, const Service& service) {
  if (form.content.empty()) {
    throw ApiError(400, "invalid_value", "'content' is empty", "content");
  }
  if (form.content.find('\0') != std::string::npos || !is_valid_utf8(form.content)) {
    throw ApiError(400, "invalid_value", "'content' is not text in UTF-8", "content");
  }
  if (!is_plain_text(form.name, DocumentListing::kNameBytesMax)) {
    throw ApiError(400, "invalid_value",
                   fmt::format("'name' must be text of at most {} bytes without control characters",
                               DocumentListing::kNameBytesMax),
                   "name");
  }
  if (form.ratios.empty() && !form.keep_full) {
    add_ratio(form, service.options().keep_ratio);
  }
}

// ---- multipart/form-data (RFC 7578) ----

struct Part {
  std::string name;
  std::string file_name;
  std::string_view body;
};

std::string quoted(std::string_view header, std::string_view name) {
  const std::string key = std::string(name) + "=\"";
  size_t at = header.find("; " + key);
  at = at == std::string_view::npos ? header.find(";" + key) : at + 1;
  if (at == std::string_view::npos) {
    return "";
  }
  at += 1 + key.size();
  return std::string(header.substr(at, header.find('"', at) - at));
}

std::string boundary_of(std::string_view content_type) {
  const size_t at = content_type.find("boundary=");
  std::string boundary(at == std::string_view::npos ? "" : content_type.substr(at + 9));
  boundary = boundary.substr(0, boundary.find(';'));
  if (boundary.size() >= 2 && boundary.front() == '"' && boundary.back() == '"') {
    boundary = boundary.substr(1, boundary.size() - 2);
  }
  if (boundary.empty() || boundary.size() > 70) {
    throw ApiError(400, "bad_multipart", "the form has no boundary");
  }
  return boundary;
}

[[noreturn]] void fail_multipart() {
  throw ApiError(400, "bad_multipart", "the multipart form is broken");
}

std::vector<Part> split_parts(std::string_view body, const std::string& boundary) {
  std::vector<Part> parts;
  const std::string between = "\r\n--" + boundary;
  if (!body.starts_with(between.substr(2))) {
    fail_multipart();
  }
  body.remove_prefix(between.size() - 2);
  while (!body.starts_with("--")) {
    const size_t head_end = body.find("\r\n\r\n");
    const size_t end = body.find(between);
    if (!body.starts_with("\r\n") || head_end == std::string_view::npos ||
        end == std::string_view::npos || parts.size() >= 64) {
      fail_multipart();
    }
    // A part without a body ends where its head does.
    const size_t begin = std::min(head_end + 4, body.size());
    const std::string_view head = body.substr(0, head_end);
    const size_t disposition = lower(head).find("content-disposition:");
    if (disposition == std::string::npos || end + 2 < begin) {
      fail_multipart();
    }
    std::string_view line = head.substr(disposition);
    line = line.substr(0, line.find("\r\n"));
    parts.push_back({quoted(line, "name"), quoted(line, "filename"),
                     body.substr(begin, end < begin ? 0 : end - begin)});
    body.remove_prefix(end + between.size());
  }
  return parts;
}

}  // namespace

std::map<std::string, std::string> read_metadata(const json::object& metadata) {
  std::map<std::string, std::string> pairs;
  for (const auto& [key, value] : metadata) {
    if (key.empty() || count_characters(key) > kMetadataKeyMax || !value.is_string() ||
        count_characters(value.get_string()) > kMetadataValueMax) {
      throw ApiError(400, "invalid_value",
                     fmt::format("'metadata' must have keys of 1 to {} characters and texts of at "
                                 "most {}",
                                 kMetadataKeyMax, kMetadataValueMax),
                     "metadata");
    }
    pairs[key] = std::string(value.get_string());
  }
  if (!is_valid_metadata(pairs)) {
    throw ApiError(
        400, "invalid_value",
        fmt::format("'metadata' can have {} keys, and {} bytes in all",
                    DocumentListing::kMetadataKeysMax, DocumentListing::kMetadataBytesMax),
        "metadata");
  }
  return pairs;
}

int64_t read_ttl(const json::object& expires_after) {
  const Fields fields(expires_after, "expires_after");
  if (fields.text("anchor").value_or("last_active_at") != "last_active_at") {
    fields.fail("anchor", "can only be last_active_at");
  }
  const auto seconds = fields.integer("seconds", 1, kSecondsMax);
  if (!seconds) {
    fields.fail("seconds", "is missing");
  }
  return *seconds;
}

DocumentForm read_document_form(const json::object& object, const Service& service) {
  const Fields body(object);
  const std::optional<std::string> model = body.text("model");
  if (model && !model->empty() && *model != service.model_name()) {
    throw ApiError(404, "model_not_found",
                   fmt::format("the model '{}' is not here", to_printable(*model)), "model");
  }
  DocumentForm form;
  form.content = read_content(body);
  form.system = read_system(body);
  form.name = body.text("name").value_or("");
  if (const json::object* metadata = body.object("metadata")) {
    form.metadata = read_metadata(*metadata);
  }
  form.group = body.text("group").value_or("");
  form.extends = body.text("extends").value_or("");
  read_compression(body, form);
  form.pinned = body.boolean("pinned").value_or(false);
  const json::object* expiry = body.object("expires_after");
  form.ttl_s = expiry == nullptr ? 0 : read_ttl(*expiry);
  form.stream = body.boolean("stream").value_or(false);
  form.dedupe = body.boolean("dedupe").value_or(true);
  if (body.boolean("durable").value_or(false) && service.options().engine.folder.empty()) {
    throw ApiError(400, "invalid_value",
                   "'durable' needs a server with --documents: it has no folder for files",
                   "durable");
  }
  check(form, service);
  return form;
}

DocumentForm read_multipart_form(std::string_view content_type, std::string_view body,
                                 const Service& service) {
  json::object fields;
  std::optional<std::string_view> content;
  std::string file_name;
  for (const Part& part : split_parts(body, boundary_of(content_type))) {
    if (part.name == "file") {
      content = part.body;
      file_name = part.file_name;
    } else if (part.name == "ratio") {
      json::error_code error;
      const json::value ratio = json::parse(json::string_view(part.body), error);
      fields["compression"] = json::object{{"ratio", error ? json::value(nullptr) : ratio}};
      if (error) {
        throw ApiError(400, "invalid_value", "'ratio' must be a number", "ratio");
      }
    } else if (part.name == "metadata") {
      fields["metadata"] = parse_object(part.body);
    } else if (part.name == "pinned" || part.name == "stream") {
      fields[part.name] = part.body == "true";
    } else if (part.name == "ttl_seconds") {
      json::error_code error;
      const json::value seconds = json::parse(json::string_view(part.body), error);
      fields["expires_after"] = json::object{{"seconds", error ? json::value("") : seconds}};
    } else if (part.name == "name" || part.name == "system" || part.name == "group" ||
               part.name == "model" || part.name == "extends") {
      if (!is_valid_utf8(part.body)) {
        throw ApiError(400, "invalid_value", fmt::format("'{}' is not UTF-8", part.name),
                       part.name);
      }
      fields[part.name] = part.body;
    }
    // "purpose" and the like, which clients of OpenAI's files send, mean nothing here.
  }
  if (!content) {
    throw ApiError(400, "invalid_value", "the form has no part 'file'", "file");
  }
  if (!fields.contains("name") && is_plain_text(file_name, DocumentListing::kNameBytesMax)) {
    fields["name"] = file_name;
  }
  fields["content"] = "-";  // not through JSON: it may be large, and is checked as text anyway
  DocumentForm form = read_document_form(fields, service);
  form.content = std::string(*content);
  check(form, service);
  return form;
}

}  // namespace pagezip::http
