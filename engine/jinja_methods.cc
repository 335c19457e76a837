// Methods of strings and mappings, and the text functions that filters share with them.

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "engine/jinja_builtins.h"
#include "engine/jinja_text.h"
#include "engine/utf8.h"

namespace pagezip::jinja {
namespace {

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
char to_upper(char c) { return is_lower(c) ? static_cast<char>(c - 'a' + 'A') : c; }
char to_lower(char c) { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; }
/// Bytes of other scripts count as letters: they never start a word in the middle of one.
bool is_letter(char c) { return is_upper(c) || is_lower(c) || static_cast<uint8_t>(c) >= 0x80; }

/// startswith and endswith take one string or a list of them.
bool matches_any(const Arguments& arguments, std::string_view what,
                 const std::function<bool(std::string_view)>& matches) {
  const Value* choice = arguments.get(0, "prefix");
  if (choice && choice->list()) {
    return std::any_of(choice->list()->begin(), choice->list()->end(), [&](const Value& value) {
      return value.text() && matches(value.text()->bytes());
    });
  }
  return matches(arguments.required_text(0, what).bytes());
}

List split_white_space(const Text& text, int64_t limit) {
  List parts;
  const std::string_view bytes = text.bytes();
  size_t at = 0;
  while (true) {
    const auto skip = [&](bool space) {
      while (at < bytes.size()) {
        const Utf8Char next = decode_utf8(bytes.substr(at));
        if (is_space(next.code_point) != space) break;
        at += next.bytes;
      }
    };
    skip(true);
    if (at == bytes.size()) return parts;
    const size_t begin = at;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(text.substr(begin));
      return parts;
    }
    skip(false);
    parts.emplace_back(text.substr(begin, at - begin));
  }
}

Value split(const Text& text, const Arguments& arguments, Budget& budget) {
  const Text* separator = arguments.text(0, "sep");
  const int64_t limit = arguments.integer(1, "maxsplit").value_or(-1);
  if (!separator) {
    return checked(Value(split_white_space(text, limit)), arguments.line, budget);
  }
  if (separator->empty()) fail_at(arguments.line, "split() by an empty string");
  List parts;
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t end = text.bytes().find(separator->bytes(), begin);
    if (end == std::string::npos) break;
    budget.charge(1, arguments.line);
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + separator->size();
  }
  parts.emplace_back(text.substr(begin));
  return checked(Value(std::move(parts)), arguments.line, budget);
}

std::optional<Value> call_text_method(const Text& text, const std::string& name,
                                      const Arguments& arguments, Budget& budget) {
  const auto done = [&](Text result) {
    return checked(Value(std::move(result)), arguments.line, budget);
  };
  const std::string_view bytes = text.bytes();
  if (name == "strip") return done(strip(text, arguments.text(0, "chars"), true, true));
  if (name == "lstrip") return done(strip(text, arguments.text(0, "chars"), true, false));
  if (name == "rstrip") return done(strip(text, arguments.text(0, "chars"), false, true));
  if (name == "upper") return done(upper(text));
  if (name == "lower") return done(lower(text));
  if (name == "title") return done(title(text));
  if (name == "capitalize") return done(capitalize(text));
  if (name == "split") return split(text, arguments, budget);
  if (name == "replace") return replace(text, arguments, budget);
  if (name == "startswith") {
    return Value(matches_any(arguments, name, [&](auto s) { return bytes.starts_with(s); }));
  }
  if (name == "endswith") {
    return Value(matches_any(arguments, name, [&](auto s) { return bytes.ends_with(s); }));
  }
  return {};
}

}  // namespace

Text strip(const Text& text, const Text* characters, bool left, bool right) {
  const std::string_view bytes = text.bytes();
  const std::vector<size_t> offsets = code_point_offsets(bytes);
  const auto goes = [&](size_t i) {
    const std::string_view one = bytes.substr(offsets[i], offsets[i + 1] - offsets[i]);
    if (characters) return characters->bytes().find(one) != std::string::npos;
    const Utf8Char decoded = decode_utf8(one);
    return decoded.status == Utf8Status::kValid && is_space(decoded.code_point);
  };
  size_t begin = 0;
  size_t end = offsets.size() - 1;
  while (left && begin < end && goes(begin)) ++begin;
  while (right && begin < end && goes(end - 1)) --end;
  return text.substr(offsets[begin], offsets[end] - offsets[begin]);
}

Text upper(Text text) {
  for (size_t i = 0; i < text.size(); ++i) text.set_byte(i, to_upper(text.bytes()[i]));
  return text;
}

Text lower(Text text) {
  for (size_t i = 0; i < text.size(); ++i) text.set_byte(i, to_lower(text.bytes()[i]));
  return text;
}

Text title(Text text) {
  bool starts = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    text.set_byte(i, starts ? to_upper(c) : to_lower(c));
    starts = !is_letter(c);
  }
  return text;
}

Text capitalize(Text text) {
  text = lower(std::move(text));
  if (!text.empty()) text.set_byte(0, to_upper(text.bytes()[0]));
  return text;
}

Value replace(const Text& text, const Arguments& arguments, Budget& budget) {
  const Text& from = arguments.required_text(0, "replace");
  const Text& to = arguments.required_text(1, "replace");
  const int64_t limit = arguments.integer(2, "count").value_or(-1);
  if (from.empty()) fail_at(arguments.line, "replace() of an empty string");
  Text result;
  size_t begin = 0;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    const size_t end = text.bytes().find(from.bytes(), begin);
    if (end == std::string::npos) break;
    budget.charge(1 + to.size() / kBytesPerWeight, arguments.line);
    result.append(text.substr(begin, end - begin));
    result.append(to);
    begin = end + from.size();
  }
  result.append(text.substr(begin));
  return checked(Value(std::move(result)), arguments.line, budget);
}

Value dict_items(const Dict& dict) {
  List items;
  for (const auto& [key, value] : dict.entries) {
    items.emplace_back(List{Value(key), value});
  }
  return Value(std::move(items));
}

std::optional<Value> call_method(const Value& object, const std::string& name,
                                 const Arguments& arguments, Budget& budget) {
  if (object.text()) {
    budget.charge(object.weight, arguments.line);
    return call_text_method(*object.text(), name, arguments, budget);
  }
  if (!object.dict()) return {};
  const Dict& dict = *object.dict();
  if (name == "items") return checked(dict_items(dict), arguments.line, budget);
  if (name == "keys")
    return checked(Value(elements_of(object, arguments.line, budget)), arguments.line, budget);
  if (name == "values") {
    List values;
    for (const auto& [key, value] : dict.entries) values.push_back(value);
    return checked(Value(std::move(values)), arguments.line, budget);
  }
  if (name == "get") {
    const Value* found = dict.find(arguments.required_text(0, name).bytes());
    const Value* otherwise = arguments.get(1, "default");
    return found ? *found : otherwise ? *otherwise : Value(None{});
  }
  return {};
}

}  // namespace pagezip::jinja
