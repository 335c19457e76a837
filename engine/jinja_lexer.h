// Cuts a template into text and tags, and tags into tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pagezip::jinja {

struct Token {
  enum class Kind : uint8_t {
    kText,         // between tags, after whitespace control
    kOutputBegin,  // {{
    kOutputEnd,    // }}
    kBlockBegin,   // {%
    kBlockEnd,     // %}
    kName,
    kString,  // value: unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string value;
  int line;
};

/// With the whitespace rules that chat templates are written for: trim_blocks, lstrip_blocks, no
/// final newline. Comments are left out. The last token is kEnd. Throws Error(kModelFile).
std::vector<Token> tokenize(std::string_view source);

}  // namespace pagezip::jinja
