// Assertions that stay on in every build.
//
// CHECK is for bugs only: a failed CHECK prints the expression, both values and the place, then
// aborts. What a user, a file or a client can cause is an Error (base/error.h), and an expected
// shortage is a return value; neither ever reaches a CHECK.
#pragma once

#include <functional>
#include <sstream>
#include <string>

namespace pagezip {

/// While it lives, a CHECK that fails on this thread prints what `text` returns as well: what led
/// there.
class CheckReport {
 public:
  explicit CheckReport(std::function<std::string()> text);
  ~CheckReport();
  CheckReport(const CheckReport&) = delete;
  CheckReport& operator=(const CheckReport&) = delete;

  /// On this thread, innermost first.
  static void print_all();

 private:
  std::function<std::string()> text_;
  const CheckReport* outer_;
};

}  // namespace pagezip

namespace pagezip::detail {

/// Prints "file:line: CHECK failed: what" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const std::string& what);

template <typename A, typename B>
[[noreturn]] void check_op_failed(const char* file, int line, const char* expression, const A& a,
                                  const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " vs " << b << ")";
  check_failed(file, line, out.str());
}

}  // namespace pagezip::detail

#define PAGEZIP_CHECK_OP(a, op, b)                                                                 \
  do {                                                                                             \
    const auto& check_a = (a);                                                                     \
    const auto& check_b = (b);                                                                     \
    if (!(check_a op check_b)) {                                                                   \
      ::pagezip::detail::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b, check_a, check_b); \
    }                                                                                              \
  } while (false)

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      ::pagezip::detail::check_failed(__FILE__, __LINE__, #condition); \
    }                                                                  \
  } while (false)
#define CHECK_EQ(a, b) PAGEZIP_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) PAGEZIP_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) PAGEZIP_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) PAGEZIP_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) PAGEZIP_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) PAGEZIP_CHECK_OP(a, >=, b)
