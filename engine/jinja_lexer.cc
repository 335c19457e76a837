#include "engine/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/jinja_ast.h"
#include "engine/utf8.h"

namespace pagezip::jinja {
namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Newlines as \n, without the last one.
std::string normalise(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalise(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      const size_t tag = find_tag();
      const std::string_view text = rest_.substr(0, tag);
      if (tag == rest_.npos) {
        add_text(text);
        break;
      }
      const char kind = rest_[tag + 1];
      const char control = tag + 2 < rest_.size() ? rest_[tag + 2] : ' ';
      add_text(strip_end(text, kind, control));
      advance(tag + 2 + (control == '-' || control == '+' ? 1 : 0));
      if (kind == '#') {
        comment();
      } else {
        tag_contents(kind == '{');
      }
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  size_t find_tag() const {
    for (size_t at = rest_.find('{'); at != rest_.npos; at = rest_.find('{', at + 1)) {
      if (at + 1 < rest_.size() && std::string_view("{%#").find(rest_[at + 1]) != rest_.npos) {
        return at;
      }
    }
    return rest_.npos;
  }

  /// The text before a tag, less what the tag takes away.
  std::string_view strip_end(std::string_view text, char kind, char control) const {
    if (control == '-') {
      while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
      return text;
    }
    if (kind == '{' || control == '+') return text;
    // lstrip_blocks: indentation before a block goes if nothing else stands before it in its line.
    const size_t newline = text.rfind('\n');
    if (newline == text.npos && !line_starts_) return text;
    const size_t start = newline == text.npos ? 0 : newline + 1;
    const std::string_view indentation = text.substr(start);
    const bool blank = std::all_of(indentation.begin(), indentation.end(), is_blank);
    return blank ? text.substr(0, start) : text;
  }

  /// Takes away what a tag that ended takes of the text after it.
  void strip_start(char control, bool trims_newline) {
    size_t count = 0;
    if (control == '-') {
      while (count < rest_.size() && is_blank(rest_[count])) ++count;
    } else if (trims_newline && control != '+' && rest_.starts_with('\n')) {
      count = 1;
    }
    line_starts_ = count > 0 && rest_[count - 1] == '\n';
    advance(count);
  }

  void comment() {
    const size_t end = rest_.find("#}");
    if (end == rest_.npos) fail_at(line_, "a comment does not end");
    const char control = end > 0 ? rest_[end - 1] : ' ';
    advance(end + 2);
    strip_start(control, true);
  }

  void tag_contents(bool output) {
    add(output ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, output ? "{{" : "{%");
    const std::string_view end = output ? "}}" : "%}";
    const int line = line_;
    int brackets = 0;  // inside of {...} the two braces of "}}" close two mappings
    while (true) {
      while (!rest_.empty() && is_blank(rest_[0])) advance(1);
      if (rest_.empty()) fail_at(line, "a tag does not end");
      const bool controlled =
          (rest_[0] == '-' || (rest_[0] == '+' && !output)) && rest_.substr(1).starts_with(end);
      if (brackets == 0 && (controlled || rest_.starts_with(end))) {
        const char control = controlled ? rest_[0] : ' ';
        add(output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, std::string(end));
        advance(end.size() + (controlled ? 1 : 0));
        return strip_start(control, !output);
      }
      token();
      if (tokens_.back().kind == Token::Kind::kOperator) {
        const std::string& value = tokens_.back().value;
        if (value == "(" || value == "[" || value == "{") ++brackets;
        if (value == ")" || value == "]" || value == "}") --brackets;
        if (brackets < 0) fail_at(line_, fmt::format("unexpected '{}'", value));
      }
    }
  }

  void token() {
    const char c = rest_[0];
    size_t length = 0;
    if (is_name_start(c)) {
      while (length < rest_.size() && (is_name_start(rest_[length]) || is_digit(rest_[length]))) {
        ++length;
      }
      add(Token::Kind::kName, std::string(rest_.substr(0, length)));
      advance(length);
    } else if (is_digit(c)) {
      number();
    } else if (c == '\'' || c == '"') {
      string();
    } else {
      operation();
    }
  }

  void number() {
    size_t length = 0;
    const auto digits = [&] {
      while (length < rest_.size() && is_digit(rest_[length])) ++length;
    };
    digits();
    bool real = false;
    if (length + 1 < rest_.size() && rest_[length] == '.' && is_digit(rest_[length + 1])) {
      real = true;
      ++length;
      digits();
    }
    if (length < rest_.size() && (rest_[length] | 0x20) == 'e') {
      const bool has_sign =
          length + 1 < rest_.size() && (rest_[length + 1] == '-' || rest_[length + 1] == '+');
      const size_t exponent = length + (has_sign ? 2 : 1);
      if (exponent < rest_.size() && is_digit(rest_[exponent])) {
        real = true;
        length = exponent;
        digits();
      }
    }
    add(real ? Token::Kind::kFloat : Token::Kind::kInteger, std::string(rest_.substr(0, length)));
    advance(length);
  }

  void operation() {
    for (const std::string_view known :
         {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<",
          ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ",", ":", "|"}) {
      if (!rest_.starts_with(known)) continue;
      add(Token::Kind::kOperator, std::string(known));
      return advance(known.size());
    }
    fail_at(line_, fmt::format("unexpected character '{}'", to_printable(rest_.substr(0, 1))));
  }

  void string() {
    const char quote = rest_[0];
    const int line = line_;
    std::string value;
    size_t at = 1;
    while (at < rest_.size() && rest_[at] != quote) {
      if (rest_[at] == '\\' && at + 1 < rest_.size()) {
        at += escape(rest_.substr(at), value);
      } else {
        value += rest_[at++];
      }
    }
    if (at >= rest_.size()) fail_at(line, "a string does not end");
    add(Token::Kind::kString, std::move(value));
    advance(at + 1);
  }

  /// Appends what an escape sequence stands for and gives its length; unknown ones stay as they
  /// are, as in Python. REQUIRES: at least two characters.
  size_t escape(std::string_view text, std::string& value) const {
    constexpr std::string_view kNames = "nrtabfv\\'\"0";
    constexpr std::string_view kValues = "\n\r\t\a\b\f\v\\'\"\0";
    const char name = text[1];
    if (name == '\n') return 2;
    if (const size_t known = kNames.find(name); known != kNames.npos) {
      value += known < kValues.size() ? kValues[known] : '\0';
      return 2;
    }
    const size_t digits = name == 'x' ? 2 : name == 'u' ? 4 : name == 'U' ? 8 : 0;
    uint32_t code_point = 0;
    if (digits > 0 && text.size() >= 2 + digits) {
      const char* end = text.data() + 2 + digits;
      const auto result = std::from_chars(text.data() + 2, end, code_point, 16);
      const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
      if (result.ptr == end && code_point <= 0x10ffff && !surrogate) {
        append_utf8(value, code_point);
        return 2 + digits;
      }
    }
    value += '\\';
    value += name;
    return 2;
  }

  void add(Token::Kind kind, std::string value) {
    tokens_.push_back({kind, std::move(value), line_});
  }
  void add_text(std::string_view text) {
    if (!text.empty()) add(Token::Kind::kText, std::string(text));
  }
  void advance(size_t count) {
    const std::string_view passed = rest_.substr(0, count);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    rest_.remove_prefix(count);
  }

  const std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool line_starts_ = true;  // the text after the last tag begins at the start of a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace pagezip::jinja
