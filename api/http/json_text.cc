#include "api/http/json_text.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <cmath>
#include <iterator>

namespace pagezip::http {
namespace {

namespace json = boost::json;

void append(std::string& text, const json::value& value) {
  switch (value.kind()) {
    case json::kind::double_:
      if (std::isfinite(value.get_double())) {
        fmt::format_to(std::back_inserter(text), "{}", value.get_double());
      } else {
        text += "null";
      }
      return;
    case json::kind::array: {
      text += '[';
      bool first = true;
      for (const json::value& item : value.get_array()) {
        text += first ? "" : ",";
        first = false;
        append(text, item);
      }
      text += ']';
      return;
    }
    case json::kind::object: {
      text += '{';
      bool first = true;
      for (const auto& [name, item] : value.get_object()) {
        text += first ? "" : ",";
        first = false;
        text += json::serialize(json::string_view(name));
        text += ':';
        append(text, item);
      }
      text += '}';
      return;
    }
    default:
      text += json::serialize(value);
  }
}

}  // namespace

std::string to_text(const json::value& value) {
  std::string text;
  append(text, value);
  return text;
}

boost::json::array bytes_json(std::string_view bytes) {
  boost::json::array numbers;
  for (const char byte : bytes) {
    numbers.emplace_back(static_cast<unsigned char>(byte));
  }
  return numbers;
}

}  // namespace pagezip::http
