// Filters, tests, methods and operators of chat templates: what Jinja and Python would do.
//
// All throw through fail_at(): for wrong types, for names they do not know, and when the budget is
// spent. Text keeps its marks through each of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja_ast.h"

namespace pagezip::jinja {

/// The work that one rendering may still do. A unit is one node evaluated, one value made, or
/// kBytesPerWeight bytes of text made or looked at.
class Budget {
 public:
  explicit Budget(uint64_t units) : units_(units) {}
  void charge(uint64_t units, int line) {
    if (units > units_) fail_at(line, "the template does too much work");
    units_ -= units;
  }

 private:
  uint64_t units_;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
  int line;

  /// The argument at that place or of that name; null if it was not given.
  const Value* get(size_t index, std::string_view name) const;
  /// The same, as text or an integer; fails if it is of another kind.
  const Text* text(size_t index, std::string_view name) const;
  std::optional<int64_t> integer(size_t index, std::string_view name) const;
  /// `object`: for the error.
  const Text& required_text(size_t index, std::string_view object) const;
};

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments,
                   Budget& budget);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments,
                Budget& budget);
/// Nothing if values of this kind have no such method.
std::optional<Value> call_method(const Value& object, const std::string& name,
                                 const Arguments& arguments, Budget& budget);

/// + - * / // % ~ == != < <= > >= in, not in.
Value binary(const std::string& operation, const Value& left, const Value& right, int line,
             Budget& budget);
Value negate(const Value& value, int line);
/// value.name; undefined if there is none.
Value attribute(const Value& value, const std::string& name, int line);
/// value[key]; undefined if there is none.
Value item(const Value& value, const Value& key, int line, Budget& budget);
/// value[from:to:step]; a null bound is left out.
Value slice(const Value& value, const Value* from, const Value* to, const Value* step, int line,
            Budget& budget);
/// What a loop runs over: elements, keys or characters.
List elements_of(const Value& value, int line, Budget& budget);
/// Charges for the value and bounds its depth.
Value checked(Value value, int line, Budget& budget);

}  // namespace pagezip::jinja
