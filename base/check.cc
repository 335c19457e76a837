#include "base/check.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace pagezip {
namespace {

// A failed CHECK has no other way to its reports.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local const CheckReport* innermost = nullptr;

}  // namespace

CheckReport::CheckReport(std::function<std::string()> text)
    : text_(std::move(text)), outer_(std::exchange(innermost, this)) {}

CheckReport::~CheckReport() { innermost = outer_; }

void CheckReport::print_all() {
  // Taken away first: a report that fails itself must not be asked again.
  for (const CheckReport* report = std::exchange(innermost, nullptr); report != nullptr;
       report = report->outer_) {
    std::fprintf(stderr, "%s", report->text_().c_str());
  }
}

namespace detail {

void check_failed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what.c_str());
  CheckReport::print_all();
  std::abort();
}

}  // namespace detail
}  // namespace pagezip
