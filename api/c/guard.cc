#include "api/c/guard.h"

namespace pagezip::c_api {
namespace {

constexpr size_t kMessageBytes = 512;
// One message for each thread is what pagezip_last_error() promises.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local char last_error[kMessageBytes] = "";

}  // namespace

pagezip_status fail(pagezip_status status, const char* message) noexcept {
  const size_t bytes = std::min(std::strlen(message), kMessageBytes - 1);
  std::memcpy(last_error, message, bytes);
  last_error[bytes] = '\0';
  return status;
}

}  // namespace pagezip::c_api

const char* pagezip_version(void) { return PAGEZIP_VERSION; }

const char* pagezip_last_error(void) { return pagezip::c_api::last_error; }
