#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace pagezip::detail {

void check_failed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what.c_str());
  std::abort();
}

}  // namespace pagezip::detail
