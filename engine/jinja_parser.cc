// Recursive descent, with Jinja's precedences. The depth of the tree is bounded as it is built, so
// that neither evaluating nor freeing it can exhaust the stack.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>

#include "base/error.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_lexer.h"
#include "engine/utf8.h"

namespace pagezip::jinja {

void fail_at(int line, const std::string& what) {
  throw Error(ErrorKind::kModelFile,
              fmt::format("chat template line {}: {}; --chat-template overrides it", line,
                          to_printable(what, 200)));
}

namespace {

using Names = std::initializer_list<std::string_view>;

constexpr size_t kMaxTemplateBytes = 256 << 10;
constexpr int kMaxDepth = 100;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block run() {
    Block block = parse_block({});
    if (peek().kind != Token::Kind::kEnd) fail("unexpected end of a block");
    return block;
  }

 private:
  // Tokens.
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool is(Token::Kind kind, std::string_view value) const {
    return peek().kind == kind && peek().value == value;
  }
  bool is_operator(std::string_view value) const { return is(Token::Kind::kOperator, value); }
  bool is_name(std::string_view value) const { return is(Token::Kind::kName, value); }
  bool accept(Token::Kind kind, std::string_view value) {
    if (!is(kind, value)) return false;
    ++at_;
    return true;
  }
  bool accept_operator(std::string_view value) { return accept(Token::Kind::kOperator, value); }
  bool accept_name(std::string_view value) { return accept(Token::Kind::kName, value); }
  Token take(Token::Kind kind, std::string_view what) {
    if (peek().kind != kind) fail(fmt::format("expected {}, found '{}'", what, found()));
    return tokens_[at_++];
  }
  void expect_operator(std::string_view value) {
    if (!accept_operator(value)) fail(fmt::format("expected '{}', found '{}'", value, found()));
  }
  std::string found() const {
    return peek().kind == Token::Kind::kEnd ? "the end" : to_printable(peek().value);
  }
  [[noreturn]] void fail(const std::string& what) const { fail_at(peek().line, what); }

  // Expressions.
  ExprPtr make(Expr::Kind kind, int line, std::string name, std::vector<ExprPtr> operands) const {
    auto node = std::make_unique<Expr>();
    node->kind = kind;
    node->line = line;
    node->name = std::move(name);
    node->operands = std::move(operands);
    return with_depth(std::move(node));
  }
  ExprPtr with_depth(ExprPtr node) const {
    for (const ExprPtr& operand : node->operands) {
      if (operand) node->depth = std::max(node->depth, operand->depth + 1);
    }
    for (const auto& [name, value] : node->keywords) {
      node->depth = std::max(node->depth, value->depth + 1);
    }
    if (node->depth > kMaxDepth) fail_at(node->line, "an expression is nested too deeply");
    return node;
  }
  template <typename... Operands>
  ExprPtr node(Expr::Kind kind, int line, std::string name, Operands... operands) const {
    std::vector<ExprPtr> list;
    (list.push_back(std::move(operands)), ...);
    return make(kind, line, std::move(name), std::move(list));
  }
  ExprPtr literal(int line, Value value) const {
    auto result = std::make_unique<Expr>();
    result->kind = Expr::Kind::kLiteral;
    result->line = line;
    result->literal = std::move(value);
    return result;
  }

  /// Counts nesting in the parser's own recursion.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxDepth) parser_.fail("the template is nested too deeply");
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  ExprPtr parse_expression() {
    const Nesting nesting(*this);
    ExprPtr value = parse_or();
    const int line = peek().line;
    if (!accept_name("if")) return value;
    ExprPtr test = parse_or();
    ExprPtr otherwise = accept_name("else") ? parse_expression() : nullptr;
    return node(Expr::Kind::kCondition, line, "", std::move(test), std::move(value),
                std::move(otherwise));
  }
  /// expression [, expression]...: more than one make a list.
  ExprPtr parse_tuple() {
    const int line = peek().line;
    ExprPtr first = parse_expression();
    if (!is_operator(",")) return first;
    std::vector<ExprPtr> elements;
    elements.push_back(std::move(first));
    while (accept_operator(",")) {
      if (is_operator(")") || peek().kind == Token::Kind::kBlockEnd) break;
      elements.push_back(parse_expression());
    }
    return make(Expr::Kind::kList, line, "", std::move(elements));
  }

  template <typename Next>
  ExprPtr parse_left(Token::Kind kind, Names operators, const Next& next) {
    ExprPtr left = next();
    while (peek().kind == kind &&
           std::find(operators.begin(), operators.end(), peek().value) != operators.end()) {
      const Token operation = tokens_[at_++];
      left = node(Expr::Kind::kBinary, operation.line, operation.value, std::move(left), next());
    }
    return left;
  }
  ExprPtr parse_or() {
    return parse_left(Token::Kind::kName, {"or"}, [this] { return parse_and(); });
  }
  ExprPtr parse_and() {
    return parse_left(Token::Kind::kName, {"and"}, [this] { return parse_not(); });
  }
  ExprPtr parse_not() {
    const Nesting nesting(*this);
    const int line = peek().line;
    if (!accept_name("not")) return parse_compare();
    return node(Expr::Kind::kUnary, line, "not", parse_not());
  }
  ExprPtr parse_compare() {
    ExprPtr left = parse_sum();
    for (bool chained = false;; chained = true) {
      const int line = peek().line;
      std::string operation;
      if (is_name("not") && peek(1).kind == Token::Kind::kName && peek(1).value == "in") {
        at_ += 2;
        operation = "not in";
      } else if (is_name("in") || (peek().kind == Token::Kind::kOperator &&
                                   std::string_view("== != < <= > >=").find(peek().value) !=
                                       std::string_view::npos &&
                                   peek().value != "=")) {
        operation = tokens_[at_++].value;
      } else {
        return left;
      }
      if (chained) fail_at(line, "chained comparisons are not supported");
      left = node(Expr::Kind::kBinary, line, operation, std::move(left), parse_sum());
    }
  }
  ExprPtr parse_sum() {
    return parse_left(Token::Kind::kOperator, {"+", "-"}, [this] { return parse_concatenation(); });
  }
  ExprPtr parse_concatenation() {
    return parse_left(Token::Kind::kOperator, {"~"}, [this] { return parse_product(); });
  }
  ExprPtr parse_product() {
    return parse_left(Token::Kind::kOperator, {"*", "/", "//", "%"},
                      [this] { return parse_unary(true); });
  }
  ExprPtr parse_unary(bool with_filters) {
    const Nesting nesting(*this);
    const int line = peek().line;
    ExprPtr value;
    if (is_operator("-") || is_operator("+")) {
      const std::string operation = tokens_[at_++].value;
      value = node(Expr::Kind::kUnary, line, operation, parse_unary(false));
    } else {
      value = parse_postfix(parse_primary());
    }
    return with_filters ? parse_filters(std::move(value)) : std::move(value);
  }

  ExprPtr parse_primary() {
    const Token token = peek();
    ++at_;
    switch (token.kind) {
      case Token::Kind::kName:
        if (token.value == "true" || token.value == "True") return literal(token.line, Value(true));
        if (token.value == "false" || token.value == "False") {
          return literal(token.line, Value(false));
        }
        if (token.value == "none" || token.value == "None") {
          return literal(token.line, Value(None{}));
        }
        return node(Expr::Kind::kName, token.line, token.value);
      case Token::Kind::kString: {
        std::string text = token.value;
        while (peek().kind == Token::Kind::kString) text += tokens_[at_++].value;
        return literal(token.line, Value(std::string_view(text)));
      }
      case Token::Kind::kInteger:
        return literal(token.line, Value(parse_number<int64_t>(token)));
      case Token::Kind::kFloat:
        return literal(token.line, Value(parse_number<double>(token)));
      default:
        break;
    }
    if (token.kind == Token::Kind::kOperator) {
      if (token.value == "(") return parse_parentheses(token.line);
      if (token.value == "[") return parse_list(token.line);
      if (token.value == "{") return parse_dict(token.line);
    }
    --at_;
    fail(fmt::format("unexpected '{}'", found()));
  }
  template <typename T>
  T parse_number(const Token& token) const {
    T value = 0;
    const char* end = token.value.data() + token.value.size();
    const auto result = std::from_chars(token.value.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) fail_at(token.line, "a number is too large");
    return value;
  }
  ExprPtr parse_parentheses(int line) {
    if (accept_operator(")")) return make(Expr::Kind::kList, line, "", {});
    ExprPtr inner = parse_tuple();
    expect_operator(")");
    return inner;
  }
  ExprPtr parse_list(int line) {
    std::vector<ExprPtr> elements;
    while (!accept_operator("]")) {
      elements.push_back(parse_expression());
      if (!is_operator("]")) expect_operator(",");
    }
    return make(Expr::Kind::kList, line, "", std::move(elements));
  }
  ExprPtr parse_dict(int line) {
    std::vector<ExprPtr> elements;
    while (!accept_operator("}")) {
      elements.push_back(parse_expression());
      expect_operator(":");
      elements.push_back(parse_expression());
      if (!is_operator("}")) expect_operator(",");
    }
    return make(Expr::Kind::kDict, line, "", std::move(elements));
  }

  ExprPtr parse_postfix(ExprPtr value) {
    while (true) {
      const int line = peek().line;
      if (accept_operator(".")) {
        const Token name = take(Token::Kind::kName, "a name after '.'");
        value = node(Expr::Kind::kAttribute, line, name.value, std::move(value));
      } else if (accept_operator("[")) {
        value = parse_subscript(std::move(value), line);
      } else if (is_operator("(")) {
        auto call = std::make_unique<Expr>();
        call->kind = Expr::Kind::kCall;
        call->line = line;
        call->operands.push_back(std::move(value));
        parse_arguments(*call);
        value = with_depth(std::move(call));
      } else {
        return value;
      }
    }
  }
  ExprPtr parse_subscript(ExprPtr value, int line) {
    std::vector<ExprPtr> parts(1);
    bool slice = false;
    while (!accept_operator("]")) {
      if (accept_operator(":")) {
        slice = true;
        parts.emplace_back();
      } else if (parts.back() == nullptr) {
        parts.back() = parse_expression();
      } else {
        expect_operator("]");
      }
    }
    if (!slice && parts[0] == nullptr) fail_at(line, "an empty subscript");
    if (parts.size() > 3) fail_at(line, "too many ':' in a slice");
    if (!slice) {
      return node(Expr::Kind::kItem, line, "", std::move(value), std::move(parts[0]));
    }
    parts.resize(3);
    return node(Expr::Kind::kSlice, line, "", std::move(value), std::move(parts[0]),
                std::move(parts[1]), std::move(parts[2]));
  }
  void parse_arguments(Expr& call) {
    expect_operator("(");
    while (!accept_operator(")")) {
      if (peek().kind == Token::Kind::kName && peek(1).kind == Token::Kind::kOperator &&
          peek(1).value == "=") {
        std::string name = peek().value;
        at_ += 2;
        call.keywords.emplace_back(std::move(name), parse_expression());
      } else {
        if (!call.keywords.empty()) fail("a positional argument follows a keyword argument");
        call.operands.push_back(parse_expression());
      }
      if (!is_operator(")")) expect_operator(",");
    }
  }

  ExprPtr parse_filters(ExprPtr value) {
    while (true) {
      auto next = std::make_unique<Expr>();
      next->line = peek().line;
      next->operands.push_back(std::move(value));
      if (accept_operator("|")) {
        next->kind = Expr::Kind::kFilter;
        next->name = take(Token::Kind::kName, "the name of a filter").value;
        if (is_operator("(")) parse_arguments(*next);
        value = with_depth(std::move(next));
      } else if (accept_name("is")) {
        value = parse_test(std::move(next));
      } else {
        return std::move(next->operands[0]);
      }
    }
  }
  ExprPtr parse_test(ExprPtr test) {
    const int line = test->line;
    const bool negated = accept_name("not");
    test->kind = Expr::Kind::kTest;
    test->name = take(Token::Kind::kName, "the name of a test").value;
    const Token& next = peek();
    const bool word = next.kind == Token::Kind::kName && next.value != "and" &&
                      next.value != "or" && next.value != "else" && next.value != "is" &&
                      next.value != "if" && next.value != "in" && next.value != "not";
    if (is_operator("(")) {
      parse_arguments(*test);
    } else if (word || next.kind == Token::Kind::kString || next.kind == Token::Kind::kInteger ||
               next.kind == Token::Kind::kFloat || is_operator("[")) {
      test->operands.push_back(parse_postfix(parse_primary()));
    }
    ExprPtr result = with_depth(std::move(test));
    return negated ? node(Expr::Kind::kUnary, line, "not", std::move(result)) : std::move(result);
  }

  // Statements.
  /// Up to a tag that starts with one of `ends`, which is left to the caller (after its "{%").
  Block parse_block(Names ends) {
    const Nesting nesting(*this);
    Block block;
    while (peek().kind != Token::Kind::kEnd) {
      const Token token = tokens_[at_++];
      if (token.kind == Token::Kind::kText) {
        Statement& text = add(block, Statement::Kind::kText, token.line);
        text.text = Text(token.value);
      } else if (token.kind == Token::Kind::kOutputBegin) {
        Statement& output = add(block, Statement::Kind::kOutput, token.line);
        output.value = parse_tuple();
        take(Token::Kind::kOutputEnd, "}}");
      } else if (std::find(ends.begin(), ends.end(), peek().value) != ends.end()) {
        return block;
      } else {
        parse_statement(block);
      }
    }
    if (ends.size() > 0) fail(fmt::format("the template ends before '{}'", *(ends.end() - 1)));
    return block;
  }
  static Statement& add(Block& block, Statement::Kind kind, int line) {
    block.emplace_back();
    block.back().kind = kind;
    block.back().line = line;
    return block.back();
  }
  void end_tag() { take(Token::Kind::kBlockEnd, "%}"); }
  /// A block with its closing tag.
  Block parse_body(std::string_view end) {
    end_tag();
    Block body = parse_block({end});
    ++at_;
    end_tag();
    return body;
  }

  void parse_statement(Block& block) {
    const Token tag = take(Token::Kind::kName, "the name of a tag");
    if (tag.value == "if") return parse_if(add(block, Statement::Kind::kIf, tag.line));
    if (tag.value == "for") return parse_for(add(block, Statement::Kind::kFor, tag.line));
    if (tag.value == "set") return parse_set(add(block, Statement::Kind::kSet, tag.line));
    if (tag.value == "macro") return parse_macro(add(block, Statement::Kind::kMacro, tag.line));
    if (tag.value == "generation") {  // marks the assistant's words for training: nothing to do
      Statement& inner = add(block, Statement::Kind::kBlock, tag.line);
      inner.branches.emplace_back(nullptr, parse_body("endgeneration"));
      return;
    }
    const bool is_break = tag.value == "break";
    if (!is_break && tag.value != "continue") {
      fail_at(tag.line, fmt::format("unknown tag '{}'", to_printable(tag.value)));
    }
    if (loops_ == 0) fail_at(tag.line, fmt::format("'{}' outside of a loop", tag.value));
    add(block, is_break ? Statement::Kind::kBreak : Statement::Kind::kContinue, tag.line);
    end_tag();
  }
  void parse_if(Statement& statement) {
    ExprPtr condition = parse_tuple();
    while (true) {
      end_tag();
      const bool last = condition == nullptr;
      Block body = last ? parse_block({"endif"}) : parse_block({"elif", "else", "endif"});
      statement.branches.emplace_back(std::move(condition), std::move(body));
      const std::string end = tokens_[at_++].value;
      if (end == "endif") return end_tag();
      condition = end == "elif" ? parse_tuple() : nullptr;
    }
  }
  void parse_for(Statement& statement) {
    do {
      statement.names.push_back(take(Token::Kind::kName, "a loop variable").value);
    } while (accept_operator(","));
    if (!accept_name("in")) fail(fmt::format("expected 'in', found '{}'", found()));
    statement.value = parse_or();
    if (accept_name("if")) statement.condition = parse_expression();
    if (is_name("recursive")) fail("recursive loops are not supported");
    end_tag();
    ++loops_;
    statement.branches.emplace_back(nullptr, parse_block({"else", "endfor"}));
    --loops_;
    if (tokens_[at_++].value == "else") {
      end_tag();
      statement.branches.emplace_back(nullptr, parse_block({"endfor"}));
      ++at_;
    }
    end_tag();
  }
  void parse_set(Statement& statement) {
    statement.names.push_back(take(Token::Kind::kName, "a variable").value);
    if (accept_operator(".")) {
      statement.kind = Statement::Kind::kSetField;
      statement.names.push_back(take(Token::Kind::kName, "an attribute").value);
    } else if (peek().kind == Token::Kind::kBlockEnd) {
      statement.kind = Statement::Kind::kSetBlock;
      statement.branches.emplace_back(nullptr, parse_body("endset"));
      return;
    } else {
      while (accept_operator(",")) {
        statement.names.push_back(take(Token::Kind::kName, "a variable").value);
      }
    }
    expect_operator("=");
    statement.value = parse_tuple();
    end_tag();
  }
  void parse_macro(Statement& statement) {
    auto macro = std::make_shared<Macro>();
    macro->name = take(Token::Kind::kName, "the name of a macro").value;
    expect_operator("(");
    while (!accept_operator(")")) {
      std::string name = take(Token::Kind::kName, "a parameter").value;
      ExprPtr value = accept_operator("=") ? parse_expression() : nullptr;
      macro->parameters.emplace_back(std::move(name), std::move(value));
      if (!is_operator(")")) expect_operator(",");
    }
    const int loops = std::exchange(loops_, 0);  // a macro's body is in no loop
    macro->body = parse_body("endmacro");
    loops_ = loops;
    statement.macro = std::move(macro);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) fail_at(1, "the template is too long");
  return Parser(tokenize(source)).run();
}

}  // namespace pagezip::jinja
