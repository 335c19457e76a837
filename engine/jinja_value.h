// The values of a chat template, and text that remembers where each of its bytes came from.
//
// Everything is immutable and shared, so copies are cheap and no cycle can arise; a namespace, the
// one thing that a template may change, belongs to the interpreter and is only pointed to. Each
// value knows how deep it is and what it costs to walk through, because a few lines of template can
// build a list that is deeper than the stack or has more leaves than there are atoms.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pagezip::jinja {

inline constexpr uint64_t kBytesPerWeight = 32;

/// A string whose bytes are marked: written by the template, or part of a message. Every operation
/// carries the marks along, so that a control token in a message can never pass for the template's.
class Text {
 public:
  Text() = default;
  explicit Text(std::string_view bytes, bool from_message = false)
      : bytes_(bytes), marks_(bytes.size(), from_message ? 1 : 0) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool is_from_message(size_t i) const { return marks_[i] != 0; }

  Text substr(size_t begin, size_t count = std::string::npos) const;
  void append(const Text& other);
  void append(std::string_view bytes, bool from_message);
  /// Replaces byte i; its mark stays.
  void set_byte(size_t i, char byte) { bytes_[i] = byte; }

 private:
  std::string bytes_;
  std::string marks_;  // one for each byte: 1 = from a message
};

struct Value;
using List = std::vector<Value>;
/// In order of insertion. Keys are few, so a search is linear.
struct Dict;
struct Namespace;
struct Macro;

struct Undefined {
  std::string name;  // for errors: what was looked up in vain
};
struct None {};
/// One of the functions that every template can call. The name is a constant.
struct Function {
  std::string_view name;
};

struct Value {
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*, const Macro*,
               Function>
      data;
  uint32_t depth = 0;   // of lists and mappings: 1 + that of the deepest element
  uint64_t weight = 1;  // values inside plus bytes / kBytesPerWeight, saturating

  Value() = default;
  template <typename T>
  requires(!std::is_same_v<std::decay_t<T>, Value>) explicit Value(T value)
      : data(std::move(value)) {}
  explicit Value(Text text);
  explicit Value(std::string_view text) : Value(Text(text)) {}
  explicit Value(List list);
  explicit Value(Dict dict);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  /// Null if it is of another kind.
  const Text* text() const;
  const List* list() const;
  const Dict* dict() const;
  bool is_number() const;   // bools included, as in Python
  bool is_integer() const;  // likewise
  int64_t integer() const;  // REQUIRES: is_integer()
  double number() const;    // REQUIRES: is_number()
  bool truthy() const;
  std::string_view type_name() const;
};

struct Dict {
  std::vector<std::pair<Text, Value>> entries;
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

/// Python's ==; values of different kinds are unequal.
bool equal(const Value& a, const Value& b);
/// str(value), as output tags print it. Undefined gives nothing.
Text to_text(const Value& value);
/// json.dumps(value, ensure_ascii=False); `indent` < 0: on one line. Undefined values give null.
Text to_json(const Value& value, int64_t indent);

/// Python's str.isspace() for one code point.
bool is_space(uint32_t code_point);
/// Begin of each code point of the text, and its size at the end: Python counts in code points.
std::vector<size_t> code_point_offsets(std::string_view text);

}  // namespace pagezip::jinja
