#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/jinja_builtins.h"
#include "engine/utf8.h"

namespace pagezip::jinja {
namespace {

constexpr uint32_t kMaxValueDepth = 64;

[[noreturn]] void fail_types(const std::string& operation, const Value& left, const Value& right,
                             int line) {
  fail_at(line,
          fmt::format("'{}' between {} and {}", operation, left.type_name(), right.type_name()));
}

size_t element_count(const Value& value) {
  return value.list() ? value.list()->size() : value.dict() ? value.dict()->entries.size() : 0;
}

Value arithmetic(char operation, int64_t a, int64_t b, int line) {
  int64_t result = 0;
  const bool overflow = operation == '+'   ? __builtin_add_overflow(a, b, &result)
                        : operation == '-' ? __builtin_sub_overflow(a, b, &result)
                                           : __builtin_mul_overflow(a, b, &result);
  if (overflow) fail_at(line, "an integer is too large");
  return Value(result);
}

/// // and %, which round down as in Python.
Value divide(const std::string& operation, const Value& left, const Value& right, int line) {
  if (right.number() == 0) fail_at(line, "division by zero");
  if (operation == "/") return Value(left.number() / right.number());
  if (!left.is_integer() || !right.is_integer()) {
    const double quotient = std::floor(left.number() / right.number());
    return Value(operation == "//" ? quotient : left.number() - quotient * right.number());
  }
  const int64_t a = left.integer();
  const int64_t b = right.integer();
  if (b == -1) return operation == "//" ? arithmetic('-', 0, a, line) : Value(int64_t{0});
  const int64_t rest = a % b;
  const bool down = rest != 0 && (rest < 0) != (b < 0);
  if (operation == "//") return Value(a / b - (down ? 1 : 0));
  return Value(down ? rest + b : rest);
}

Value concatenate(const Text& left, const Text& right, int line, Budget& budget) {
  Text text = left;
  text.append(right);
  return checked(Value(std::move(text)), line, budget);
}

Value repeat(const Text& text, int64_t count, int line, Budget& budget) {
  const uint64_t times = count > 0 ? static_cast<uint64_t>(count) : 0;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(times, text.size(), &bytes)) bytes = ~uint64_t{0};
  budget.charge(bytes / kBytesPerWeight, line);
  Text result;
  for (uint64_t i = 0; bytes > 0 && i < times; ++i) result.append(text);
  return Value(std::move(result));
}

Value numeric(const std::string& operation, const Value& left, const Value& right, int line) {
  if (operation == "/" || operation == "//" || operation == "%") {
    return divide(operation, left, right, line);
  }
  if (left.is_integer() && right.is_integer()) {
    return arithmetic(operation[0], left.integer(), right.integer(), line);
  }
  const double a = left.number();
  const double b = right.number();
  return Value(operation == "+" ? a + b : operation == "-" ? a - b : a * b);
}

bool contains(const Value& container, const Value& value, int line) {
  if (container.text()) {
    if (!value.text()) fail_types("in", value, container, line);
    return container.text()->bytes().find(value.text()->bytes()) != std::string::npos;
  }
  if (container.list()) {
    return std::any_of(container.list()->begin(), container.list()->end(),
                       [&value](const Value& element) { return equal(element, value); });
  }
  if (container.dict()) {
    return value.text() && container.dict()->find(value.text()->bytes()) != nullptr;
  }
  if (container.is_undefined()) return false;
  fail_types("in", value, container, line);
}

bool less(const std::string& operation, const Value& left, const Value& right, int line) {
  if (left.is_integer() && right.is_integer()) return left.integer() < right.integer();
  if (left.is_number() && right.is_number()) return left.number() < right.number();
  if (left.text() && right.text()) return left.text()->bytes() < right.text()->bytes();
  fail_types(operation, left, right, line);
}

}  // namespace

Value checked(Value value, int line, Budget& budget) {
  if (value.depth > kMaxValueDepth) fail_at(line, "a list is nested too deeply");
  // Elements were paid for when they were made.
  budget.charge(value.depth > 0 ? 1 + element_count(value) : value.weight, line);
  return value;
}

Value binary(const std::string& operation, const Value& left, const Value& right, int line,
             Budget& budget) {
  if (operation == "~") {
    budget.charge(left.weight, line);
    budget.charge(right.weight, line);
    return concatenate(to_text(left), to_text(right), line, budget);
  }
  if (operation.size() <= 2 && std::string_view("+-*//%").find(operation) != std::string::npos) {
    if (left.is_number() && right.is_number()) return numeric(operation, left, right, line);
    if (operation == "+" && left.text() && right.text()) {
      return concatenate(*left.text(), *right.text(), line, budget);
    }
    if (operation == "+" && left.list() && right.list()) {
      List list = *left.list();
      list.insert(list.end(), right.list()->begin(), right.list()->end());
      return checked(Value(std::move(list)), line, budget);
    }
    if (operation == "*" && left.text() && right.is_integer()) {
      return repeat(*left.text(), right.integer(), line, budget);
    }
    fail_types(operation, left, right, line);
  }
  budget.charge(left.weight, line);
  budget.charge(right.weight, line);
  if (operation == "==") return Value(equal(left, right));
  if (operation == "!=") return Value(!equal(left, right));
  if (operation == "in") return Value(contains(right, left, line));
  if (operation == "not in") return Value(!contains(right, left, line));
  if (operation == "<") return Value(less(operation, left, right, line));
  if (operation == ">") return Value(less(operation, right, left, line));
  if (operation == "<=") return Value(!less(operation, right, left, line));
  return Value(!less(operation, left, right, line));  // ">="
}

Value negate(const Value& value, int line) {
  if (value.is_integer()) return arithmetic('-', 0, value.integer(), line);
  if (value.is_number()) return Value(-value.number());
  fail_at(line, fmt::format("'-' before {}", value.type_name()));
}

Value attribute(const Value& value, const std::string& name, int line) {
  if (const auto* undefined = std::get_if<Undefined>(&value.data)) {
    fail_at(line, fmt::format("'{}' is undefined, so it has no '{}'", undefined->name, name));
  }
  const Value* found = nullptr;
  if (value.dict()) found = value.dict()->find(name);
  if (const auto* names = std::get_if<Namespace*>(&value.data)) {
    const auto entry = (*names)->attributes.find(name);
    if (entry != (*names)->attributes.end()) found = &entry->second;
  }
  return found ? *found : Value(Undefined{name});
}

Value item(const Value& value, const Value& key, int line, Budget& budget) {
  if (key.text()) return attribute(value, key.text()->bytes(), line);
  if (value.is_undefined()) return attribute(value, "item", line);
  if (!key.is_integer() || (!value.list() && !value.text())) return Value(Undefined{"item"});
  const auto index_in = [&key](size_t size) -> std::optional<size_t> {
    const auto count = static_cast<int64_t>(size);
    int64_t index = key.integer();
    if (index < 0) index += count;
    if (index < 0 || index >= count) return {};
    return static_cast<size_t>(index);
  };
  if (value.list()) {
    const auto index = index_in(value.list()->size());
    return index ? (*value.list())[*index] : Value(Undefined{"item"});
  }
  budget.charge(value.weight, line);
  const std::vector<size_t> offsets = code_point_offsets(value.text()->bytes());
  const auto index = index_in(offsets.size() - 1);
  if (!index) return Value(Undefined{"item"});
  const size_t begin = offsets[*index];
  return Value(value.text()->substr(begin, offsets[*index + 1] - begin));
}

namespace {

/// The indices that [from:to:step] of a sequence of `size` elements visits, as Python does it.
std::vector<size_t> slice_indices(int64_t size, const Value* from, const Value* to, int64_t step,
                                  int line) {
  const auto bound = [&](const Value* value, int64_t otherwise) {
    if (!value || value->is_none()) return otherwise;
    if (!value->is_integer()) fail_at(line, "a slice bound is not an integer");
    int64_t index = value->integer();
    if (index < 0) index += size;
    return std::clamp<int64_t>(index, step > 0 ? 0 : -1, step > 0 ? size : size - 1);
  };
  const int64_t first = bound(from, step > 0 ? 0 : size - 1);
  const int64_t end = bound(to, step > 0 ? size : -1);
  std::vector<size_t> indices;
  for (int64_t i = first; step > 0 ? i < end : i > end; i += step) {
    indices.push_back(static_cast<size_t>(i));
    if (std::abs(step) > size) break;
  }
  return indices;
}

}  // namespace

Value slice(const Value& value, const Value* from, const Value* to, const Value* step, int line,
            Budget& budget) {
  int64_t stride = 1;
  if (step && !step->is_none()) {
    if (!step->is_integer() || step->integer() == 0) fail_at(line, "a bad slice step");
    stride = std::clamp<int64_t>(step->integer(), -(int64_t{1} << 32), int64_t{1} << 32);
  }
  if (value.list()) {
    List part;
    for (const size_t i :
         slice_indices(static_cast<int64_t>(value.list()->size()), from, to, stride, line)) {
      part.push_back((*value.list())[i]);
    }
    return checked(Value(std::move(part)), line, budget);
  }
  if (!value.text()) fail_at(line, fmt::format("a slice of {}", value.type_name()));
  budget.charge(value.weight, line);
  const std::vector<size_t> offsets = code_point_offsets(value.text()->bytes());
  const auto count = static_cast<int64_t>(offsets.size()) - 1;
  const std::vector<size_t> indices = slice_indices(count, from, to, stride, line);
  Text part;
  if (stride == 1 && !indices.empty()) {
    const size_t begin = offsets[indices.front()];
    part = value.text()->substr(begin, offsets[indices.back() + 1] - begin);
    return checked(Value(std::move(part)), line, budget);
  }
  for (const size_t i : indices) {
    part.append(value.text()->substr(offsets[i], offsets[i + 1] - offsets[i]));
  }
  return checked(Value(std::move(part)), line, budget);
}

List elements_of(const Value& value, int line, Budget& budget) {
  if (value.is_undefined()) return {};
  budget.charge(element_count(value), line);
  if (value.list()) return *value.list();
  List elements;
  if (value.dict()) {
    for (const auto& [key, element] : value.dict()->entries) elements.emplace_back(key);
  } else if (value.text()) {
    budget.charge(value.text()->size(), line);
    const std::vector<size_t> offsets = code_point_offsets(value.text()->bytes());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      elements.emplace_back(value.text()->substr(offsets[i], offsets[i + 1] - offsets[i]));
    }
  } else {
    fail_at(line, fmt::format("{} is not iterable", value.type_name()));
  }
  return elements;
}

}  // namespace pagezip::jinja
