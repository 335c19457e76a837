#include "engine/jinja_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/utf8.h"

namespace pagezip::jinja {

Text Text::substr(size_t begin, size_t count) const {
  Text part;
  part.bytes_ = bytes_.substr(begin, count);
  part.marks_ = marks_.substr(begin, count);
  return part;
}

void Text::append(const Text& other) {
  bytes_ += other.bytes_;
  marks_ += other.marks_;
}

void Text::append(std::string_view bytes, bool from_message) {
  bytes_ += bytes;
  marks_.append(bytes.size(), from_message ? 1 : 0);
}

namespace {

void include(Value& whole, const Value& element) {
  whole.depth = std::max(whole.depth, element.depth + 1);
  if (__builtin_add_overflow(whole.weight, element.weight, &whole.weight)) {
    whole.weight = std::numeric_limits<uint64_t>::max();
  }
}

}  // namespace

Value::Value(Text text) : weight(1 + text.size() / kBytesPerWeight) {
  data = std::make_shared<const Text>(std::move(text));
}

Value::Value(List list) : depth(1) {
  for (const Value& element : list) include(*this, element);
  data = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) : depth(1) {
  for (const auto& [key, element] : dict.entries) {
    include(*this, element);
    include(*this, Value(key));
  }
  data = std::make_shared<const Dict>(std::move(dict));
}

const Text* Value::text() const {
  const auto* held = std::get_if<std::shared_ptr<const Text>>(&data);
  return held ? held->get() : nullptr;
}

const List* Value::list() const {
  const auto* held = std::get_if<std::shared_ptr<const List>>(&data);
  return held ? held->get() : nullptr;
}

const Dict* Value::dict() const {
  const auto* held = std::get_if<std::shared_ptr<const Dict>>(&data);
  return held ? held->get() : nullptr;
}

bool Value::is_number() const { return is_integer() || std::holds_alternative<double>(data); }

bool Value::is_integer() const {
  return std::holds_alternative<int64_t>(data) || std::holds_alternative<bool>(data);
}

int64_t Value::integer() const {
  const auto* flag = std::get_if<bool>(&data);
  return flag ? static_cast<int64_t>(*flag) : std::get<int64_t>(data);
}

double Value::number() const {
  const auto* real = std::get_if<double>(&data);
  return real ? *real : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (text()) return !text()->empty();
  if (list()) return !list()->empty();
  if (dict()) return !dict()->entries.empty();
  return true;
}

std::string_view Value::type_name() const {
  constexpr std::array<std::string_view, 11> kNames = {
      "undefined", "none",      "a boolean",   "an integer", "a float",   "a string",
      "a list",    "a mapping", "a namespace", "a macro",    "a function"};
  return kNames[data.index()];
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.bytes() == key) return &value;
  }
  return nullptr;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.data.index() != b.data.index()) return false;
  if (a.text()) return a.text()->bytes() == b.text()->bytes();
  if (a.list()) {
    if (a.list()->size() != b.list()->size()) return false;
    for (size_t i = 0; i < a.list()->size(); ++i) {
      if (!equal((*a.list())[i], (*b.list())[i])) return false;
    }
    return true;
  }
  if (a.dict()) {
    if (a.dict()->entries.size() != b.dict()->entries.size()) return false;
    for (const auto& [key, value] : a.dict()->entries) {
      const Value* other = b.dict()->find(key.bytes());
      if (!other || !equal(value, *other)) return false;
    }
    return true;
  }
  if (const auto* names = std::get_if<Namespace*>(&a.data)) {
    return *names == std::get<Namespace*>(b.data);
  }
  if (const auto* macro = std::get_if<const Macro*>(&a.data)) {
    return *macro == std::get<const Macro*>(b.data);
  }
  if (const auto* function = std::get_if<Function>(&a.data)) {
    return function->name == std::get<Function>(b.data).name;
  }
  return true;  // both undefined, or both none
}

namespace {

/// Python's repr of a float.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer{};
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                    fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), result.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

/// One byte of a string literal, escaped where Python or JSON would. `quote`: 0 for JSON.
void append_escaped(Text& target, char c, bool mark, char quote) {
  const auto byte = static_cast<uint8_t>(c);
  const char closing = quote != 0 ? quote : '"';
  constexpr std::string_view kNamed = "\n\r\t\b\f";
  constexpr std::string_view kNames = "nrtbf";
  const size_t named = kNamed.find(c);
  // Python's repr knows only the first three by name.
  if (named < (quote != 0 ? 3u : kNamed.size())) {
    target.append(std::string{'\\', kNames[named]}, mark);
  } else if (c == '\\' || c == closing) {
    target.append(std::string{'\\', c}, mark);
  } else if (byte < 0x20 || (quote != 0 && byte == 0x7f)) {
    constexpr std::string_view kHex = "0123456789abcdef";
    target.append(quote != 0 ? "\\x" : "\\u00", mark);
    target.append(std::string{kHex[byte >> 4], kHex[byte & 15]}, mark);
  } else {
    target.append(std::string_view(&c, 1), mark);
  }
}

void append_quoted(Text& target, const Text& text, bool json) {
  const bool has_single = text.bytes().find('\'') != std::string::npos;
  const bool has_double = text.bytes().find('"') != std::string::npos;
  const char quote = json ? 0 : has_single && !has_double ? '"' : '\'';
  const std::string_view border = json || quote == '"' ? "\"" : "'";
  target.append(border, false);
  for (size_t i = 0; i < text.size(); ++i) {
    append_escaped(target, text.bytes()[i], text.is_from_message(i), quote);
  }
  target.append(border, false);
}

void append_scalar(Text& target, const Value& value, bool json) {
  if (const auto* flag = std::get_if<bool>(&value.data)) {
    target.append(json ? (*flag ? "true" : "false") : (*flag ? "True" : "False"), false);
  } else if (value.is_integer()) {
    target.append(std::to_string(value.integer()), false);
  } else if (value.is_number()) {
    target.append(float_text(value.number()), false);
  } else if (value.text()) {
    append_quoted(target, *value.text(), json);
  } else {
    target.append(json ? "null" : value.is_none() ? "None" : "Undefined", false);
  }
}

/// Writes lists and mappings in Python's repr or in JSON.
class Writer {
 public:
  Writer(Text& target, bool json, int64_t indent) : target_(target), json_(json), indent_(indent) {}

  void write(const Value& value, int64_t depth) {
    if (value.list()) {
      open('[', !value.list()->empty(), depth + 1);
      for (size_t i = 0; i < value.list()->size(); ++i) {
        if (i > 0) separate(depth + 1);
        write((*value.list())[i], depth + 1);
      }
      close(']', !value.list()->empty(), depth);
    } else if (value.dict()) {
      const auto& entries = value.dict()->entries;
      open('{', !entries.empty(), depth + 1);
      for (size_t i = 0; i < entries.size(); ++i) {
        if (i > 0) separate(depth + 1);
        append_quoted(target_, entries[i].first, json_);
        target_.append(": ", false);
        write(entries[i].second, depth + 1);
      }
      close('}', !entries.empty(), depth);
    } else {
      append_scalar(target_, value, json_);
    }
  }

 private:
  void open(char bracket, bool has_elements, int64_t depth) {
    target_.append(std::string_view(&bracket, 1), false);
    if (has_elements) new_line(depth);
  }
  void close(char bracket, bool has_elements, int64_t depth) {
    if (has_elements) new_line(depth);
    target_.append(std::string_view(&bracket, 1), false);
  }
  void separate(int64_t depth) {
    target_.append(indent_ < 0 ? ", " : ",", false);
    new_line(depth);
  }
  void new_line(int64_t depth) {
    if (indent_ < 0) return;
    target_.append("\n", false);
    target_.append(std::string(static_cast<size_t>(indent_ * depth), ' '), false);
  }

  Text& target_;
  bool json_;
  int64_t indent_;
};

}  // namespace

Text to_text(const Value& value) {
  if (value.text()) return *value.text();
  Text text;
  if (!value.is_undefined()) Writer(text, false, -1).write(value, 0);
  return text;
}

Text to_json(const Value& value, int64_t indent) {
  Text text;
  Writer(text, true, indent).write(value, 0);
  return text;
}

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

std::vector<size_t> code_point_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += decode_utf8(text.substr(at)).bytes) {
    offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

}  // namespace pagezip::jinja
