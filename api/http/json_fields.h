// JSON from clients: bounded, and every field checked by name.
//
// All throw ApiError(400) that names the field. A field that is null counts as not there.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pagezip::http {

namespace json = boost::json;

inline constexpr size_t kJsonDepthMax = 64;

/// The object that the text is. Throws ApiError(400, "invalid_json") with the byte where it stops
/// being one.
json::object parse_object(std::string_view text);

/// The fields of one object; `path` stands before their names in errors ("messages[2]").
class Fields {
 public:
  explicit Fields(const json::object& object, std::string path = "")
      : object_(object), path_(std::move(path)) {}

  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Null if it isn't there.
  const json::value* find(std::string_view name) const;

  std::optional<std::string> text(std::string_view name) const;
  std::string need_text(std::string_view name) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name, int64_t min, int64_t max) const;
  std::optional<double> number(std::string_view name, double min, double max) const;
  const json::object* object(std::string_view name) const;
  const json::array* array(std::string_view name) const;
  /// A string, or an array of at most `max` strings.
  std::vector<std::string> texts(std::string_view name, size_t max) const;

  std::string name_of(std::string_view name) const;
  [[noreturn]] void fail(std::string_view name, std::string_view why) const;

 private:
  const json::object& object_;
  std::string path_;
};

}  // namespace pagezip::http
