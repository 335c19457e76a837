#include "api/http/json_fields.h"

#include <fmt/format.h>

#include <boost/json/stream_parser.hpp>
#include <cmath>

#include "api/http/api_error.h"

namespace pagezip::http {

json::object parse_object(std::string_view text) {
  json::parse_options options;
  options.max_depth = kJsonDepthMax;
  json::stream_parser parser(json::storage_ptr(), options);
  json::error_code error;
  const size_t parsed = parser.write_some(text.data(), text.size(), error);
  if (!error && parsed < text.size()) {
    error = json::error::extra_data;
  }
  if (!error) {
    parser.finish(error);
  }
  if (error) {
    throw ApiError(400, "invalid_json",
                   fmt::format("the body is not JSON: {} at byte {}", error.message(), parsed));
  }
  json::value value = parser.release();
  if (!value.is_object()) {
    throw ApiError(400, "invalid_json", "the body is not a JSON object");
  }
  return std::move(value.as_object());
}

const json::value* Fields::find(std::string_view name) const {
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string Fields::name_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void Fields::fail(std::string_view name, std::string_view why) const {
  const std::string full = name_of(name);
  throw ApiError(400, "invalid_value", fmt::format("'{}' {}", full, why), full);
}

std::optional<std::string> Fields::text(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    fail(name, "must be a string");
  }
  return std::string(value->get_string());
}

std::string Fields::need_text(std::string_view name) const {
  std::optional<std::string> value = text(name);
  if (!value) {
    fail(name, "is missing");
  }
  return *value;
}

std::optional<bool> Fields::boolean(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_bool()) {
    fail(name, "must be true or false");
  }
  return value->get_bool();
}

std::optional<double> Fields::number(std::string_view name, double min, double max) const {
  const json::value* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const double number = value->is_double()   ? value->get_double()
                        : value->is_int64()  ? static_cast<double>(value->get_int64())
                        : value->is_uint64() ? static_cast<double>(value->get_uint64())
                                             : std::nan("");
  if (!(number >= min && number <= max)) {
    fail(name, fmt::format("must be a number from {} to {}", min, max));
  }
  return number;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t min, int64_t max) const {
  const json::value* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  // 3.0 is what some clients make of 3.
  const bool whole = value->is_double() && std::abs(value->get_double()) < 1e15 &&
                     std::trunc(value->get_double()) == value->get_double();
  if (!value->is_int64() && !whole) {
    fail(name, fmt::format("must be a whole number from {} to {}", min, max));
  }
  const int64_t number = whole ? static_cast<int64_t>(value->get_double()) : value->get_int64();
  if (number < min || number > max) {
    fail(name, fmt::format("must be a whole number from {} to {}", min, max));
  }
  return number;
}

const json::object* Fields::object(std::string_view name) const {
  const json::value* value = find(name);
  if (value != nullptr && !value->is_object()) {
    fail(name, "must be an object");
  }
  return value == nullptr ? nullptr : &value->get_object();
}

const json::array* Fields::array(std::string_view name) const {
  const json::value* value = find(name);
  if (value != nullptr && !value->is_array()) {
    fail(name, "must be an array");
  }
  return value == nullptr ? nullptr : &value->get_array();
}

std::vector<std::string> Fields::texts(std::string_view name, size_t max) const {
  const json::value* value = find(name);
  std::vector<std::string> texts;
  if (value == nullptr) {
    return texts;
  }
  if (value->is_string()) {
    texts.emplace_back(value->get_string());
    return texts;
  }
  if (!value->is_array() || value->get_array().size() > max) {
    fail(name, fmt::format("must be a string or an array of at most {} strings", max));
  }
  for (const json::value& item : value->get_array()) {
    if (!item.is_string()) {
      fail(name, fmt::format("must be a string or an array of at most {} strings", max));
    }
    texts.emplace_back(item.get_string());
  }
  return texts;
}

}  // namespace pagezip::http
