// The parts of a parsed chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja_value.h"

namespace pagezip::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : uint8_t {
    kLiteral,    // literal
    kName,       // name
    kList,       // operands
    kDict,       // operands: key, value, key, value, ...
    kUnary,      // name = operator, operands[0]
    kBinary,     // name = operator, operands[0], operands[1]
    kCondition,  // operands: test, then, else (may be null)
    kAttribute,  // operands[0].name
    kItem,       // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], each may be null
    kCall,       // operands[0](operands[1...], keywords)
    kFilter,     // operands[0] | name(operands[1...], keywords)
    kTest,       // operands[0] is name(operands[1...])
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  int depth = 1;  // of the tree below
  std::string name;
  Value literal;
  std::vector<ExprPtr> operands;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind : uint8_t {
    kText,      // text
    kOutput,    // value
    kIf,        // branches in order; a null condition is "else"
    kFor,       // names in value [if condition], branches[0] the body, branches[1] the else
    kSet,       // names = value
    kSetField,  // names[0].names[1] = value
    kSetBlock,  // names[0] = the output of branches[0]
    kMacro,     // macro
    kBlock,     // branches[0], as if written in place
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  Text text;
  ExprPtr value;
  ExprPtr condition;
  std::vector<std::string> names;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::shared_ptr<const Macro> macro;
};

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // with default, or null
  Block body;
};

/// Throws Error(kModelFile) "chat template line N: what; --chat-template overrides it".
[[noreturn]] void fail_at(int line, const std::string& what);

/// Throws for what it does not know, naming it and its line, and for templates that are too long or
/// nested too deeply.
Block parse(std::string_view source);

}  // namespace pagezip::jinja
