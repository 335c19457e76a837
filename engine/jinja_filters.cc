#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/jinja_builtins.h"
#include "engine/jinja_text.h"

namespace pagezip::jinja {

const Value* Arguments::get(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [keyword, value] : keywords) {
    if (keyword == name) return &value;
  }
  return nullptr;
}

const Text* Arguments::text(size_t index, std::string_view name) const {
  const Value* value = get(index, name);
  if (!value || value->is_none()) return nullptr;
  if (!value->text()) fail_at(line, fmt::format("'{}' is not a string", name));
  return value->text();
}

std::optional<int64_t> Arguments::integer(size_t index, std::string_view name) const {
  const Value* value = get(index, name);
  if (!value || value->is_none()) return {};
  if (!value->is_integer()) fail_at(line, fmt::format("'{}' is not an integer", name));
  return value->integer();
}

const Text& Arguments::required_text(size_t index, std::string_view object) const {
  if (index >= positional.size() || !positional[index].text()) {
    fail_at(line, fmt::format("argument {} of {}() is not a string", index + 1, object));
  }
  return *positional[index].text();
}

namespace {

constexpr int64_t kMaxIndent = 16;

/// Filters of text work on what an output tag would print.
Text text_of(const Value& value, int line, Budget& budget) {
  budget.charge(value.weight, line);
  return to_text(value);
}

Value length(const Value& value, int line, Budget& budget) {
  if (value.text()) {
    budget.charge(value.weight, line);
    return Value(static_cast<int64_t>(code_point_offsets(value.text()->bytes()).size()) - 1);
  }
  return Value(static_cast<int64_t>(elements_of(value, line, budget).size()));
}

Value to_int(const Value& value, const Arguments& arguments) {
  if (value.is_integer()) return Value(value.integer());
  if (value.is_number() && std::abs(value.number()) < 9e18) {
    return Value(static_cast<int64_t>(value.number()));
  }
  if (value.text()) {
    const Text digits = strip(*value.text(), nullptr, true, true);
    const std::string& bytes = digits.bytes();
    int64_t number = 0;
    const auto result = std::from_chars(bytes.data(), bytes.data() + bytes.size(), number);
    if (!bytes.empty() && result.ec == std::errc() && result.ptr == bytes.data() + bytes.size()) {
      return Value(number);
    }
  }
  return Value(arguments.integer(0, "default").value_or(0));
}

Value to_float(const Value& value, const Arguments& arguments) {
  if (value.is_number()) return Value(value.number());
  if (value.text()) {
    const Text digits = strip(*value.text(), nullptr, true, true);
    const std::string& bytes = digits.bytes();
    double number = 0;
    const auto result = std::from_chars(bytes.data(), bytes.data() + bytes.size(), number);
    if (!bytes.empty() && result.ec == std::errc() && result.ptr == bytes.data() + bytes.size()) {
      return Value(number);
    }
  }
  const Value* otherwise = arguments.get(0, "default");
  return otherwise ? *otherwise : Value(0.0);
}

Value join(const Value& value, const Arguments& arguments, Budget& budget) {
  const Text* separator = arguments.text(0, "d");
  const Text* name = arguments.text(1, "attribute");
  Text text;
  bool first = true;
  for (const Value& element : elements_of(value, arguments.line, budget)) {
    if (!first && separator) {
      budget.charge(separator->size() / kBytesPerWeight, arguments.line);
      text.append(*separator);
    }
    first = false;
    const Value part = name ? attribute(element, name->bytes(), arguments.line) : element;
    text.append(text_of(part, arguments.line, budget));
  }
  return Value(std::move(text));
}

Value tojson(const Value& value, const Arguments& arguments, Budget& budget) {
  const int64_t indent = arguments.integer(0, "indent").value_or(-1);
  if (indent > kMaxIndent) fail_at(arguments.line, "tojson with too large an indent");
  if (value.is_undefined()) fail_at(arguments.line, "tojson of an undefined value");
  const uint64_t per_value = 1 + (indent > 0 ? static_cast<uint64_t>(indent) * value.depth : 0);
  uint64_t work = 0;
  if (__builtin_mul_overflow(value.weight, per_value, &work)) work = ~uint64_t{0};
  budget.charge(work, arguments.line);
  return Value(to_json(value, indent));
}

/// Jinja takes none, like everything false, for an empty list here.
List elements_if_any(const Value& value, int line, Budget& budget) {
  return value.truthy() ? elements_of(value, line, budget) : List();
}

/// select, reject, selectattr and rejectattr: which elements pass a test.
Value select(const std::string& name, const Value& value, const Arguments& arguments,
             Budget& budget) {
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  const size_t test_index = by_attribute ? 1 : 0;
  const Text* field = by_attribute ? &arguments.required_text(0, name) : nullptr;
  const Text* test = arguments.positional.size() > test_index
                         ? &arguments.required_text(test_index, name)
                         : nullptr;
  Arguments rest{{}, {}, arguments.line};
  for (size_t i = test_index + 1; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  List kept;
  for (const Value& element : elements_if_any(value, arguments.line, budget)) {
    const Value subject = field ? attribute(element, field->bytes(), arguments.line) : element;
    const bool passes = test ? apply_test(test->bytes(), subject, rest, budget) : subject.truthy();
    if (passes == wanted) kept.push_back(element);
  }
  return checked(Value(std::move(kept)), arguments.line, budget);
}

/// map(attribute='name'[, default=...]) or map('filter', arguments...).
Value map(const Value& value, const Arguments& arguments, Budget& budget) {
  const Text* field = nullptr;
  const Value* otherwise = nullptr;
  for (const auto& [keyword, given] : arguments.keywords) {
    if (keyword == "attribute") field = given.text();
    if (keyword == "default") otherwise = &given;
  }
  Arguments rest{{}, arguments.keywords, arguments.line};
  if (!arguments.positional.empty()) {
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  }
  List mapped;
  for (const Value& element : elements_if_any(value, arguments.line, budget)) {
    if (!field) {
      const std::string& filter = arguments.required_text(0, "map").bytes();
      mapped.push_back(apply_filter(filter, element, rest, budget));
      continue;
    }
    Value found = attribute(element, field->bytes(), arguments.line);
    if (found.is_undefined() && otherwise) found = *otherwise;
    mapped.push_back(std::move(found));
  }
  return checked(Value(std::move(mapped)), arguments.line, budget);
}

Value first_or_last(const Value& value, bool first, int line, Budget& budget) {
  const List elements = elements_of(value, line, budget);
  if (elements.empty()) return Value(Undefined{first ? "first" : "last"});
  return first ? elements.front() : elements.back();
}

Value with_default(const Value& value, const Arguments& arguments) {
  const Value* otherwise = arguments.get(0, "default_value");
  const Value* for_false = arguments.get(1, "boolean");
  const bool missing =
      value.is_undefined() || (for_false && for_false->truthy() && !value.truthy());
  if (!missing) return value;
  return otherwise ? *otherwise : Value(std::string_view());
}

Value reverse(const Value& value, int line, Budget& budget) {
  List elements = elements_of(value, line, budget);
  std::reverse(elements.begin(), elements.end());
  if (!value.text()) return checked(Value(std::move(elements)), line, budget);
  Text text;
  for (const Value& element : elements) text.append(*element.text());
  return Value(std::move(text));
}

using Filter = Value (*)(const Value& value, const Arguments& arguments, Budget& budget);

/// A filter that changes text alone.
template <Text (*function)(Text)>
Value text_filter(const Value& value, const Arguments& arguments, Budget& budget) {
  return Value(function(text_of(value, arguments.line, budget)));
}

const std::pair<std::string_view, Filter> kFilters[] = {
    {"capitalize", text_filter<capitalize>},
    {"count", [](const Value& v, const Arguments& a, Budget& b) { return length(v, a.line, b); }},
    {"d", [](const Value& v, const Arguments& a, Budget&) { return with_default(v, a); }},
    {"default", [](const Value& v, const Arguments& a, Budget&) { return with_default(v, a); }},
    {"first", [](const Value& v, const Arguments& a,
                 Budget& b) { return first_or_last(v, true, a.line, b); }},
    {"float", [](const Value& v, const Arguments& a, Budget&) { return to_float(v, a); }},
    {"int", [](const Value& v, const Arguments& a, Budget&) { return to_int(v, a); }},
    {"items",
     [](const Value& v, const Arguments& a, Budget& b) {
       if (v.is_undefined()) return Value(List());
       if (!v.dict()) fail_at(a.line, "items of something that is no mapping");
       return checked(dict_items(*v.dict()), a.line, b);
     }},
    {"join", join},
    {"last", [](const Value& v, const Arguments& a,
                Budget& b) { return first_or_last(v, false, a.line, b); }},
    {"length", [](const Value& v, const Arguments& a, Budget& b) { return length(v, a.line, b); }},
    {"list", [](const Value& v, const Arguments& a,
                Budget& b) { return checked(Value(elements_of(v, a.line, b)), a.line, b); }},
    {"lower", text_filter<lower>},
    {"map", map},
    {"replace", [](const Value& v, const Arguments& a,
                   Budget& b) { return replace(text_of(v, a.line, b), a, b); }},
    {"reverse",
     [](const Value& v, const Arguments& a, Budget& b) { return reverse(v, a.line, b); }},
    {"safe", [](const Value& v, const Arguments&, Budget&) { return v; }},
    {"string",
     [](const Value& v, const Arguments& a, Budget& b) { return Value(text_of(v, a.line, b)); }},
    {"title", text_filter<title>},
    {"tojson", tojson},
    {"trim",
     [](const Value& v, const Arguments& a, Budget& b) {
       return Value(strip(text_of(v, a.line, b), a.text(0, "chars"), true, true));
     }},
    {"upper", text_filter<upper>},
};

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments,
                   Budget& budget) {
  budget.charge(1, arguments.line);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return select(name, value, arguments, budget);
  }
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter(value, arguments, budget);
  }
  fail_at(arguments.line, fmt::format("unknown filter '{}'", name));
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments,
                Budget& budget) {
  budget.charge(1, arguments.line);
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "sequence" || name == "iterable") {
    return value.text() || value.list() || value.dict() || value.is_undefined();
  }
  if (name == "number") return value.is_number();
  if (name == "boolean") return std::holds_alternative<bool>(value.data);
  if (name == "integer") return std::holds_alternative<int64_t>(value.data);
  if (name == "float") return std::holds_alternative<double>(value.data);
  if (name == "true" || name == "false") {
    const auto* flag = std::get_if<bool>(&value.data);
    return flag && *flag == (name == "true");
  }
  if (name == "odd" || name == "even") {
    if (!value.is_integer()) fail_at(arguments.line, fmt::format("'{}' of no integer", name));
    return (value.integer() % 2 != 0) == (name == "odd");
  }
  constexpr std::pair<std::string_view, const char*> kComparisons[] = {
      {"equalto", "=="}, {"eq", "=="}, {"ne", "!="}, {"in", "in"},
      {"lt", "<"},       {"le", "<="}, {"gt", ">"},  {"ge", ">="},
  };
  for (const auto& [known, operation] : kComparisons) {
    if (known != name) continue;
    if (arguments.positional.empty()) {
      fail_at(arguments.line, fmt::format("the test '{}' needs an argument", name));
    }
    return binary(operation, value, arguments.positional[0], arguments.line, budget).truthy();
  }
  fail_at(arguments.line, fmt::format("unknown test '{}'", name));
}

}  // namespace pagezip::jinja
