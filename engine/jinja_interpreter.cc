#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <deque>
#include <stdexcept>

#include "engine/jinja.h"
#include "engine/jinja_builtins.h"
#include "engine/utf8.h"

namespace pagezip::jinja {
namespace {

// A real template needs some thousand units for a short chat; each byte of the messages adds one.
constexpr uint64_t kBaseBudget = 1 << 20;
constexpr int kMaxDepth = 300;  // of evaluation, all recursion of macros included

constexpr std::string_view kFunctions[] = {"range", "namespace", "dict", "raise_exception",
                                           "strftime_now"};

using Scope = std::vector<std::pair<std::string, Value>>;

class Interpreter {
 public:
  Interpreter(Scope variables, int64_t time, uint64_t budget)
      : budget_(budget), time_(time), scopes_{std::move(variables)} {}

  Text run(const Block& block) {
    execute(block);
    return std::move(output_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  class Nesting {
   public:
    Nesting(Interpreter& interpreter, int line) : interpreter_(interpreter) {
      if (++interpreter_.depth_ > kMaxDepth) fail_at(line, "too deep a recursion");
      interpreter_.budget_.charge(1, line);
    }
    ~Nesting() { --interpreter_.depth_; }
    Nesting(const Nesting&) = delete;

   private:
    Interpreter& interpreter_;
  };

  // Names.
  const Value* find(std::string_view name) const {
    const auto in = [name](const Scope& scope) -> const Value* {
      const auto found = std::find_if(scope.begin(), scope.end(),
                                      [name](const auto& entry) { return entry.first == name; });
      return found == scope.end() ? nullptr : &found->second;
    };
    // A macro sees its own scopes and the outermost one, not its caller's.
    for (size_t i = scopes_.size(); i > first_scope_; --i) {
      if (const Value* value = in(scopes_[i - 1])) return value;
    }
    return first_scope_ > 0 ? in(scopes_[0]) : nullptr;
  }
  void assign(const std::string& name, Value value) {
    Scope& scope = scopes_.back();
    for (auto& [known, held] : scope) {
      if (known == name) {
        held = std::move(value);
        return;
      }
    }
    scope.emplace_back(name, std::move(value));
  }
  void assign_all(const std::vector<std::string>& names, const Value& value, int line) {
    if (names.size() == 1) return assign(names[0], value);
    if (!value.list() || value.list()->size() != names.size()) {
      fail_at(line, fmt::format("cannot unpack {} into {} names", value.type_name(), names.size()));
    }
    for (size_t i = 0; i < names.size(); ++i) assign(names[i], (*value.list())[i]);
  }

  // Statements.
  Flow execute(const Block& block) {
    for (const Statement& statement : block) {
      const Flow flow = execute(statement);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }
  Flow execute(const Statement& statement) {
    const Nesting nesting(*this, statement.line);
    switch (statement.kind) {
      case Statement::Kind::kText:
        budget_.charge(statement.text.size() / kBytesPerWeight, statement.line);
        output_.append(statement.text);
        return Flow::kNext;
      case Statement::Kind::kOutput: {
        const Value value = evaluate(*statement.value);
        budget_.charge(value.weight, statement.line);
        output_.append(to_text(value));
        return Flow::kNext;
      }
      case Statement::Kind::kIf:
        for (const auto& [condition, body] : statement.branches) {
          if (!condition || evaluate(*condition).truthy()) return execute(body);
        }
        return Flow::kNext;
      case Statement::Kind::kFor:
        return loop(statement);
      case Statement::Kind::kSet:
        assign_all(statement.names, evaluate(*statement.value), statement.line);
        return Flow::kNext;
      case Statement::Kind::kSetField:
        set_field(statement);
        return Flow::kNext;
      case Statement::Kind::kSetBlock:
        assign(statement.names[0], Value(capture(statement.branches[0].second)));
        return Flow::kNext;
      case Statement::Kind::kMacro:
        assign(statement.macro->name, Value(statement.macro.get()));
        return Flow::kNext;
      case Statement::Kind::kBlock:
        return execute(statement.branches[0].second);
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }
  void set_field(const Statement& statement) {
    const Value* target = find(statement.names[0]);
    const auto* names = target ? std::get_if<Namespace*>(&target->data) : nullptr;
    if (!names) {
      fail_at(statement.line, fmt::format("'{}' is not a namespace", statement.names[0]));
    }
    (*names)->attributes[statement.names[1]] = evaluate(*statement.value);
  }
  /// The output of a block in a scope of its own.
  Text capture(const Block& block) {
    Text outer = std::exchange(output_, Text());
    scopes_.emplace_back();
    execute(block);
    scopes_.pop_back();
    return std::exchange(output_, std::move(outer));
  }

  Flow loop(const Statement& statement) {
    List elements = elements_of(evaluate(*statement.value), statement.line, budget_);
    if (statement.condition) elements = filtered(statement, std::move(elements));
    if (elements.empty()) {
      return statement.branches.size() > 1 ? execute(statement.branches[1].second) : Flow::kNext;
    }
    for (size_t i = 0; i < elements.size(); ++i) {
      scopes_.emplace_back();
      assign_all(statement.names, elements[i], statement.line);
      assign("loop", loop_variable(elements, i));
      const Flow flow = execute(statement.branches[0].second);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }
  List filtered(const Statement& statement, List elements) {
    List kept;
    for (Value& element : elements) {
      scopes_.emplace_back();
      assign_all(statement.names, element, statement.line);
      if (evaluate(*statement.condition).truthy()) kept.push_back(std::move(element));
      scopes_.pop_back();
    }
    return kept;
  }
  static Value loop_variable(const List& elements, size_t i) {
    const auto integer = [](size_t value) { return Value(static_cast<int64_t>(value)); };
    const size_t count = elements.size();
    Dict loop;
    const auto add = [&loop](std::string_view name, Value value) {
      loop.entries.emplace_back(Text(name), std::move(value));
    };
    add("index", integer(i + 1));
    add("index0", integer(i));
    add("first", Value(i == 0));
    add("last", Value(i + 1 == count));
    add("length", integer(count));
    add("revindex", integer(count - i));
    add("revindex0", integer(count - i - 1));
    if (i > 0) add("previtem", elements[i - 1]);
    if (i + 1 < count) add("nextitem", elements[i + 1]);
    return Value(std::move(loop));
  }

  // Expressions.
  Value evaluate(const Expr& expr) {
    const Nesting nesting(*this, expr.line);
    switch (expr.kind) {
      case Expr::Kind::kLiteral:
        return expr.literal;
      case Expr::Kind::kName: {
        if (const Value* value = find(expr.name)) return *value;
        for (const std::string_view function : kFunctions) {
          if (function == expr.name) return Value(Function{function});
        }
        return Value(Undefined{expr.name});
      }
      case Expr::Kind::kList: {
        List list;
        for (const ExprPtr& operand : expr.operands) list.push_back(evaluate(*operand));
        return checked(Value(std::move(list)), expr.line, budget_);
      }
      case Expr::Kind::kDict:
        return dict(expr);
      case Expr::Kind::kUnary: {
        const Value value = evaluate(*expr.operands[0]);
        if (expr.name == "not") return Value(!value.truthy());
        return expr.name == "-" ? negate(value, expr.line) : value;
      }
      case Expr::Kind::kBinary:
        return binary_operation(expr);
      case Expr::Kind::kCondition:
        if (evaluate(*expr.operands[0]).truthy()) return evaluate(*expr.operands[1]);
        return expr.operands[2] ? evaluate(*expr.operands[2]) : Value(Undefined{"else"});
      case Expr::Kind::kAttribute:
        return attribute(evaluate(*expr.operands[0]), expr.name, expr.line);
      case Expr::Kind::kItem: {
        const Value object = evaluate(*expr.operands[0]);
        return item(object, evaluate(*expr.operands[1]), expr.line, budget_);
      }
      case Expr::Kind::kSlice:
        return slice_of(expr);
      case Expr::Kind::kCall:
        return call(expr);
      case Expr::Kind::kFilter: {
        const Value value = evaluate(*expr.operands[0]);
        return apply_filter(expr.name, value, arguments_of(expr), budget_);
      }
      case Expr::Kind::kTest: {
        const Value value = evaluate(*expr.operands[0]);
        return Value(apply_test(expr.name, value, arguments_of(expr), budget_));
      }
    }
    return Value();
  }
  Value dict(const Expr& expr) {
    Dict result;
    for (size_t i = 0; i < expr.operands.size(); i += 2) {
      const Value key = evaluate(*expr.operands[i]);
      if (!key.text()) fail_at(expr.line, "the key of a mapping is not a string");
      Value value = evaluate(*expr.operands[i + 1]);
      const auto known = std::find_if(
          result.entries.begin(), result.entries.end(),
          [&key](const auto& entry) { return entry.first.bytes() == key.text()->bytes(); });
      if (known != result.entries.end()) {
        known->second = std::move(value);
      } else {
        result.entries.emplace_back(*key.text(), std::move(value));
      }
    }
    return checked(Value(std::move(result)), expr.line, budget_);
  }
  Value binary_operation(const Expr& expr) {
    Value left = evaluate(*expr.operands[0]);
    if (expr.name == "and" && !left.truthy()) return left;
    if (expr.name == "or" && left.truthy()) return left;
    Value right = evaluate(*expr.operands[1]);
    if (expr.name == "and" || expr.name == "or") return right;
    return binary(expr.name, left, right, expr.line, budget_);
  }
  Value slice_of(const Expr& expr) {
    const Value object = evaluate(*expr.operands[0]);
    std::array<Value, 3> bounds;
    std::array<const Value*, 3> given{};
    for (size_t i = 0; i < 3; ++i) {
      if (!expr.operands[i + 1]) continue;
      bounds[i] = evaluate(*expr.operands[i + 1]);
      given[i] = &bounds[i];
    }
    return slice(object, given[0], given[1], given[2], expr.line, budget_);
  }
  Arguments arguments_of(const Expr& expr) {
    Arguments arguments{{}, {}, expr.line};
    for (size_t i = 1; i < expr.operands.size(); ++i) {
      arguments.positional.push_back(evaluate(*expr.operands[i]));
    }
    for (const auto& [name, value] : expr.keywords) {
      arguments.keywords.emplace_back(name, evaluate(*value));
    }
    return arguments;
  }

  // Calls.
  Value call(const Expr& expr) {
    const Expr& callee = *expr.operands[0];
    if (callee.kind == Expr::Kind::kAttribute) {
      const Value object = evaluate(*callee.operands[0]);
      const Arguments arguments = arguments_of(expr);
      if (auto result = call_method(object, callee.name, arguments, budget_)) return *result;
      return call_value(attribute(object, callee.name, expr.line), callee.name, arguments);
    }
    const Value value = evaluate(callee);
    return call_value(value, callee.name, arguments_of(expr));
  }
  Value call_value(const Value& value, const std::string& name, const Arguments& arguments) {
    if (const auto* macro = std::get_if<const Macro*>(&value.data)) {
      return call_macro(**macro, arguments);
    }
    if (const auto* function = std::get_if<Function>(&value.data)) {
      return call_function(function->name, arguments);
    }
    fail_at(arguments.line, fmt::format("unknown function or method '{}'", name));
  }
  Value call_macro(const Macro& macro, const Arguments& arguments) {
    const auto& parameters = macro.parameters;
    const auto is_parameter = [&parameters](const auto& argument) {
      return std::any_of(parameters.begin(), parameters.end(),
                         [&argument](const auto& p) { return p.first == argument.first; });
    };
    if (arguments.positional.size() > parameters.size() ||
        !std::all_of(arguments.keywords.begin(), arguments.keywords.end(), is_parameter)) {
      fail_at(arguments.line, fmt::format("macro '{}' has no such parameter", macro.name));
    }
    Text outer = std::exchange(output_, Text());
    const size_t outer_first = std::exchange(first_scope_, scopes_.size());
    scopes_.emplace_back();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, otherwise] = parameters[i];
      const Value* given = arguments.get(i, name);
      assign(name, given ? *given : otherwise ? evaluate(*otherwise) : Value(Undefined{name}));
    }
    execute(macro.body);
    scopes_.pop_back();
    first_scope_ = outer_first;
    return Value(std::exchange(output_, std::move(outer)));
  }
  /// REQUIRES: one of kFunctions.
  Value call_function(std::string_view name, const Arguments& arguments) {
    if (name == "range") return range(arguments);
    if (name == "namespace") {
      Namespace& names = namespaces_.emplace_back();
      for (const auto& [key, value] : arguments.keywords) names.attributes[key] = value;
      return Value(&names);
    }
    if (name == "dict") {
      Dict dict;
      for (const auto& [key, value] : arguments.keywords) {
        dict.entries.emplace_back(Text(key), value);
      }
      return checked(Value(std::move(dict)), arguments.line, budget_);
    }
    if (name == "raise_exception") {
      throw Refusal(arguments.required_text(0, name).bytes());
    }
    return format_time(arguments);  // "strftime_now"
  }
  Value range(const Arguments& arguments) {
    const std::optional<int64_t> first = arguments.integer(0, "start");
    const std::optional<int64_t> second = arguments.integer(1, "stop");
    const int64_t step = arguments.integer(2, "step").value_or(1);
    if (!first || step == 0) fail_at(arguments.line, "range() needs numbers");
    const int64_t end = second.value_or(*first);
    List numbers;
    for (int64_t i = second ? *first : 0; step > 0 ? i < end : i > end;) {
      budget_.charge(1, arguments.line);
      numbers.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value(std::move(numbers));
  }
  Value format_time(const Arguments& arguments) const {
    const std::time_t time = time_;
    std::tm parts{};
    std::array<char, 256> text{};
    const Text& format = arguments.required_text(0, "strftime_now");
    if (!localtime_r(&time, &parts)) fail_at(arguments.line, "strftime_now() has no time");
    const size_t bytes = std::strftime(text.data(), text.size(), format.bytes().c_str(), &parts);
    // The format's own text comes out again, so its marks must too.
    bool from_message = false;
    for (size_t i = 0; i < format.size(); ++i) from_message |= format.is_from_message(i);
    return Value(Text(std::string_view(text.data(), bytes), from_message));
  }

  Budget budget_;
  int64_t time_;
  int depth_ = 0;
  Text output_;
  std::vector<Scope> scopes_;  // [0] the template's own, then those of blocks, innermost last
  size_t first_scope_ = 0;     // of the running macro
  std::deque<Namespace> namespaces_;
};

}  // namespace

Text Template::render(std::vector<std::pair<std::string, Value>> variables, int64_t time) const {
  uint64_t budget = kBaseBudget;
  for (const auto& [name, value] : variables) budget += value.weight * kBytesPerWeight;
  return Interpreter(std::move(variables), time, budget).run(block_);
}

}  // namespace pagezip::jinja
